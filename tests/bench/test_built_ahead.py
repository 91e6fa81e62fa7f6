"""A large model is built once for all trials, and each trial is as one that has built its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.bench.local import LocalBench
from autotune.measure.measurement import Measurement
from autotune.space.declared import Declaration
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker import subjects
from autotune.trial.worker.built_ahead import WORKLOAD_FILE
from autotune.trial.worker.subjects import LARGE_BYTES
from autotune.workload.workload import Workload

MODEL = """
import os, random, subprocess, sys, threading, time
import torch

def build(width=64):
    with open("{home}/builds", "a") as counted:
        counted.write(f"{{os.getpid()}}\\n")
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)).eval()
    torch.nn.init.trunc_normal_(model[0].weight)  # Computed by several threads, where there are.
    {then}
    return model, torch.randn(8, width)
"""

WIDTH = 2048
WEIGHT_BYTES = 2 * WIDTH * (WIDTH + 1) * 4


def workload(home, then="pass", **fields):
    """One whose model is in this folder; its build also does `then`, and adds a line to the file `builds`."""
    (home / "model.py").write_text(MODEL.format(home=home, then=then))
    return Workload(
        model="model", reference=f"{home / 'model.py'}:build", framework="torch", device="cpu", search_path=str(home),
        **{"built_once": True, **fields},
    )  # fmt: skip


def test_trials_share_a_build_and_cannot_be_told_from_others(tmp_path):
    """The same numbers to the last bit, weights and inputs, as in a process that builds for itself; its memory has the
    model in it."""

    def measured(name, *, built_once=True):
        request = TrialRequest(
            number=0, workload=workload(tmp_path, arguments={"width": WIDTH}, built_once=built_once),
            config={"execution": "eager"}, untuned=True, tolerance=None, cold=True,
            reference=str(tmp_path / "reference.npz"), cache=str(tmp_path / name / "cache"),
        )  # fmt: skip
        outcome = bench.run(TrialFolder(tmp_path / name), request)
        assert isinstance(outcome, Measurement), outcome
        return outcome

    with LocalBench({}, preload=True, log=tmp_path / "supervisor.log") as bench:
        measured("own", built_once=False)
        first, second = measured("shared"), measured("again")
        assert bench.built_apart is None
    assert len((tmp_path / "builds").read_text().split()) == 2
    assert first.relative_error == second.relative_error == 0
    assert min(first.peak_memory_bytes, second.peak_memory_bytes) > 0.8 * WEIGHT_BYTES


WHY = {
    "pass": "nothing",
    "import tqdm; list(tqdm.tqdm([0]))": "nothing",  # As a pretrained model is loaded; its monitor would stay.
    "threading.Thread(target=time.sleep, args=(0.2,)).start()": "nothing",
    # As transformers imports it, which makes the compiler's folder.
    "from torch._inductor.codecache import cache_dir; model.kept = cache_dir()": "/own/inductor",
    "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()": "its build leaves 2 threads",
    "torch.set_num_threads(1)": "its build sets the number of threads",
    "model.file = open('kept', 'w')": "its build leaves open",
    "open('left', 'w').close()": "files in the working folder",
}
EACH_IN_A_FORK = """
import os, sys
from pathlib import Path
from autotune.errors import SetupError
from autotune.trial.worker.built_ahead import WORKLOAD_FILE, build_ahead, take_over
from autotune.workload.workload import Workload

for folder in map(Path, sys.argv[1:]):
    if os.fork() == 0:
        try:
            build_ahead(folder)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/own/inductor"
            built = take_over(Workload.model_validate_json((folder / WORKLOAD_FILE).read_text()))
            said = getattr(built.model, "kept", "nothing")
        except SetupError as error:
            said = str(error)
        (folder / "said").write_text(said)
        os._exit(0)
    os.wait()
"""


def test_what_a_fork_would_lack_is_not_built_ahead(program, tmp_path):
    """It is said why, where it would lack something; `test_imported_ahead` has what trials do then."""
    folders = [tmp_path / str(number) for number in range(len(WHY))]
    for folder, then in zip(folders, WHY, strict=True):
        folder.mkdir()
        (folder / WORKLOAD_FILE).write_text(workload(folder, then).model_dump_json())
    assert program(EACH_IN_A_FORK, *map(str, folders)).wait() == 0
    for folder, why in zip(folders, WHY.values(), strict=True):
        assert why in (folder / "said").read_text()
        assert (folder / "builds").exists()


@pytest.mark.parametrize(
    ("task", "device", "num_bytes", "is_shared"),
    [
        ("infer", "cpu", LARGE_BYTES, True),
        ("infer", "gpu", LARGE_BYTES - 1, False),
        ("train", "cpu", LARGE_BYTES, False),
        ("train", "gpu", LARGE_BYTES, True),
    ],
)
def test_large_models_share_a_build(monkeypatch, task, device, num_bytes, is_shared):
    """But for training on a CPU, which writes to all that is shared; on a device it writes to its own copy."""
    subject = SimpleNamespace(declared=Declaration, weight_bytes=lambda: num_bytes)
    monkeypatch.setattr(subjects, "_subject_of", lambda *_: subject)
    of_it = Workload(model="m", reference="m:b", framework="torch", device=device, task=task, search_path="/")
    assert subjects.declared_by(of_it, None).built_once is is_shared
