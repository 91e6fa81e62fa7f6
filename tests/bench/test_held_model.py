"""On a device a large model is built once, on the host, and each process that is forked from the one that holds it
begins the driver itself."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import psutil
import pytest

from autotune.backends.registry import BACKENDS
from autotune.bench.local import LocalBench
from autotune.bench.probe import read_declaration
from autotune.bench.supervisor_process import end_kept, kept_supervisors
from autotune.errors import SetupError
from autotune.measure.measurement import Measurement
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.workload.workload import Workload

pytestmark = pytest.mark.slow

MODEL = """
import os
import torch

def build(num=2**18):
    with open({counted!r}, "a") as counted:
        counted.write(f"{{os.getpid()}}\\n")
    assert torch.cuda.is_available()
    model = torch.nn.Linear(8, 8).eval()
    model.register_buffer("large", torch.zeros(1).expand(num))
    {then}
    return model, torch.randn(4, 8)
"""
VARIABLES = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Processes of torch find a GPU (`tests.stand_ins.gpu`). Returns what it and the builds wrote: what was done, and
    by which process."""
    entry = BACKENDS["torch"]
    monkeypatch.setitem(BACKENDS, "torch", dataclasses.replace(entry, preload="tests.stand_ins.gpu"))
    monkeypatch.setenv("STAND_IN_GPU", str(tmp_path / "gpu"))
    (tmp_path / "gpu").touch()

    def done():
        said = [line.split() for line in (tmp_path / "gpu").read_text().splitlines()]
        builds = [("build", pid) for pid in (tmp_path / "builds").read_text().split()]
        return Counter((what, pid) for what, pid in [*said, *builds])

    return done


@pytest.fixture
def asked(gpu, tmp_path):
    """`asked(then, num)`: what a model declares whose build also does `then`, and its workload."""

    def asked(then="pass", num=2**18):
        file = tmp_path / "model.py"
        file.write_text(MODEL.format(counted=str(tmp_path / "builds"), then=then))
        workload = Workload(
            model="model", reference=f"{file}:build", framework="torch", device="gpu", search_path=str(tmp_path),
            arguments={"num": num},
        )  # fmt: skip
        declared = read_declaration(workload, VARIABLES)
        return workload.model_copy(update={"built_once": declared.built_once, "imported": declared.imported})

    with kept_supervisors():
        yield asked


def untuned(workload, folder):
    return TrialRequest(
        number=0, workload=workload, config={"execution": "eager"}, untuned=True, tolerance=None, cold=True,
        reference=str(folder / "reference.npz"), cache=str(folder / "cache"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("then", "num", "num_builds", "num_drivers", "why"),
    [
        ("pass", 2**18, 1, 2, None),
        ("torch.cuda.init()", 2**18, 3, 3, "its build begins the device's driver"),
        ("pass", 2**10, 3, 2, None),
    ],
    ids=["held", "driver", "small"],
)
def test_a_large_model_is_built_once(asked, gpu, tmp_path, then, num, num_builds, num_drivers, why):
    """For the declaration, a trial and a live process. Whoever builds a model that is forked has no driver, nor has who
    reads a declaration; each fork that measures begins it, once, and moves its own copy. A small model, and one whose
    build begins the driver, each builds."""
    workload = asked(then, num)
    assert workload.built_once is (num == 2**18)
    assert gpu().total() == num_drivers - 1  # One build, and the driver that it may begin.
    request = untuned(workload, tmp_path)
    with LocalBench(VARIABLES, preload=True, log=tmp_path / "supervisor.log") as bench:
        trial = bench.run(TrialFolder(tmp_path / "trial"), request)
        for _ in range(2):  # Small models of every second block come from the supervisor.
            bench.new_block()
        live = bench.hold(TrialFolder(tmp_path / "live"), request.cached_in(tmp_path / "other", cold=True))
        live.turn()
        for outcome in (trial, live.finish()):
            assert isinstance(outcome, Measurement), outcome
        assert why in (bench.built_apart or "") if why else bench.built_apart is None
    done = {what: {pid for each, pid in gpu() if each == what} for what in ("build", "driver", "model")}
    assert {what: len(pids) for what, pids in done.items()} == {"build": num_builds, "driver": num_drivers, "model": 2}
    assert set(gpu().values()) == {1}
    assert done["model"] <= done["driver"]
    if num_builds == 1:
        assert not done["build"] & done["driver"]


def test_a_build_that_fails_is_made_once(asked, gpu):
    """What it raised is told as by any process that reads a declaration."""
    with pytest.raises(SetupError, match=r"ValueError: no weights.*model\.py, line"):
        asked("raise ValueError('no weights')")
    assert [what for what, _ in gpu()].count("build") == 1


def test_one_model_is_held_at_a_time(asked, gpu, tmp_path):
    """That of the declaration before gives way to the next one, as does one that the study does not want; and none
    stays where the trials run elsewhere."""

    def builders():
        return [int(pid) for pid in (tmp_path / "builds").read_text().split()]

    first, second = asked(num=2**18), asked(num=2**19)
    assert [psutil.pid_exists(pid) for pid in builders()] == [False, True]
    for num_builds, workload in ((2, second), (3, first)):
        folder = tmp_path / str(num_builds)
        folder.mkdir()
        with LocalBench(VARIABLES, preload=True, log=folder / "supervisor.log") as bench:
            assert isinstance(bench.run(TrialFolder(folder / "trial"), untuned(workload, folder)), Measurement)
            assert len(builders()) == num_builds
            bench.leave(holds=True)
    assert [psutil.pid_exists(pid) for pid in builders()] == [False, False, True]
    end_kept()
    assert not psutil.pid_exists(builders()[-1])
