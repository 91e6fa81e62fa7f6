"""The artifact of a torch.compile config: made by real processes, and used by a job in a script of its own."""

from __future__ import annotations

import hashlib
import shutil
import struct

import pytest

from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.trial.folder import KEPT_CACHES, TrialFolder
from autotune.tuned.cache_file import pack
from tests.stand_ins import artifact
from tests.stand_ins.child import said_by
from tests.stand_ins.exports import export

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
    return artifact.made(tmp_path_factory.mktemp("made"), MODEL, "torch", CONFIG)


def shared_objects(folder):
    return sorted(path.name for path in folder.rglob("*.so"))


def test_everything_is_found_in_the_artifact(made):
    """Graph and kernels: the graph caches hit, and the C++ compiler is not called for a single kernel."""
    folder = made.folder
    with artifact.bench(folder) as runner:
        request = made.shipped(cache=str(folder / "from-artifact"))
        outcome = runner.run(TrialFolder(folder / "shipped"), request, fresh=True)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.diagnosis.cache_hits == 2
    before = shared_objects(folder / "prewarm" / "kept")
    assert before
    assert shared_objects(folder / "from-artifact" / "artifact") == before
    # Beside it lies what every trial is given: the toolchain's probes, which a cold first call makes too.
    assert set(shared_objects(folder / "from-artifact" / "inductor")) < set(before)
    assert not list((folder / "from-artifact" / "inductor").rglob("*.py"))
    assert made.artifact.key.tools["C++ compiler"]
    assert not made.artifact.check_first_call


def test_a_job_starts_from_it(made, tmp_path):
    """In another script and folder: the first call hits, nothing of it stays in the job's own caches or on the disk,
    and what the job compiles itself goes where it always went."""
    key = made.artifact.key
    changes = {"artifact": made.artifact.model_dump(mode="json"), "inputs": [each.model_dump() for each in key.inputs]}
    path = export(made.folder / "best.yaml", "torch", CONFIG, None, structure=key.structure_sha256, **changes)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "own"), "TMPDIR": str(scratch)}
    found = said_by(tmp_path, JOB, path, made.folder, **variables)
    assert found["artifact"] == []
    assert (found["hits"], found["ours"]) == (2, 0)
    assert found["error"] < 1e-5
    assert found["theirs"] > 0
    assert len(found["unpacked"]) == 1
    assert not list(scratch.glob("autotune-*"))


@pytest.fixture
def edited(made, tmp_path):
    """The artifact with another constant in the compiled kernel of GELU: what it gives is wrong."""
    caches = tmp_path / "caches"
    shutil.copytree(made.folder / "prewarm" / "kept" / KEPT_CACHES, caches)
    right, wrong = struct.pack("<f", 0.5**0.5), struct.pack("<f", 0.5)
    kernels = [path for path in caches.rglob("*.so") if right in path.read_bytes()]
    assert kernels
    for path in kernels:
        path.write_bytes(path.read_bytes().replace(right, wrong))
    (tmp_path / "best.cache").write_bytes(pack(caches))
    return tmp_path


def test_an_edited_kernel_is_caught(made, edited):
    """A job sees that it is another file, and compiles. Where it is the file that is named, as for an export from such
    caches, what it gives is compared before anything is written."""
    key, content = made.artifact.key, (edited / "best.cache").read_bytes()
    changes = {"artifact": made.artifact.model_dump(mode="json"), "inputs": [each.model_dump() for each in key.inputs]}
    changes["artifact"]["num_bytes"] = len(content)
    path = export(edited / "best.yaml", "torch", CONFIG, None, structure=key.structure_sha256, **changes)
    found = said_by(edited, JOB, path, made.folder, TORCHINDUCTOR_CACHE_DIR=str(edited / "own"))
    assert "its checksum differs" in found["artifact"][0]
    assert (found["hits"], found["error"] < 1e-5) == (0, True)

    named = {"sha256": hashlib.sha256(content).hexdigest(), "num_bytes": len(content)}
    shipped = made._replace(folder=edited, artifact=made.artifact.model_copy(update=named))
    with artifact.bench(edited) as runner:
        outcome = runner.run(TrialFolder(edited / "shipped"), shipped.shipped(cache=str(edited / "cache")), fresh=True)
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.WRONG_RESULT
