"""The artifact of a torch.compile config: made by real processes, and used by a job in a script of its own."""

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
from autotune.measure.measurement import Measurement
from autotune.measure.sampling import SamplingPlan
from autotune.trial.folder import TrialFolder
from autotune.trial.request import ShippedCache, TrialRequest
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]  # Four processes with empty caches: two minutes.

CONFIG = {"execution": "compile"}
MODEL = """
import torch

def small():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Softmax(-1)]
    return torch.nn.Sequential(*layers).eval(), (torch.ones(4, 8),)
"""
JOB = """
import json, os, sys, tempfile
from pathlib import Path
import torch
import autotune
from autotune.job.stats import recorder_of
sys.path.insert(0, sys.argv[2])
from model import small

model, inputs = small()
with torch.no_grad():
    expected = model(*inputs)
    tuned = autotune.load(sys.argv[1]).apply(model, on_mismatch="apply", margin=None)
    error = float((tuned(*inputs) - expected).abs().max())
    hits = recorder_of(tuned).diagnose().cache_hits
    unpacked = [str(path) for path in Path(tempfile.gettempdir()).glob("autotune-*")]
    own = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    after_ours = len(list(own.rglob("*.so")))
    torch.compile(lambda x: x.sin() + 1)(inputs[0])
    after_theirs = len(list(own.rglob("*.so")))
print("\\n" + json.dumps({
    "error": error, "hits": hits, "unpacked": unpacked, "ours": after_ours, "theirs": after_theirs,
    "artifact": [event.message for event in autotune.stats(tuned).events if event.kind == "artifact"],
}))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder, request and artifact of the config, by the product's own processes."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "model.py").write_text(MODEL)
    reference = f"{folder / 'model.py'}:small"
    workload = Workload(model=reference, reference=reference, framework="torch", device="cpu", search_path=str(folder))
    request = TrialRequest(
        number=0, workload=workload, config=Config({"execution": "eager"}), untuned=True, tolerance=None,
        reference=str(folder / "reference.npz"), cache=str(folder / "cache"), cold=True,
        sampling=SamplingPlan(min_samples=5, max_samples=5, max_warmup_s=0.5),
    )  # fmt: skip
    with LocalBench({}, preload=False, log=folder / "log") as runner:
        assert isinstance(runner.run(TrialFolder(folder / "untuned"), request), Measurement)
        tuned = request.model_copy(update={"config": Config(CONFIG), "untuned": False})
        artifact = prewarm(tuned, folder / "prewarm", folder / "best.cache", runner)
        return folder, tuned, artifact


def shared_objects(folder):
    return sorted(path.name for path in folder.rglob("*.so"))


def test_everything_is_found_in_the_artifact(made):
    """Graph and kernels: the graph caches hit, and the C++ compiler is not called for a single kernel."""
    folder, request, artifact = made
    shipped = ShippedCache(artifact=artifact, home=str(folder))
    asked = {"shipped": shipped, "cache": str(folder / "from-artifact")}
    with LocalBench({}, preload=False, log=folder / "log") as runner:
        outcome = runner.run(TrialFolder(folder / "shipped"), request.model_copy(update=asked), fresh=True)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.diagnosis.cache_hits == 2
    before = shared_objects(folder / "prewarm" / "kept")
    assert before
    assert shared_objects(folder / "from-artifact" / "artifact") == before
    # Beside it lies what every trial is given: the toolchain's probes, which a cold first call makes too.
    assert set(shared_objects(folder / "from-artifact" / "inductor")) < set(before)
    assert not list((folder / "from-artifact" / "inductor").rglob("*.py"))
    assert artifact.key.tools["C++ compiler"]
    assert not artifact.check_first_call


def test_a_job_starts_from_it(made, tmp_path):
    """In another script and folder: the first call hits, nothing of it stays in the job's own caches or on the disk,
    and what the job compiles itself goes where it always went."""
    folder, _, artifact = made
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", config=CONFIG, artifact=artifact.model_dump(mode="json"))
    content["workload"]["signature"].update(
        structure_sha256=artifact.key.structure_sha256, inputs=[each.model_dump() for each in artifact.key.inputs]
    )
    (folder / "best.yaml").write_text(yaml.safe_dump(content))
    script, scratch = tmp_path / "job.py", tmp_path / "scratch"
    script.write_text(JOB)
    scratch.mkdir()
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own"), "TMPDIR": str(scratch)}
    child = subprocess.run(
        [sys.executable, str(script), str(folder / "best.yaml"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    assert found["artifact"] == []
    assert (found["hits"], found["ours"]) == (2, 0)
    assert found["error"] < 1e-5
    assert found["theirs"] > 0
    assert len(found["unpacked"]) == 1
    assert not list(scratch.glob("autotune-*"))
