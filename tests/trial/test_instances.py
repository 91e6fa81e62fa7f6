"""A trial of several instances: real processes on cores of their own that call the model at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import InputError
from autotune.measure.disturbance import disturbance_of
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.measure.objective import Objective
from autotune.planning import spaces
from autotune.planning.spaces import instances_asked, with_instances
from autotune.space.space import SearchSpace
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.worker.further import Further
from autotune.trial.worker.instances import ONLY
from tests.conftest import own_children

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="instances have a core each")

MODEL = f"""
import json, os, time
from pathlib import Path
import numpy as np

IS_SECOND = f"{ONLY}-1" in os.getcwd()

def tiny(folder, fault="none"):
    if fault == "raises" and IS_SECOND:
        raise ValueError("instance 1 has no disk")
    weight = np.random.default_rng(0).normal(size=(8, 8))
    calls = []

    def model(x):
        begun = time.monotonic()
        held = np.ones(4_000_000)
        time.sleep(0.002)
        calls.append(begun)
        end = time.thread_time() + (0.02 if fault == "computes" else 0.0)
        while time.thread_time() < end:
            pass
        if fault == "dies" and IS_SECOND and len(calls) > 6:
            os._exit(3)
        if fault == "fails later" and IS_SECOND and len(calls) > 6:
            raise ValueError("the seventh call fails")
        with open(Path(folder, str(os.getpid())), "a") as log:
            status = dict(line.split(":", 1) for line in open("/proc/self/status"))
            seen = [begun, time.monotonic(), status["Cpus_allowed_list"].strip(), os.environ.get("OMP_NUM_THREADS")]
            print(json.dumps(seen), file=log)
        return x @ weight + (1.0 if fault == "wrong" and IS_SECOND else 0.0) + 0 * held[0]

    return model, np.random.default_rng(1).normal(size=(4, 8))
"""
TWO = {"instances": "2x1"}


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """Folder in which each process of a trial notes its calls."""
    folder = tmp_path / "seen"
    folder.mkdir()
    return folder


@pytest.fixture
def requested(tmp_path: Path, seen: Path, make_request: Callable[..., TrialRequest]) -> Callable[..., TrialRequest]:
    """A request for the model above, whose calls take real time."""
    path = tmp_path / "noting.py"
    path.write_text(MODEL)

    def make(settings: dict[str, object] | None = None, fault: str = "none") -> TrialRequest:
        request = make_request(settings)
        fields = {"model": f"{path}:tiny", "reference": f"{path}:tiny"}
        fields["arguments"] = {"folder": str(seen), "fault": fault}  # type: ignore[assignment]
        return request.model_copy(update={"workload": request.workload.model_copy(update=fields)})

    return make


@pytest.fixture
def run(tmp_path: Path, seen: Path, requested: Callable[..., TrialRequest]) -> Callable[..., Outcome]:
    """The outcome of a config, after the untuned model has left its reference."""

    def run(settings: dict[str, object], fault: str = "none") -> Outcome:
        with LocalBench({}, preload=True, log=tmp_path / "supervisor.log") as bench:
            bench.run(TrialFolder(tmp_path / "untuned"), requested())
            for noted in seen.iterdir():
                noted.unlink()
            return bench.run(TrialFolder(tmp_path / "trial"), requested(settings, fault))

    return run


def notes(seen: Path) -> list[list[Any]]:
    """The calls of each process of a trial."""
    return [[json.loads(line) for line in noted.read_text().splitlines()] for noted in seen.iterdir()]


def rests(seen: Path) -> bool:
    """All processes of a trial are stopped, at once or a moment after they were told to."""
    processes, end = [psutil.Process(int(noted.name)) for noted in seen.iterdir()], time.monotonic() + 5
    while time.monotonic() < end:
        if [each.status() for each in processes] == [psutil.STATUS_STOPPED] * 2:
            return True
    return False


@needs_two_cores
@pytest.mark.usefixtures("real_clock")
class TestTwoProcesses:
    def test_call_at_the_same_time_on_cores_of_their_own(self, run: Callable[..., Outcome], seen: Path) -> None:
        """By what the kernel says of each, from its first call to its last; and each has one thread. Their rates are
        added, percentiles are over all calls, and memory is that of both processes."""
        outcome = run(TWO)
        assert isinstance(outcome, Measurement), outcome
        one, other = notes(seen)
        for calls in (one, other):
            assert len({(cores, threads) for _, _, cores, threads in calls}) == 1
            assert calls[0][3] == "1"
        assert {one[0][2], other[0][2]} == {str(cpu) for cpu in CORES[:2]}
        overlaps = sum(any(a < d and c < b for c, d, *_ in other) for a, b, *_ in one)
        assert overlaps >= len(outcome.samples.latency_s) // 2
        assert outcome.environment.num_cores == 1
        assert not own_children()
        samples = outcome.samples
        (beside,) = samples.beside_s
        rate = len(samples.latency_s) / sum(samples.latency_s) + len(beside) / sum(beside)
        assert outcome.throughput == pytest.approx(4 * rate)
        assert Objective(quantity="throughput").value(outcome) == pytest.approx(1 / outcome.throughput)
        together = sorted([*samples.latency_s, *beside])
        assert together[0] <= outcome.latency.p50 <= together[-1]
        assert outcome.latency.p99 > together[int(0.9 * len(together)) - 1]
        assert outcome.peak_memory_bytes is not None
        assert outcome.peak_memory_bytes > 1.5 * 8 * 4_000_000

    def test_a_program_on_another_instances_core_is_noticed(self, run: Callable[..., Outcome]) -> None:
        """It takes half of that core, while instance 0 has its own to itself."""
        code = f"import os\nos.sched_setaffinity(0, {{{CORES[1]}}})\nwhile True: pass"
        with subprocess.Popen([sys.executable, "-c", code]) as busy:
            try:
                outcome = run(TWO, "computes")
            finally:
                busy.kill()
        assert isinstance(outcome, Measurement), outcome
        environment = outcome.environment.model_copy(update={"device": "cpu"})
        (beside,), (switches,) = outcome.samples.beside_s, outcome.samples.beside_switches
        assert len(switches) == len(beside)
        why = disturbance_of(outcome.model_copy(update={"environment": environment}))
        assert why is not None
        assert "of 2 cores while it was timed" in why
        assert "of the calls of an instance were interrupted" in why

    def test_the_untuned_model_has_all_cores(self, run: Callable[..., Outcome], seen: Path) -> None:
        """It is one process, as a user has it, and its throughput follows from the mean as well."""
        outcome = run({"instances": None})
        assert isinstance(outcome, Measurement), outcome
        (calls,) = notes(seen)
        assert calls[0][2] != str(CORES[0])
        samples = outcome.samples
        assert outcome.throughput == pytest.approx(4 * len(samples.latency_s) / sum(samples.latency_s))

    def test_rest_between_turns(self, tmp_path: Path, requested: Callable[..., TrialRequest], seen: Path) -> None:
        """Nobody else is disturbed; calls are made again in the next turn."""
        with LocalBench({}, preload=True, log=tmp_path / "log") as bench:
            bench.run(TrialFolder(tmp_path / "untuned"), requested())
            for noted in seen.iterdir():
                noted.unlink()
            live = bench.hold(TrialFolder(tmp_path / "live"), requested(TWO))
            numbers = []
            for _ in range(3):
                assert live.turn() is not None
                assert rests(seen)
                numbers.append([len(calls) for calls in notes(seen)])
            outcome = live.finish()
        assert isinstance(outcome, Measurement), outcome
        for before, after in pairwise(numbers):
            assert all(now > earlier for earlier, now in zip(before, after, strict=True))
        assert len(outcome.samples.turns) == 3
        assert not own_children()

    @pytest.mark.fast_cases("wrong", "dies")
    @pytest.mark.parametrize(
        ("fault", "reason", "words"),
        [
            ("raises", None, "instance 1: ValueError: instance 1 has no disk"),
            ("wrong", Reason.WRONG_RESULT, "instance 1: "),
            ("fails later", None, "instance 1: ValueError: the seventh call fails"),
            ("dies", None, "instance 1 ended with exit status 3"),
        ],
    )
    def test_the_instance_that_failed_is_named(
        self, run: Callable[..., Outcome], fault: str, reason: Reason | None, words: str
    ) -> None:
        """Its outputs are compared as those of instance 0 are, and no process is left."""
        outcome = run(TWO, fault)
        assert isinstance(outcome, Failure), outcome
        assert words in outcome.error
        assert reason in (None, outcome.reason)
        assert not own_children()


def test_more_cores_than_there_are(run: Callable[..., Outcome]) -> None:
    """It is not measured with fewer."""
    outcome = run({"instances": f"2x{len(CORES)}"})
    assert isinstance(outcome, Failure)
    assert outcome.reason is Reason.INVALID
    assert f"cores: {len(CORES)}" in outcome.error or "was not started as one of 2" in outcome.error


@needs_two_cores
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("no_toolchain")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_has_a_thread_in_each(
    backend: str, tmp_path: Path, make_request: Callable[..., TrialRequest]
) -> None:
    """Both compute what the untuned model does with all cores."""
    path = tmp_path / "threads.py"
    path.write_text(
        "import torch\nfrom pathlib import Path\n"
        "def build(folder):\n"
        "    import os\n"
        "    Path(folder, str(os.getpid())).write_text(str(torch.get_num_threads()))\n"
        "    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).eval(), torch.randn(8, 64)\n"
    )
    folder = tmp_path / "threads"
    folder.mkdir()
    request = make_request({"execution": "compile", "backend": backend, **TWO})
    fields = {"model": f"{path}:build", "reference": f"{path}:build", "framework": "torch"}
    workload = request.workload.model_copy(update={**fields, "arguments": {"folder": str(folder)}})
    request = request.model_copy(update={"workload": workload, "limits": Limits()})
    eager = Config({"execution": "eager", "instances": None})
    untuned = request.model_copy(update={"config": eager, "untuned": True})
    with LocalBench({}, log=tmp_path / "log") as bench:
        assert isinstance(bench.run(TrialFolder(tmp_path / "untuned"), untuned), Measurement)
        for noted in folder.iterdir():
            noted.unlink()
        outcome = bench.run(TrialFolder(tmp_path / "trial"), request)
    assert isinstance(outcome, Measurement), outcome
    assert [noted.read_text() for noted in folder.iterdir()] == ["1", "1"]
    assert len(outcome.samples.beside_s) == 1


@pytest.mark.parametrize(
    ("text", "cores", "expected"),
    [
        ("auto", 2, ["2x1"]),
        ("auto", 6, ["2x3", "3x2", "6x1"]),
        ("3", 8, ["3x2"]),
        ("2", 2, ["2x1"]),
    ],
)
def test_numbers_that_are_tried(monkeypatch: pytest.MonkeyPatch, text: str, cores: int, expected: list[str]) -> None:
    """Those that divide the cores that this process may use, of which a quota takes some."""
    monkeypatch.setattr(spaces, "num_usable_cores", lambda: cores)
    assert instances_asked(text) == expected


@pytest.mark.parametrize(("text", "cores"), [("auto", 1), ("3", 2), ("1", 4), ("many", 4), ("-2", 4)])
def test_numbers_that_there_are_not(monkeypatch: pytest.MonkeyPatch, text: str, cores: int) -> None:
    """Each with a sentence."""
    monkeypatch.setattr(spaces, "num_usable_cores", lambda: cores)
    with pytest.raises(InputError, match="instances"):
        instances_asked(text)


def test_the_space_has_each_number(space: SearchSpace) -> None:
    """And the untuned model stays one process. Threads of a process have no other value beside instances."""
    threads = space.knobs[0].model_copy(
        update={"name": "threads", "values": (None, 1), "default": None, "untuned": None}
    )
    wide = with_instances(space.model_copy(update={"knobs": (*space.knobs, threads)}), ["2x4", "8x1"])
    assert wide.untuned()["instances"] is None
    values = {(config["instances"], config["threads"]) for config in wide.configs()}
    assert values == {(None, None), (None, 1), ("2x4", None), ("8x1", None)}
    with pytest.raises(InputError, match="has a knob instances"):
        with_instances(wide, ["2x1"])
    service = with_instances(space, ["2x1"], are_given=True)
    assert {config["instances"] for config in [service.untuned(), *service.configs()]} == {"2x1"}


def test_of_several_failures_the_first_is_told(tmp_path: Path, make_request: Callable[..., TrialRequest]) -> None:
    """With its own exit status, where it left no outcome."""

    def start(status: int) -> Callable[..., subprocess.Popen[bytes]]:
        code = f"import sys; sys.exit({status})"
        return lambda _, log: subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)

    further = Further.start("instance", TrialFolder(tmp_path), make_request(), [start(0), start(4)])
    assert str(further.cause()).startswith("instance 2 ended with exit status 4")
