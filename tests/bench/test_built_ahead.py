"""A large model is built once for all trials, and each trial is as one that has built its own."""

from __future__ import annotations

import pytest

from autotune.bench.local import LocalBench
from autotune.measure.measurement import Measurement
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.workload.workload import Workload

MODEL = """
import os, random, subprocess, sys, threading, time
import torch

def build():
    with open({counted!r}, "a") as counted:
        counted.write(f"{{os.getpid()}}\\n")
    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096)).eval()
    torch.nn.init.trunc_normal_(model[0].weight)  # Computed by several threads, where there are.
    {then}
    return model, torch.randn(8, 4096)
"""

WEIGHT_BYTES = 2 * 4096 * 4097 * 4


@pytest.fixture
def measured(tmp_path):
    """`measured(then, built_once, name)`: a trial of the untuned model. Its build also does `then`."""
    counted = tmp_path / "builds"
    bench = LocalBench({}, preload=True, log=tmp_path / "supervisor.log")

    def measured(name, then="pass", *, built_once=True):
        file = tmp_path / "model.py"
        file.write_text(MODEL.format(counted=str(counted), then=then))
        workload = Workload(
            model="model", reference=f"{file}:build", framework="torch", device="cpu", search_path=str(tmp_path),
            built_once=built_once,
        )  # fmt: skip
        request = TrialRequest(
            number=0, workload=workload, config={"execution": "eager"}, untuned=True, tolerance=None, cold=True,
            reference=str(tmp_path / "reference.npz"), cache=str(tmp_path / name / "cache"),
        )  # fmt: skip
        outcome = bench.run(TrialFolder(tmp_path / name), request)
        assert isinstance(outcome, Measurement), outcome
        return outcome, len(counted.read_text().split()), bench.built_apart

    with bench:
        yield measured


def test_trials_share_a_build_and_cannot_be_told_from_others(measured):
    """The same numbers to the last bit, weights and inputs, as in a process that builds for itself; its memory has the
    model in it."""
    measured("own", built_once=False)
    (first, _, _), (second, num_builds, why) = measured("shared"), measured("again")
    assert (num_builds, why) == (2, None)
    assert first.relative_error == second.relative_error == 0
    assert min(first.peak_memory_bytes, second.peak_memory_bytes) > 0.8 * WEIGHT_BYTES


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "its build leaves 2 threads"),
        ("torch.set_num_threads(1)", "its build sets the number of threads"),
        ("model.file = open('kept', 'w')", "its build leaves open"),
        ("open('left', 'w').close()", "files in the working folder"),
    ],
)
def test_what_a_fork_would_lack_is_built_by_each_trial(measured, then, why):
    """It says why."""
    _, num_builds, said = measured("first", then)
    assert num_builds == 2
    assert why in said
