"""Shared by all tests: a tiny model and space for the fake framework, and the command line as a user runs it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import importlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from optuna.storages import InMemoryStorage
from rich.console import Console
from typer.testing import CliRunner

from autotune import doors
from autotune.answer.result import StudyResult
from autotune.backends import registry
from autotune.bench import probe, supervisor_process
from autotune.bench.bench import Bench, Running, Waits
from autotune.bench.local import LocalBench
from autotune.cli import app
from autotune.config import Config
from autotune.environment import describe
from autotune.job import stats
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Failure, Measurement, Outcome, Samples
from autotune.measure.objective import Objective
from autotune.measure.sampling import Reading, SamplingPlan
from autotune.render.terminal import summary
from autotune.space.load import Circumstances, load_space
from autotune.space.space import SearchSpace
from autotune.study import sqlite
from autotune.study.budget import BlockPlan, Budget, BusyMachinePlan
from autotune.study.folder import FolderStudies
from autotune.study.manifest import Manifest
from autotune.study.records import TrialRecord
from autotune.study.study import Study
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.worker.main import leave
from autotune.workload.process_start import library_file
from autotune.workload.workload import Workload
from autotune_fake import clock
from tests import FAKE_BACKEND
from tests.fork_supervisor import ForkServers

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    # In the background of a shell and under nohup they are ignored, and so they would be in the children of tests.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

for name, value in {
    # The two workers of xdist have a core each, and so have the processes of their tests.
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Which vector instructions the processor has is not tried out: six builds for each empty cache.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    # Read when it is imported: nobody waits for a Hub that cannot be reached.
    "HF_HUB_OFFLINE": "1",
}.items():
    os.environ.setdefault(name, value)

pytest_plugins = ("tests.durations",)
REPOSITORY = Path(__file__).resolve().parent.parent
_PACKAGES = "TEST_PACKAGES"
"""Folders of packages that the tests have installed: the PYTHONPATH of the command line."""
os.environ[_PACKAGES] = FAKE_BACKEND
Cli = Callable[..., subprocess.CompletedProcess[str]]

MODEL_FILE = """
import numpy as np


def tiny(rows=4, seed=0):
    weight = np.random.default_rng(seed).normal(size=(8, 8))
    return (lambda x: x @ weight), np.random.default_rng(1).normal(size=(rows, 8))
"""

SPACE_FILE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  behaviour:
    doc: https://example.org/x
    when: {execution: compile}
    values: [right, breaks, wrong, compile_error]
    default: right
  latency_ms: {doc: "https://example.org/x", values: [8, 6, 2], default: 6, untuned: 8}
"""

TORCH_SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://example.org/x", when: {execution: compile}, values: [aot_eager], default: aot_eager}
"""

PARENT = """
import sys
from pathlib import Path
from autotune.bench.local import LocalBench
from autotune.trial.worker.main import leave
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
home = Path(sys.argv[1])
request = TrialRequest.model_validate_json((home / "request.json").read_text())
def tell(stage):
    if stage == "compile":
        print(stage, flush=True)
with LocalBench({}, preload=True, log=home / "log") as runner:
    runner.run(TrialFolder(home / "trial"), request, on_stage=tell)
"""
"""A program that runs the request in a folder as a trial, and prints when it compiles: a parent to be killed."""

QUICK = SamplingPlan(
    max_warmup_s=0.2, min_samples=5, max_samples=20, min_sampling_s=0.02, max_sampling_s=0.2, turn_s=0.02
)
QUICK_BLOCKS = BlockPlan(num_rounds=3, first_look=2, num_looks=1)
QUICK_BUDGET = Budget(
    num_trials=6,
    sampling=QUICK,
    limits=Limits(compile=20, check=20, run=20),
    noise_floor=QUICK_BLOCKS,
    # Three: over two blocks an interval is so wide that chance would decide.
    confirmation=QUICK_BLOCKS.model_copy(update={"first_look": 3}),
    quiet=BusyMachinePlan(look_s=0.02, max_wait_s=0.1),
)
# In blocks: as one long line of JSON, which is YAML too, it takes ten times as long to read.
_QUICK_BUDGET_FILE = yaml.safe_dump(QUICK_BUDGET.model_dump(mode="json", exclude={"num_trials", "limits"}))


def pytest_collection_finish() -> None:
    """What has been imported stays: no collection of garbage looks through it again, which takes up to a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`fast_cases("a", "b-c")`: the cases of a test with none of these for id, or a part of it, are slow."""
    for item in items:
        marker, case = item.get_closest_marker("fast_cases"), getattr(item, "callspec", None)
        if marker and (case is None or not {case.id, *case.id.split("-")}.intersection(marker.args)):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def measurement() -> Measurement:
    """A real one that was recorded, as if it had been made on this machine."""
    recorded = Measurement.model_validate_json((REPOSITORY / "tests" / "measurement.json").read_text())
    here = describe(device=recorded.environment.device, variables={})
    like_here = {"processor": here.processor, "num_cores": here.num_cores, "inherited": here.inherited}
    return recorded.model_copy(update={"environment": recorded.environment.model_copy(update=like_here)})


def with_latency(measurement: Measurement, latency_s: float, **overrides: object) -> Measurement:
    """The same measurement with other samples; keywords override more of it."""
    samples = Samples(latency_s=(latency_s,) * 3, steady=True, ended_by="turns", turns=(3,))
    return measurement.model_copy(update={"samples": samples, **overrides})


def trial_record(outcome: Outcome | None, number: int = 0, config: Config | None = None, **fields: Any) -> TrialRecord:
    """A trial on record, at no known time unless fields say otherwise."""
    rest = {"violations": {}, "started": None, "ended": None, "running": False, **fields}
    return TrialRecord(number=number, config=config or Config({}), outcome=outcome, **rest)


@functools.cache
def fake_space(content: str) -> SearchSpace:
    """The space of the fake framework with these knobs, or with the content of a whole file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "space.yaml"
        path.write_text(content if "knobs:" in content else f"schema: 1\nframework: fake\nknobs:\n{content}")
        return load_space(path, framework="fake", circumstances=Circumstances(version="0", device="cpu"))


def reopened(study: Study) -> Study:
    """The study as the next process finds it."""
    study.close()
    return FolderStudies(study.folder.parent).open(study.name)


def printed(*things: object) -> str:
    """What a wide terminal shows of them."""
    console = Console(width=300)
    with console.capture() as captured:
        console.print(*things)
    return captured.get()


def summary_of(study: Study) -> str:
    """What `show` prints of the verdict."""
    return printed(summary(StudyResult(study), why=True))


class ScriptedLive(Running):
    """A process that is none: it counts its turns and ends as it was told."""

    def __init__(self, end: Outcome) -> None:
        self._end = end
        self.num_turns = 0
        self.outcome = end if isinstance(end, Failure) else None

    def warm(self, on_stage: object = None) -> None:
        """It is."""

    def turn(self) -> Reading | None:
        """What its measurement says; a process that has failed has no turn."""
        if self.outcome is not None:
            return None
        self.num_turns += 1
        if not isinstance(self._end, Measurement):
            return None
        usage = self._end.samples.usage
        return Reading(self._end.latency.p50, None if usage is None else statistics.median(usage.page_faults))

    def finish(self, on_stage: object = None) -> Outcome:
        self.outcome = self._end
        return self._end


class OneByOne(Bench):
    """A bench of a `run` and a `hold`, by which a trial has ended as soon as it is started."""

    is_here = True
    width = 1

    def start(self, folder: TrialFolder, request: TrialRequest, waits: Waits = "free", *, fresh: bool = False) -> Any:
        return self.hold(folder, request) if waits == "live" else ScriptedLive(self.run(folder, request))

    def first_ready(self, started: Sequence[Running]) -> Running:
        return started[0]

    def drop(self, started: Sequence[Running]) -> None:
        """There is nothing to end."""


@dataclass
class ScriptedTrials(OneByOne):
    """Stands in for `LocalBench` where the figures matter and no process does.

    `outcome_of(name, block, config)` is told the name (its folder's), the number of the block (0 outside of blocks) and
    the config.
    """

    outcome_of: Callable[[str, int, Config], Outcome]
    held: list[tuple[str, int, ScriptedLive]] = field(default_factory=list)

    def run(self, folder: TrialFolder, request: TrialRequest, **_: object) -> Outcome:
        return self.outcome_of(folder.path.name, 0, request.config)

    def hold(self, folder: TrialFolder, request: TrialRequest, **_: object) -> ScriptedLive:
        number = folder.path.parent.name.removeprefix("block-")
        block = int(number) if number.isdecimal() else 0
        live = ScriptedLive(self.outcome_of(folder.path.name, block, request.config))
        self.held.append((folder.path.name, block, live))
        return live


@pytest.fixture(autouse=True)
def _a_quiet_machine(monkeypatch):
    """What else runs beside the tests is not what they are about."""
    monkeypatch.setattr("autotune.tuning.attempts.taken_cores", lambda _: 0.0)


@pytest.fixture
def every_turn(monkeypatch):
    """The untuned model beside the trials takes a turn after each, however long scripted turns take here."""
    monkeypatch.setattr("autotune.tuning.beside.TURN_SHARE", float("inf"))


os.environ[clock.VARIABLE] = "simulated"  # For fixtures of a module too.

_FORKS = ForkServers()
supervisor_process.subprocess = SimpleNamespace(  # type: ignore[assignment]
    Popen=_FORKS.popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
)


_run_probe = probe._run_child


def _fork_probe(framework: str, variables: Mapping[str, str], limits: Limits, folder: TrialFolder) -> str:
    """As `probe._run_child`, which is called itself where a fork of a server has left no answer."""
    if framework in ("torch", "mindspore") and not variables:
        folder.temporary.mkdir(mode=0o700)
        if _FORKS.probe(framework, limits, folder) and (folder.path / probe._ANSWER).exists():
            return "it left no answer"
        shutil.rmtree(folder.temporary)
        shutil.rmtree(folder.scratch, ignore_errors=True)
    return _run_probe(framework, variables, limits, folder)


probe._run_child = _fork_probe


def pytest_unconfigure() -> None:
    """End the servers that supervisors are forked from. Models that no test called need not be told of."""
    _FORKS.close()
    stats._uncalled.clear()


@pytest.fixture(scope="session")
def program() -> Callable[..., subprocess.Popen[bytes]]:
    """`program(code, *arguments)` starts a program in a fork of a process that has imported PyTorch's compiler."""
    return _FORKS.program


@pytest.fixture
def new_python(monkeypatch):
    """Supervisors and probes start as a user's do, in a new Python: see `fork_supervisor`."""
    monkeypatch.setattr(_FORKS, "is_used", False)


@pytest.fixture(scope="session", autouse=True)
def _tables_are_made_once(tmp_path_factory):
    """A new study's database is a copy of one that Optuna has made: its tables take Optuna 0.2 s of CPU time."""
    made = tmp_path_factory.mktemp("tables") / "study.db"
    open_storage = sqlite.open_storage

    def open_copy(path: Path, *, create: bool, timeout_s: float = sqlite.BUSY_TIMEOUT_S) -> Any:
        if create and not path.exists():
            if not made.exists():
                open_storage(made, create=True).remove_session()
            with suppress(OSError):
                shutil.copyfile(made, path)
        return open_storage(path, create=create, timeout_s=timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "open_storage", open_copy)
        yield


class _InMemory(InMemoryStorage):
    engine = SimpleNamespace(dispose=lambda: None)


@pytest.fixture
def in_memory(monkeypatch):
    """Records of studies are kept by this process alone, for tests of rules on scripted trials: four fifths of what
    these take is SQLAlchemy's. What a study opened again knows, and how a file is written, others prove."""
    kept: dict[Path, Any] = {}
    open_storage = sqlite.open_storage

    def open_kept(path: Path, *, create: bool) -> Any:
        path = path.absolute()
        if create:
            path.touch()
            kept[path] = _InMemory()
        return kept[path] if path in kept else open_storage(path, create=False)

    monkeypatch.setattr(sqlite, "open_storage", open_kept)


@pytest.fixture(scope="session", autouse=True)
def _nothing_waits_for_the_disk():
    """No test cuts the power: what a process has handed to the kernel outlives the process without a sync."""

    def use_wal(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        patch.setattr(sqlite, "_use_wal", use_wal)
        yield


def own_children(*, recursive: bool = True) -> list[psutil.Process]:
    """Processes that a test has started."""
    return [each for each in psutil.Process().children(recursive=recursive) if each.pid not in _FORKS.pids]


@pytest.fixture(autouse=True, scope="session")
def _own_device_locks(tmp_path_factory):
    """Tests that run at the same time do not wait for each other, nor for what else the machine does."""
    os.environ["AUTOTUNE_DEVICE_LOCKS"] = str(tmp_path_factory.mktemp("locks"))


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_users(tmp_path_factory):
    """What stands in the own configuration of whoever runs the tests is not what they are about."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture
def no_toolchain(monkeypatch):
    """Inductor precompiles no headers: on a new machine these take a minute, and a tiny model has few kernels."""
    monkeypatch.setitem(registry.BACKENDS, "torch", dataclasses.replace(registry.BACKENDS["torch"], toolchain=None))
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")


@pytest.fixture
def fresh_compiler():
    """Dynamo has compiled nothing, before a test and after it."""
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.utils.counters.clear()
    dynamo.reset()
    yield
    dynamo.reset()


@pytest.fixture
def real_clock(monkeypatch):
    """Calls and compilations of the fake framework take their time, and a model's own seconds count."""
    monkeypatch.delenv(clock.VARIABLE, raising=False)


_OTHERS: set[int] = set()
"""Processes that were no test's when they were last looked at."""


@pytest.fixture(autouse=True)
def _nothing_is_left_running():
    """Whatever a test does, no process of it may outlive it. Whose a process is takes long to find out: that is asked
    where there is one more than after the test before."""
    yield
    alive = set(psutil.pids())
    if alive <= _OTHERS:
        return
    left = [each for each in own_children() if each.status() != psutil.STATUS_ZOMBIE]
    _OTHERS.clear()
    _OTHERS.update(alive - {each.pid for each in left})
    for each in left:
        each.kill()
    assert not left, f"left running: {[each.cmdline() for each in left]}"


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_model.py"
    path.write_text(MODEL_FILE)
    return path


@pytest.fixture
def space_file(tmp_path: Path) -> Path:
    path = tmp_path / "fake_space.yaml"
    path.write_text(SPACE_FILE)
    return path


@pytest.fixture
def space() -> SearchSpace:
    return fake_space(SPACE_FILE)


@pytest.fixture
def workload(model_file: Path) -> Workload:
    reference = f"{model_file}:tiny"
    return Workload(
        model=reference, reference=reference, framework="fake", device="cpu", search_path=str(model_file.parent)
    )


@pytest.fixture
def make_request(tmp_path: Path, workload: Workload) -> Callable[..., TrialRequest]:
    """A request for the fake framework; keywords override."""

    def make(settings: dict[str, object] | None = None, **overrides: object) -> TrialRequest:
        fields: dict[str, object] = {
            "number": 0,
            "workload": workload,
            "config": Config.model_validate(settings or {}),
            "untuned": settings is None,
            "tolerance": 1e-3,
            "reference": str(tmp_path / "reference.npz"),
            "cache": str(tmp_path / "cache"),
            "cold": True,
            "sampling": QUICK,
            "limits": QUICK_BUDGET.limits,
            **overrides,
        }
        return TrialRequest.model_validate(fields)

    return make


@pytest.fixture
def run_trial(tmp_path: Path, make_request: Callable[..., TrialRequest]) -> Callable[..., Outcome]:
    """Run one config of the fake framework in a real child, after the untuned model has left its reference."""

    def run(settings: dict[str, object], *, fresh: bool = False, **overrides: object) -> Outcome:
        with LocalBench({}, preload=True, log=tmp_path / "supervisor.log") as runner:
            runner.run(TrialFolder(tmp_path / "untuned"), make_request())
            return runner.run(TrialFolder(tmp_path / "trial"), make_request(settings, **overrides), fresh=fresh)

    return run


@pytest.fixture
def make_manifest(workload: Workload, space: SearchSpace) -> Callable[..., Manifest]:
    def make(name: str = "s", **overrides: object) -> Manifest:
        fields: dict[str, object] = {
            "schema": 4,
            "id": uuid.uuid4().hex,
            "name": name,
            "created": "2026-01-01T00:00:00+00:00",
            "autotune_version": "0",
            "optuna_version": "0",
            "workload": workload,
            "framework_version": "0",
            "space_file": "fake_space.yaml",
            "space": space.model_copy(update={"framework": overrides.get("workload", workload).framework}),
            "objectives": (Objective(),),
            "constraints": (),
            "tolerance": 1e-3,
            "variables": {},
            **overrides,
        }
        return Manifest.model_validate(fields)

    return make


@pytest.fixture
def make_study(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> Callable[..., Study]:
    """A new study of the fake framework. `constraints` as a user writes them."""

    def make(name: str = "s", *, constraints: tuple[str, ...] = (), **overrides: object) -> Study:
        parsed = tuple(Constraint.parse(text) for text in constraints)
        return FolderStudies(tmp_path / "studies").create(make_manifest(name, constraints=parsed, **overrides))

    return make


def _run_in_a_fork(variables: Mapping[str, str], folder: TrialFolder) -> str:
    """As `probe._run_child`, in a fork of this process, which has imported what the child would import first."""
    child = os.fork()
    if child == 0:
        try:
            os.environ.update(variables)
            for number, log in ((1, folder.stdout), (2, folder.stderr)):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            probe.main(folder)
        finally:
            leave(0)
    os.waitpid(child, 0)
    return "it left no answer"


def run_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process, in a folder, and return what it printed. Trials are processes."""
    run_child = probe._run_child

    def run_probe(framework: str, variables: Mapping[str, str], limits: Limits, folder: TrialFolder) -> str:
        return (
            _run_in_a_fork(variables, folder)
            if framework == "fake"
            else run_child(framework, variables, limits, folder)
        )

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "_run_child", run_probe)
        patch.chdir(folder)
        result = CliRunner().invoke(
            app, arguments, env={"PYTHONPATH": os.environ[_PACKAGES], "COLUMNS": "200"}, prog_name="cli.py"
        )
    for number, handler in handlers.items():
        signal.signal(number, handler)
    stderr = result.stderr
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        stderr += "".join(traceback.format_exception(result.exception))
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, stderr)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A command line in this process, in the test's folder: see `run_here`."""

    def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return run_here(tmp_path, *arguments)

    return run


@pytest.fixture
def cli_process(tmp_path: Path) -> Cli:
    """Run `python cli.py ...` in a child, in the test's folder, and return what it printed."""

    def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            cli_command(*arguments), cwd=tmp_path, env=cli_environment(), capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    return run


def cli_command(*arguments: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "cli.py"), *arguments]


def cli_environment() -> dict[str, str]:
    # A checkout must work without being installed, and a narrow terminal must not change what scripts see.
    return {**os.environ, "PYTHONPATH": os.environ[_PACKAGES], "COLUMNS": "200"}


@pytest.fixture
def install_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package that adds a framework, here and in all child processes, as pip would leave it on disk.

    Called with the framework's name, the name of the package's module, the module's source, which has `ENTRY`, and the
    group of another door.
    """
    folder = tmp_path / "site-packages"
    modules: set[str] = set()

    def install(name: str, module: str, source: str, group: str = registry.DOOR.group) -> None:
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:ENTRY\n")
        (folder / f"{module}.py").write_text(source)
        modules.add(module)
        importlib.invalidate_caches()  # An import may have looked for the folder before it was there.
        forget_installed_backends()

    def forget_installed_backends() -> None:
        doors.forget()
        for module in modules:
            sys.modules.pop(module, None)

    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(REPOSITORY), FAKE_BACKEND]))
    monkeypatch.setenv(_PACKAGES, os.pathsep.join([str(folder), FAKE_BACKEND]))
    yield install
    forget_installed_backends()


SHAM = """
import dataclasses
import autotune_fake

ENTRY = dataclasses.replace(autotune_fake.ENTRY, process_variables={"SHAM": "1"}, cache_is_exact=False)
"""


@pytest.fixture
def sham_backend(install_backend: Callable[[str, str, str], None]) -> None:
    """The fake framework under a second name, with a variable that tells its processes: for studies of two frameworks.
    An installed package adds it."""
    install_backend("sham", "autotune_sham", SHAM)


@pytest.fixture
def budget_file(tmp_path: Path) -> Path:
    """Little is measured under it: enough for effects as large as those of the tests."""
    path = tmp_path / "quick_budget.yaml"
    path.write_text(_QUICK_BUDGET_FILE)
    return path


@pytest.fixture
def write(tmp_path: Path, exported: dict[str, Any]) -> Callable[..., Path]:
    """Write the test file's own export with changes applied by a function, and return its path."""

    def write(change: Callable[[dict[str, Any]], object] = lambda content: None) -> Path:
        content = copy.deepcopy(exported)
        change(content)
        path = tmp_path / "best.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def jemalloc(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real allocator to preload, which this process and its children find."""
    path = library_file("allocator", "jemalloc")
    if path is None:
        pytest.skip("no jemalloc is installed")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(path.parent))
    return path


@pytest.fixture
def tune_fake(cli: Cli, model_file: Path, space_file: Path, budget_file: Path) -> Cli:
    """`tune` on the fake framework with a quick budget; further arguments are appended."""

    def run(*arguments: str, model: str | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        space = () if "--space" in arguments else ("--space", str(space_file))
        return cli(
            "tune", "--model", model or f"{model_file}:tiny", "--framework", "fake", "--device", "cpu",
            *space, "--study", "s", "--budget", str(budget_file), *arguments, timeout=timeout,
        )  # fmt: skip

    return run
