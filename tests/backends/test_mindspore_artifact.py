"""The artifact of a MindSpore config: made by real processes, and used by a job in a script of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from autotune.answer.export import prewarm
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.measure.sampling import SamplingPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.request import ShippedCache, TrialRequest
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY

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
    """Folder, request and artifact of the config, by the product's own processes."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "model.py").write_text(MODEL)
    reference = f"{folder / 'model.py'}:small"
    workload = Workload(
        model=reference, reference=reference, framework="mindspore", device="cpu", search_path=str(folder)
    )
    request = TrialRequest(
        number=0, workload=workload, config=Config({"execution": "pynative"}), untuned=True, tolerance=None,
        reference=str(folder / "reference.npz"), cache=str(folder / "cache"), cold=True,
        sampling=SamplingPlan(min_samples=5, max_samples=5, max_warmup_s=0.5),
    )  # fmt: skip
    with LocalBench({}, preload=False, log=folder / "log") as runner:
        # PyNative's first operator may crash on a CPU.
        assert any(isinstance(runner.run(TrialFolder(folder / "untuned"), request), Measurement) for _ in range(4))
        tuned = request.model_copy(update={"config": Config(CONFIG), "untuned": False})
        artifact = prewarm(tuned, folder / "prewarm", folder / "best.cache", runner)
        return folder, tuned, artifact


def said_by_a_job(made, tmp_path, constant):
    folder, _, artifact = made
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="mindspore", config=CONFIG, untuned={"execution": "pynative"})
    content["artifact"] = artifact.model_dump(mode="json")
    content["workload"]["signature"].update(
        structure_sha256=artifact.key.structure_sha256, inputs=[each.model_dump() for each in artifact.key.inputs]
    )
    (folder / "best.yaml").write_text(yaml.safe_dump(content))
    script = tmp_path / "job.py"
    script.write_text(JOB)
    for _ in range(4):
        child = subprocess.run(
            [sys.executable, str(script), str(folder / "best.yaml"), str(folder), str(constant)], cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if child.returncode >= 0:
            break
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def test_a_job_starts_from_it(made, tmp_path):
    """In another script: right outputs, and the cache is off for whatever the job compiles later."""
    assert made[2].check_first_call
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
    folder, request, artifact = made
    (folder / "model.py").write_text(MODEL.replace("constant=2.0", "constant=3.0"))
    shipped = request.model_copy(update={"shipped": ShippedCache(artifact=artifact, home=str(folder))})
    # A new reference: that of the changed model.
    untuned = {"config": Config({"execution": "pynative"}), "untuned": True}
    reference = {"reference": str(folder / "changed.npz")}
    try:
        with LocalBench({}, preload=False, log=folder / "log") as runner:
            asked = request.model_copy(update={**untuned, **reference})
            assert any(isinstance(runner.run(TrialFolder(folder / "new"), asked), Measurement) for _ in range(4))
            stale = runner.run(TrialFolder(folder / "stale"), shipped.model_copy(update=reference), fresh=True)
    finally:
        (folder / "model.py").write_text(MODEL)
    assert isinstance(stale, Failure)
    assert stale.reason == Reason.WRONG_RESULT
