"""Trials of several runs on one machine: one at a time is timed on a device."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.bench.local import LocalBench
from autotune.measure.measurement import Measurement, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from autotune.trial.worker.device_lock import FOLDER_VARIABLE, DeviceLock, device_key, stages_alone
from autotune.trial.worker.stages import StageReporter
from tests.conftest import QUICK_BUDGET, cli_command, cli_environment
from tests.trial.call_log import CallLog

COMPILED = {"execution": "compile", "latency_ms": 2}
HOLDER = """
import fcntl, os, sys, time
lock = os.open(sys.argv[1], os.O_RDONLY | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("has it", flush=True)
time.sleep(600)
"""


@dataclass
class Device:
    """Of a backend: its UUID, or that the framework tells none."""

    uuid: str | None = None
    has_hook: bool = False

    def device_uuid(self):
        return self.uuid

    def lock_benchmarks(self, taken):
        return self.has_hook


@pytest.fixture
def locks(tmp_path, monkeypatch):
    """The folder of the locks, this test's own."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


@pytest.fixture
def make_lock(tmp_path, make_request, locks):
    """The lock of one more trial."""

    def make(total=60.0, **changes):
        request = make_request(COMPILED, limits=Limits(total=total), **changes)
        folder = TrialFolder(tmp_path / "trial")
        folder.path.mkdir(exist_ok=True)
        return DeviceLock.of(request, Device(), StageReporter(folder))

    return make


@pytest.fixture
def holder(locks):
    """Another process that has the CPU, until it is killed."""
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDER, locks / "autotune-cpu.lock"], stdout=subprocess.PIPE, text=True
    )
    assert held.stdout.readline() == "has it\n"
    yield held
    held.kill()
    held.wait()
    held.stdout.close()


def is_taken(locks: Path, device: str = "cpu") -> bool:
    """Whether some process has the CPU, or another device."""
    path = locks / f"autotune-{device}.lock"
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_one_at_a_time_has_it(make_lock, locks, capsys):
    """It is there for the next one when it is released. Who has waited for as long as a trial may take goes on without
    it, and says so in the trial's log."""
    first, second = make_lock(), make_lock(total=0.1)
    first.take()
    first.take()
    assert is_taken(locks)
    begun = time.monotonic()
    second.take()
    assert time.monotonic() - begun >= 0.1
    assert "timed beside another trial" in capsys.readouterr().err
    second.release()
    assert is_taken(locks), "what waited in vain frees nothing"
    first.release()
    assert not is_taken(locks)


def test_a_process_that_takes_turn_after_turn_lets_others_in(make_lock):
    """The other one waits in the queue, which is asked before the lock."""
    greedy, other, order = make_lock(), make_lock(), []
    greedy.take()
    waits = threading.Thread(target=lambda: (other.take(), order.append("other"), other.release()))
    waits.start()
    while is_alone(make_lock()):
        time.sleep(0.01)
    greedy.release()
    greedy.take()
    order.append("greedy")
    greedy.release()
    waits.join()
    assert order == ["other", "greedy"]


def is_alone(lock: DeviceLock) -> bool:
    """Whether nobody waits in the queue."""
    with lock._files[0][0].open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_killed_process_frees_it(make_lock, holder):
    """The kernel does it: nothing has to be cleared."""
    threading.Timer(0.2, holder.kill).start()
    lock = make_lock()
    lock.take()
    assert lock._left_s > 30
    lock.release()


def test_a_trial_waits_for_it_and_no_limit_counts_that(tmp_path, make_request, locks, holder):
    """It waits for longer than it may be timed, and is measured; the run is told."""
    limits = Limits(compile=20, check=20, run=1.0, total=30)
    told: list[str] = []

    def on_queued():
        told.append("queued")
        threading.Timer(1.2, holder.kill).start()

    with LocalBench({}, preload=True, log=tmp_path / "log", on_queued=on_queued) as runners:
        outcome = runners.run(TrialFolder(tmp_path / "a"), make_request(limits=limits))
    assert isinstance(outcome, Measurement), outcome
    assert told == ["queued"]
    assert outcome.stage_s[Stage.RUN] < 1.0
    assert not is_taken(locks)


def test_trials_that_wait_to_be_timed_do_not_have_it(tmp_path, make_request, locks, monkeypatch):
    """On an accelerator each has it in its check, so that others are checked while it waits."""
    monkeypatch.setenv("FAKE_ACCELERATOR", "1")

    def on_gpu(settings=None):
        request = make_request(settings, limits=Limits(total=20))
        return request.model_copy(update={"workload": request.workload.model_copy(update={"device": "gpu"})})

    with LocalBench({}, preload=True, log=tmp_path / "log") as runners:
        assert isinstance(runners.run(TrialFolder(tmp_path / "untuned"), on_gpu()), Measurement)
        started = [runners.start(TrialFolder(tmp_path / name), on_gpu(COMPILED), "gated") for name in "ab"]
        for each in started:
            each.warm()
            assert not is_taken(locks, "gpu-0")
        assert all(isinstance(each.finish(), Measurement) for each in started)
    assert not any("timed beside" in (tmp_path / name / "stderr.txt").read_text() for name in "ab")


def test_turns_alternate_with_those_of_another_run(tmp_path, make_request, locks):
    """A live process has the device in its turns alone, so that two blocks can go on beside each other."""
    with LocalBench({}, preload=True, log=tmp_path / "log") as runners:
        assert isinstance(runners.run(TrialFolder(tmp_path / "untuned"), make_request()), Measurement)
        live = [runners.hold(TrialFolder(tmp_path / name), make_request(COMPILED)) for name in "ab"]
        for _ in range(2):
            for each in live:
                each.turn()
                assert not is_taken(locks)
        outcomes = [each.finish() for each in live]
    assert [len(each.samples.turns) for each in outcomes] == [2, 2]


def test_a_trial_of_another_device_waits_where_the_machine_is_to_be_had_alone(make_lock, locks):
    """Devices that disturb each other: one trial at a time has all of them. What needs its device alone does not
    wait, and what needs nothing alone takes no lock."""
    on_cpu, other = make_lock(alone_on=("device", "host")), make_lock(total=0.1, alone_on=("host",))
    on_cpu.take()
    make_lock(alone_on=()).take()
    other.take()
    assert other._left_s <= 0
    other.release()
    on_cpu.release()
    again = make_lock(alone_on=("host",))
    again.take()
    assert again._left_s == 60.0
    assert not is_taken(locks)
    again.release()


@pytest.mark.parametrize("folder", ["off", "/no/such/folder"])
def test_without_a_place_for_it_trials_go_on(make_lock, monkeypatch, folder, capsys):
    """It can be turned off, and where no file can be made that is said in the trial's log."""
    monkeypatch.setenv(FOLDER_VARIABLE, folder)
    lock = make_lock()
    lock.take()
    lock.release()
    assert ("without a lock" in capsys.readouterr().err) == (folder != "off")


def test_a_file_of_another_user_serves(make_lock, locks):
    """Whoever comes first makes it, readable for all: locking needs no right to write. A link is not followed."""
    previous = os.umask(0o077)
    try:
        first = make_lock()
        first.take()
    finally:
        os.umask(previous)
    first.release()
    assert {each.stat().st_mode & 0o777 for each in locks.iterdir()} == {0o644}
    for each in locks.iterdir():
        each.chmod(0o444)
    lock = make_lock()
    lock.take()
    assert is_taken(locks)
    lock.release()


def test_the_key_is_the_device(make_request, monkeypatch):
    """The CPU as a whole; an accelerator by its UUID, else by its number as the process was given it."""
    request = make_request(COMPILED)

    def on(device):
        return request.model_copy(update={"workload": request.workload.model_copy(update={"device": device})})

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    assert device_key(on("cpu"), Device("GPU-1")) == "cpu"
    assert device_key(on("gpu"), Device("GPU-1")) == "GPU-1"
    assert device_key(on("gpu"), Device()) == "gpu-3"
    assert device_key(on("ascend"), Device()) == "ascend-0"


@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        ("gpu", {"execution": "compile", "mode": "max-autotune"}, {Stage.COMPILE, Stage.CHECK}),
        ("gpu", {"execution": "eager", "cudnn_benchmark": True}, {Stage.COMPILE, Stage.CHECK}),
        ("gpu", {"execution": "compile", "mode": "default"}, {Stage.CHECK}),
        ("cpu", {"execution": "compile", "mode": "max-autotune"}, set()),
    ],
)
def test_what_runs_on_an_accelerator_has_it_alone(make_request, device, settings, expected):
    """The check, and a compile that times candidates; another compile is not locked, and none is on the CPU."""
    request = make_request(settings)
    workload = request.workload.model_copy(update={"framework": "torch", "device": device})
    assert stages_alone(request.model_copy(update={"workload": workload})) == expected


@pytest.mark.parametrize(
    ("settings", "has_hook", "expected"),
    [
        ({"execution": "compile", "mode": "max-autotune"}, True, {Stage.CHECK}),
        ({"execution": "compile", "mode": "max-autotune"}, False, {Stage.CHECK, Stage.COMPILE}),
        ({"execution": "compile", "mode": "max-autotune", "cudnn_benchmark": True}, True, {Stage.CHECK, Stage.COMPILE}),
    ],
)
def test_a_compiler_that_locks_its_benchmarks_compiles_the_rest_beside_others(
    make_request, tmp_path, locks, settings, has_hook, expected
):
    """What cuDNN times is in no benchmark of the compiler: such a config has the device for its whole compile."""
    request = make_request(settings)
    workload = request.workload.model_copy(update={"framework": "torch", "device": "gpu"})
    device, folder = Device("GPU-1", has_hook), TrialFolder(tmp_path)
    assert (
        DeviceLock.of(request.model_copy(update={"workload": workload}), device, StageReporter(folder))._stages
        == expected
    )


def test_a_benchmark_has_the_device_and_its_wait_is_no_compile_time(make_lock, locks):
    """Benchmarks within one another take it once. What a trial has already, the end of a benchmark does not free."""
    lock = make_lock(total=0.1)
    with lock.taken():
        with lock.taken():
            assert is_taken(locks)
        assert is_taken(locks)
        other = make_lock(total=0.1)
        with other.taken():
            assert other.without_waits(lambda: 1.0)() <= 0.9
    assert not is_taken(locks)
    lock.take()
    with lock.taken():
        pass
    assert is_taken(locks)
    lock.release()


@pytest.mark.torch
def test_inductor_takes_the_lock_around_its_benchmarks():
    """With its own hook, where the release has it; else it says that it cannot."""
    benchmarking = pytest.importorskip("torch._inductor.runtime.benchmarking")
    from autotune.backends.torch.instruments import lock_gpu_benchmarks

    entered = []

    @contextmanager
    def taken():
        entered.append(1)
        yield

    has_hook = hasattr(benchmarking, "set_gpu_benchmark_lock_context")
    assert lock_gpu_benchmarks(taken) == has_hook
    if has_hook:
        try:
            assert benchmarking.gpu_benchmark_lock(lambda: 7)() == 7
        finally:
            benchmarking.set_gpu_benchmark_lock_context(None)
        assert entered == [1]


@pytest.mark.torch
def test_inductor_takes_the_context_around_its_benchmarks_on_a_cpu(monkeypatch):
    """Its own function for them is changed, so that what it measures comes out as before."""
    benchmarking = pytest.importorskip("torch._inductor.runtime.benchmarking")
    from autotune.backends.torch.instruments import lock_cpu_benchmarks

    monkeypatch.setattr(benchmarking.Benchmarker, "benchmark_cpu", benchmarking.Benchmarker.benchmark_cpu)
    entered = []

    @contextmanager
    def taken():
        entered.append(1)
        yield

    assert lock_cpu_benchmarks(taken)
    assert benchmarking.benchmarker.benchmark_cpu(lambda: time.sleep(0.002), warmup=1, rep=5) >= 2
    assert entered == [1]
    monkeypatch.delattr(benchmarking.Benchmarker, "benchmark_cpu")
    assert not lock_cpu_benchmarks(taken)


def test_a_stage_that_needs_the_device_waits_for_it(tmp_path, make_lock, locks):
    """No other stage does."""
    lock = make_lock()
    lock._stages = frozenset({Stage.CHECK})
    lock.enter(Stage.COMPILE)
    assert not is_taken(locks)
    lock.enter(Stage.CHECK)
    assert is_taken(locks)
    lock.release()


@pytest.fixture
def tune_process(tmp_path, model_file, space_file, locks):
    """Starts `tune` or another command as a user does; its output goes to a file named after the study."""
    log, budget = CallLog(tmp_path / "calls"), tmp_path / "budget.yaml"
    log.write_model(model_file)
    budget.write_text(QUICK_BUDGET.but(num_trials=4, stop_early=False).model_dump_json())
    started = []

    def start(study, *arguments):
        given = arguments or (
            "tune", "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu",
            "--space", str(space_file), "--study", study, "--budget", str(budget),
        )  # fmt: skip
        with (tmp_path / f"{study}.err").open("a") as errors:
            run = subprocess.Popen(cli_command(*given), cwd=tmp_path, env=cli_environment(), stderr=errors)
        started.append(run)
        return run

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("real_clock")
def test_timings_of_two_whole_runs_never_overlap(tmp_path, holder, tune_process):
    """Two `tune` of two studies on one device, from the untuned model to the verdict: each says that it waits, both
    succeed, and no process of one is timed while one of the other is."""
    runs = [tune_process(name) for name in "ab"]
    while not all("another run is timing" in (tmp_path / f"{name}.err").read_text() for name in "ab"):
        assert [each.poll() for each in runs] == [None, None]
        time.sleep(0.05)
    holder.kill()
    assert [each.wait(600) for each in runs] == [0, 0], (tmp_path / "a.err").read_text()
    spans = CallLog(tmp_path / "calls").timed_spans()
    assert len(spans) >= 2 * 4
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
    assert not is_taken(tmp_path / "locks")


@pytest.mark.slow
@pytest.mark.usefixtures("real_clock")
def test_a_killed_run_frees_the_device_for_another_one(tmp_path, tune_process):
    """kill -9 of one of two `tune`: the other one goes on to its verdict, and `resume` completes the first."""
    killed, other = tune_process("a"), tune_process("b")
    while not all(list(tmp_path.glob(f"studies/{name}/trials/*/outcome.json")) for name in "ab"):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    assert other.wait(600) == 0
    said = [path.read_text() for path in tmp_path.glob("studies/b/**/stderr.txt")]
    assert said
    assert not any("timed beside another trial" in each for each in said)
    assert tune_process("a", "resume", "a").wait(600) == 0
