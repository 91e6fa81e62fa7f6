"""`capture: trace` keeps the way that the first call took: of a model that goes by values it is refused."""

from __future__ import annotations

import pytest

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import UnsuitableCallError

ms = pytest.importorskip("mindspore")

from autotune.backends.mindspore.backend import MindSporeBackend  # noqa: E402

pytestmark = pytest.mark.mindspore


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
}


def compiled(decide, capture="trace"):
    cell = Deciding(decide).set_train(False)
    return cell, MindSporeBackend().compile(cell, Config({"execution": "jit", "capture": capture}), UndoLog())


@pytest.mark.parametrize("case", DECIDING)
def test_a_model_that_goes_by_values_is_not_traced(case):
    """Its first call is right, and the next one is refused with the line that reads them."""
    cell, step = compiled(DECIDING[case])
    quiet = ms.ops.ones((2, 4), ms.float32)
    assert ms.ops.abs(step(quiet) - cell(quiet)).max() < 1e-5
    with pytest.raises(UnsuitableCallError, match=r"goes by values of tensors \(test_mindspore_trace.py, line \d+\)"):
        step(100 * quiet)


def test_other_models_are_traced():
    """Shapes and settings are no values; MindSpore's own code may read some."""
    cell, step = compiled(lambda x: x.shape[0] > 100)
    x = ms.ops.ones((2, 4), ms.float32)
    for _ in range(3):
        assert ms.ops.abs(step(x) - cell(x)).max() < 1e-5
