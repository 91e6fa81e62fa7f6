"""`capture: trace` keeps the way that the first call took: of a model that goes by values it is refused."""

from __future__ import annotations

import pytest

from tests.stand_ins.child import said_by

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

JOB = r"""
import json
import mindspore as ms
from autotune.backends.mindspore.backend import MindSporeBackend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import UnsuitableCallError

class Deciding(ms.nn.Cell):
    def __init__(self, decide):
        super().__init__()
        self.layer, self.decide = ms.nn.Dense(4, 4), decide

    def construct(self, x):
        y = self.layer(x)
        return y * 0.5 if self.decide(x) else y

DECIDING = {
    "a branch": lambda x: ms.ops.abs(x).max() > 10,
    "a number": lambda x: float(x.max()) > 10,
    "an array": lambda x: (x.asnumpy() > 10).any(),
    "an item": lambda x: x.max().item() > 10,
    "a shape": lambda x: x.shape[0] > 100,
}

def calls(decide):
    cell = Deciding(decide).set_train(False)
    step = MindSporeBackend().compile(cell, Config({"execution": "jit", "capture": "trace"}), UndoLog())
    found = []
    for scale in (1, 100, 1):
        x = scale * ms.ops.ones((2, 4), ms.float32)
        try:
            found.append(bool((ms.ops.abs(step(x) - cell(x)) < 1e-5 * scale).all()))
        except UnsuitableCallError as error:
            found.append(str(error))
    return found

print(json.dumps({case: calls(decide) for case, decide in DECIDING.items()}))
"""
"""In a process of its own: while MindSpore traces, it looks at the source of each frame, and a worker's have none."""


def test_a_model_that_goes_by_values_is_not_traced(tmp_path):
    """Its first call is right, and each later one is refused with the line that reads them. Shapes are no values."""
    found = said_by(tmp_path, JOB)
    assert found.pop("a shape") == [True, True, True]
    for case, (first, *later) in found.items():
        assert first is True, case
        assert all("goes by values of tensors (job.py, line" in str(each) for each in later), (case, later)
