"""The artifact of a MindSpore config: made by real processes, and used by a job in a script of its own."""

from __future__ import annotations

import pytest

from autotune.measure.measurement import Failure, Reason
from autotune.trial.folder import TrialFolder
from tests.stand_ins import artifact
from tests.stand_ins.child import said_by
from tests.stand_ins.exports import export

pytest.importorskip("mindspore")
pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

CONFIG = {"execution": "jit", "capture": "ast", "jit_level": "O0"}
MODEL = """
import mindspore as ms, numpy as np

class Net(ms.nn.Cell):
    def __init__(self, constant):
        super().__init__()
        self.layers = ms.nn.CellList([ms.nn.Dense(8, 8) for _ in range(12)])
        self.constant = constant

    def construct(self, x):
        for layer in self.layers:
            x = ms.ops.relu(layer(x)) + self.constant
        return x

def small(constant=2.0):
    ms.set_seed(0)
    return Net(constant).set_train(False), (ms.Tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)),)
"""
JOB = """
import json, os, sys
import mindspore as ms, numpy as np
import autotune
sys.path.insert(0, sys.argv[2])
from model import small

ms.set_device("CPU") if hasattr(ms, "set_device") else ms.set_context(device_target="CPU")
model, inputs = small(float(sys.argv[3]))
expected = model(*inputs).asnumpy()
tuned = autotune.load(sys.argv[1]).apply(model, on_mismatch="apply", margin=None)
error = float(abs(tuned(*inputs).asnumpy() - expected).max() / abs(expected).max())
after = float(abs(tuned(*inputs).asnumpy() - expected).max() / abs(expected).max())
other, more = small(5.0)
other.construct = ms.jit(other)
plain = float(abs(other(*more).asnumpy() - small(5.0)[0](*more).asnumpy()).max())
stats = autotune.stats(tuned)
print("\\n" + json.dumps({
    "errors": [error, after], "plain": plain, "state": stats.state,
    "events": [event.message for event in stats.events if event.kind != "mismatch"],
    "variables": [name for name in os.environ if name.startswith("MS_COMPILER")],
}), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return artifact.made(tmp_path_factory.mktemp("made"), MODEL, "mindspore", CONFIG)


def said_by_a_job(made, tmp_path, constant):
    key = made.artifact.key
    changes = {"artifact": made.artifact.model_dump(mode="json"), "inputs": [each.model_dump() for each in key.inputs]}
    path = export(made.folder / "best.yaml", "mindspore", CONFIG, None, structure=key.structure_sha256, **changes)
    return said_by(tmp_path, JOB, path, made.folder, constant)


def test_a_job_starts_from_it(made, tmp_path):
    """In another script: right outputs, and the cache is off for whatever the job compiles later."""
    assert made.artifact.check_first_call
    found = said_by_a_job(made, tmp_path, constant=2.0)
    assert found["state"] == "tuned"
    assert found["events"] == []
    assert max(found["errors"]) < 1e-5
    assert found["plain"] < 1e-5
    assert found["variables"] == []


def test_a_stale_graph_is_caught(made, tmp_path):
    """A model with the same parameters and another constant: MindSpore takes the cached graph all the same. The first
    call's check finds it, and the job never sees a wrong output."""
    found = said_by_a_job(made, tmp_path, constant=3.0)
    assert found["state"] == "untuned"
    assert found["errors"] == [0, 0]
    assert len(found["events"]) == 1
    assert "the first outputs are wrong" in found["events"][0]


def test_a_stale_graph_fails_a_trial(made):
    """The export's own process compares outputs like any trial: an artifact that gives stale ones is never written."""
    folder, reference = made.folder, {"reference": str(made.folder / "changed.npz")}
    (folder / "model.py").write_text(MODEL.replace("constant=2.0", "constant=3.0"))
    try:
        with artifact.bench(folder) as runner:
            # A new reference: that of the changed model.
            artifact.run_untuned(runner, folder / "new", made.request.model_copy(update=reference))
            stale = runner.run(TrialFolder(folder / "stale"), made.shipped(**reference), fresh=True)
    finally:
        (folder / "model.py").write_text(MODEL)
    assert isinstance(stale, Failure)
    assert stale.reason == Reason.WRONG_RESULT
