"""Causes that are planted in real processes of real models: each is named, and no other.

All processes of a test have one and the same core, and go before whatever else the machine does, where the system lets
a test make control groups.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from autotune.answer.sections.noise import scatter_in_words
from autotune.config import Config
from autotune.environment import usable_cpus
from autotune.measure.measurement import Measurement
from autotune.measure.sampling import SamplingPlan
from autotune.measure.scatter import Cause, ProcessState, scatter_of, state_of, why_slower
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import repeat_command
from autotune.trial.request import TrialRequest
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MODELS = {
    "elementwise": (f"{REPOSITORY}/benchmarks/models/elementwise_torch.py:elementwise", {}),
    "unet": (f"{REPOSITORY}/benchmarks/models/kinds_torch.py:unet", {"image": 96}),
    "resnet18": ("autotune.models.torch.resnet18:resnet18", {}),
    "vit": ("autotune.models.torch.vit:vit", {}),
}
GIVEN_BACK = {"MALLOC_TRIM_THRESHOLD_": "0"}
KEPT = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0"}
"""What glibc does with freed memory is the same in all processes of a test that is about something else."""
WORDS = {Cause.FAULTS: "page faults", Cause.OTHERS: "other programs", Cause.STOLEN: "CPU quota"}
ALONE = ("taskset", "-c", str(max(usable_cpus())))
"""On one and the same core."""
BUSY = [sys.executable, "-c", "while True: pass"]
ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class Processes:
    """Fresh ones of one model, each a trial of the untuned model as its folder repeats it."""

    def __init__(self, folder: Path, model: str) -> None:
        reference, arguments = MODELS[model]
        self.folder, self.number = folder, 0
        self.workload = Workload(
            model=model, reference=reference, arguments=arguments, framework="torch", device="cpu",
            search_path=str(REPOSITORY),
        )  # fmt: skip

    def state(self, variables: dict[str, str], *around: str) -> ProcessState:
        """What the samples of the next one say; `around`: the command that starts it."""
        self.number += 1
        folder = TrialFolder(self.folder / str(self.number))
        request = TrialRequest(
            number=self.number, workload=self.workload, config=Config({"execution": "eager"}), untuned=True,
            tolerance=1e-3, reference=str(self.folder / "reference.npz"), cache=str(self.folder / "cache"), cold=False,
            sampling=SamplingPlan(max_warmup_s=2, min_samples=10, max_samples=60, max_sampling_s=2),
            variables=variables,
        )  # fmt: skip
        folder.write_request(request)
        command = [*ALONE, *around, "sh", "-c", repeat_command(folder, request)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        outcome = folder.read_outcome()
        assert isinstance(outcome, Measurement), ended.stderr
        found = state_of(outcome)
        assert found is not None
        return found


def named(plain: list[ProcessState], planted: list[ProcessState], cause: Cause) -> None:
    """The cause is named for all of them, in words that name no other; and a job that has it is told so."""
    scatter = scatter_of([*plain, *planted])
    assert scatter is not None, (plain, planted)
    assert scatter.cause is cause, (plain, planted)
    told = scatter_in_words(0, scatter)
    assert [each for each, words in WORDS.items() if words in told] == [cause]
    slowest = max(planted, key=lambda state: state.latency_s)
    assert why_slower(slowest, plain[0].latency_s, plain[0].page_faults) is cause


@contextmanager
def group(name: str, limits: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """A control group that goes before whatever else the machine does; a command that starts another within it."""
    root = Path("/sys/fs/cgroup")
    is_legacy = (root / "cpu").is_dir()
    folder = root / ("cpu" if is_legacy else "") / f"autotune-test-{os.getpid()}-{name}"
    if not is_legacy:
        (root / "cgroup.subtree_control").write_text("+cpu")
    folder.mkdir()
    try:
        first = ("cpu.shares", "262144") if is_legacy else ("cpu.weight", "10000")
        for file, limit in dict([first], **limits).items():
            if (folder / file).exists():
                (folder / file).write_text(limit)
        yield "sh", "-c", ENTER, str(folder)
    finally:
        folder.rmdir()


@pytest.fixture
def first() -> Iterator[tuple[str, ...]]:
    """A command that starts another before all else that runs; where no group can be made, a quiet machine will do."""
    with ExitStack() as stack:
        try:
            command = stack.enter_context(group("first", {}))
        except OSError:
            command = ()
        yield command


@pytest.fixture
def half_a_core() -> Iterator[tuple[str, ...]]:
    """The same within a quota: 5 ms of each 10, so that each call is hit alike."""
    limits = {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "5000", "cpu.max": "5000 10000"}
    with ExitStack() as stack:
        try:
            command = stack.enter_context(group("half", limits))
        except OSError as error:
            pytest.skip(f"no control group can be made here: {error}")
        yield command


@contextmanager
def neighbour(*around: str) -> Iterator[None]:
    """Another program that never rests, on the same core."""
    process = subprocess.Popen([*ALONE, *around, *BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("model", ["elementwise", "unet"])
def test_memory_that_is_given_back(tmp_path, first, model):
    """A C library that gives back all that it can in every second process."""
    processes = Processes(tmp_path, model)
    states = [processes.state(variables, *first) for _ in range(3) for variables in (KEPT, GIVEN_BACK)]
    assert min(state.page_faults for state in states[1::2]) > 1000
    named(states[::2], states[1::2], Cause.FAULTS)


@pytest.mark.parametrize("model", ["resnet18", "vit"])
def test_another_program(tmp_path, first, model):
    """It takes half of the core beside every second process."""
    processes, states = Processes(tmp_path, model), []
    for number in range(6):
        with neighbour(*first) if number % 2 else nullcontext():
            states.append(processes.state(KEPT, *first))
    named(states[::2], states[1::2], Cause.OTHERS)


@pytest.mark.parametrize("model", ["resnet18", "vit"])
def test_a_quota(tmp_path, first, half_a_core, model):
    """Every second process has half a core. Whoever had the other half meanwhile took nothing from it."""
    processes = Processes(tmp_path, model)
    states = [processes.state(KEPT, *around) for _ in range(3) for around in (first, half_a_core)]
    named(states[::2], states[1::2], Cause.STOLEN)


def test_nothing_is_named_where_nothing_was_planted(tmp_path, first):
    """Processes that keep their memory and have the core to themselves."""
    processes = Processes(tmp_path, "vit")
    scatter = scatter_of([processes.state(KEPT, *first) for _ in range(4)])
    assert scatter is None or scatter.cause is None
