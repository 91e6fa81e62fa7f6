"""The parent's side of trials: send requests to the supervisor, wait, and return each `Outcome`.

Whatever happens to the child, the result is a value. The parent blocks in a read; it never polls beside the process
that is being timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from autotune.backends.registry import entry_of, framework_version
from autotune.bench.exit_status import ProcessExit, num_oom_kills, outcome_of, require_disk
from autotune.bench.following import Following
from autotune.bench.supervisor_process import SupervisorProcess
from autotune.bench.trials import LiveTrial, StageCallback
from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.toolchain import ensure_toolchain
from autotune.trial.worker.stages import QUEUED

Waits = Literal["free", "gated", "live"]
"""What a process waits for before it takes samples: nothing, one order to begin, or an order for each turn."""

_TOOLCHAIN_LIMIT_S = 600.0
"""Making the toolchain takes 30 s of CPU time with inductor; the machine may be slow or busy."""


class Runner:
    """Runs trials of one framework. A context manager: no process is left behind.

    `variables` are set before any Python of a trial starts. `preload` forks trials from a process that has imported the
    framework; `run` with `fresh=True`, and `hold` before the first `next_block`, start a new Python anyway. The
    supervisor's output goes to the file `log`; with None it goes to this process's stderr, and so does the trials'
    output (`echo`).

    Prepared trials compile beside each other and beside the one that is run, and are paused whenever a process is
    timed. `on_queued` is called whenever one waits for the device, which a trial of another run has.
    """

    def __init__(
        self,
        framework: str,
        variables: dict[str, str],
        *,
        preload: bool,
        log: Path | None,
        on_queued: Callable[[], None] = lambda: None,
    ) -> None:
        self._entry = entry_of(framework)
        self._on_queued = on_queued
        self._framework = framework
        self._modules = self._entry.preloaded if preload else ()
        self._variables = {**self._entry.process_variables, **variables}
        self._log = log
        self._supervisor: SupervisorProcess | None = None
        self._following = Following()
        self._holds_forks = False
        self._running: dict[str, _Process] = {}
        self._prepared: dict[Path, _Process] = {}
        self._warming: dict[Path, _Process] = {}
        self._toolchain: tuple[Path | None] | None = None
        """In a tuple: (None,) means that it cannot be made."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False, on_stage: StageCallback | None = None
    ) -> Outcome:
        """Write the request, wait for the child, and return its outcome. Raises HarnessError if the disk is full."""
        started = self._prepared.pop(folder.path, None)
        if started is None:
            waits: Waits = "gated" if self._prepared else "free"
            started = self._start(folder, self._with_toolchain(request), fresh=fresh, waits=waits)
        started.watch(on_stage)
        if started.is_gated:
            started.resume()
            self._order_prepared("resume")
            started.wait_for(Stage.WAIT)
            self._order_prepared("pause")
            started.begin()
        outcome = started.wait()
        self._order_prepared("resume")
        return outcome

    def run_program(self, folder: TrialFolder, program: str, limits: Limits) -> Outcome:
        """Run another module of this package in a new Python, with the folder as its argument, and wait for its end.
        What it leaves behind is killed. Returns how it ended as a `Failure`, unless it left an outcome."""
        launched = self._launch(folder, limits, program, fresh=True, waits="free", stops=False, echo=False)
        return launched.wait()

    def hold(self, folder: TrialFolder, request: TrialRequest, *, on_stage: StageCallback | None = None) -> LiveTrial:
        """Start a live process and wait until it is warm. Raises HarnessError if the disk is full."""
        self._order_prepared("pause")
        held = self._warming.pop(folder.path, None) or self._start_live(folder, request)
        held.watch(on_stage)
        held.wait_for(Stage.WAIT)
        return held

    def prepare(self, folder: TrialFolder, request: TrialRequest) -> None:
        """Start a trial that builds, compiles and checks, and waits for its `run` before it is timed."""
        self._prepared[folder.path] = self._start(folder, self._with_toolchain(request), fresh=False, waits="gated")

    def prepare_live(self, folder: TrialFolder, request: TrialRequest) -> None:
        """Start a live process ahead of its `hold`. Processes become warm beside each other."""
        self._order_prepared("pause")
        self._warming[folder.path] = self._start_live(folder, request)

    def next_ready(self, folders: Sequence[TrialFolder]) -> TrialFolder:
        """Wait until one of these prepared processes waits to be timed, or has ended; the first of several that do. One
        that was lost is started by its `run` or `hold`."""
        known = self._prepared | self._warming
        waiting = [(folder, known.get(folder.path)) for folder in folders]
        while True:
            for folder, process in waiting:
                if process is None or process.is_ready:
                    return folder
            self.listen()

    def next_block(self) -> None:
        """Hold forks of one process from now on, and of another one after each call, with a memory layout of its own.

        That of the next block starts already, and rests before this one's first turn. Nothing changes where nothing was
        imported ahead.
        """
        if not self._modules or self._entry.imports_ahead is None or self._running:
            return
        self._holds_forks = True
        following = self._following.take()
        if following is not None:
            self.close()
            self._supervisor = following
        self._following.begin(self._begin_supervisor)

    def settle(self) -> None:
        """Wait until nothing starts beside a process that is to be timed."""
        try:
            self._following.settle()
        except BaseException:
            self.close()
            raise

    def drop_prepared(self) -> None:
        """End the prepared trials that were neither run nor held."""
        for left in (self._prepared, self._warming):
            for folder in left:
                self.send(order="kill", folder=str(folder))
            for each in left.values():
                each.wait()
            left.clear()

    def close(self) -> None:
        """End the supervisor, which kills all its processes, and wait for that."""
        self._following.close()
        if self._supervisor is None:
            return
        supervisor, self._supervisor = self._supervisor, None
        supervisor.close()
        for each in list(self._running.values()):
            each.end(None)
        for left in (self._running, self._prepared, self._warming):
            left.clear()

    def send(self, **order: Any) -> None:
        """Send an order to the supervisor. If it was lost, so are its trials; the next trial gets a new supervisor."""
        if self._supervisor is None:
            return
        try:
            self._supervisor.send(order)
        except BrokenPipeError:
            self.close()
        except BaseException:
            self.close()
            raise

    def listen(self) -> None:
        """Wait for one event and pass it to the trial process that it is about."""
        if self._supervisor is None:
            return
        try:
            event = self._supervisor.next_event()
        except BaseException:
            self.close()
            raise
        if event is None:
            self.close()
            return
        running = self._running[event["folder"]]
        if event["event"] == "ended":
            del self._running[event["folder"]]
            running.end(ProcessExit(event["status"], event["timed_out"], event["stuck"]))
        elif event["event"] == "refused":
            del self._running[event["folder"]]
            running.refuse(event["error"])
        else:
            try:
                self._on_queued() if event["event"] == QUEUED else running.enter(Stage(event["stage"]))
            except BaseException:
                self.close()
                raise

    def _order_prepared(self, order: str) -> None:
        for folder in self._prepared:
            self.send(order=order, folder=str(folder))

    def _start_live(self, folder: TrialFolder, request: TrialRequest) -> _Process:
        return self._start(
            folder, self._with_toolchain(request), fresh=self._entry.holds_fresh and not self._holds_forks, waits="live"
        )

    def _start(self, folder: TrialFolder, request: TrialRequest, *, fresh: bool, waits: Waits) -> _Process:
        require_disk(folder.path)
        try:
            folder.write_request(request)
        except OSError as error:
            raise HarnessError(f"cannot write {folder.path}: {error.strerror}") from None
        # Whether stopping is safe with a device driver in the process was not measured.
        stops = waits != "free" and request.workload.device == "cpu"
        echo = self._log is None
        return self._launch(folder, request.limits, fresh=fresh, waits=waits, stops=stops, echo=echo)

    def _launch(
        self,
        folder: TrialFolder,
        limits: Limits,
        program: str = "trial.worker.main",
        *,
        waits: Waits,
        **order: bool,
    ) -> _Process:
        """Start a program for a folder. One that cannot be started has a failure as its outcome."""
        started = _Process(self, folder, is_gated=waits == "gated")
        refusal = self._require_supervisor(min(limits.start, limits.total))
        if refusal is not None:
            started.refuse(refusal)
            return started
        self._running[str(folder.path)] = started
        names = {"program": program, "folder": str(folder.path), "waits": waits}
        self.send(order="start", limits=limits.model_dump(), **names, **order)
        return started

    def _with_toolchain(self, request: TrialRequest) -> TrialRequest:
        """Make the toolchain before the first config that compiles on a CPU, so that its limits do not include that."""
        entry = self._entry
        compiles = not request.untuned and entry.compiles(request.config)
        if entry.toolchain is None or request.workload.device != "cpu" or not compiles:
            return request
        if self._toolchain is None:
            version = framework_version(self._framework)
            self._toolchain = (ensure_toolchain(self._framework, version, self._variables, self._make_toolchain),)
        (found,) = self._toolchain
        return request if found is None else request.with_toolchain(found)

    def _make_toolchain(self, folder: TrialFolder) -> None:
        assert self._entry.toolchain is not None
        limits = Limits(start=_TOOLCHAIN_LIMIT_S, total=_TOOLCHAIN_LIMIT_S)
        self.run_program(folder, self._entry.toolchain, limits)

    def _begin_supervisor(self) -> SupervisorProcess:
        return SupervisorProcess.begin(self._modules, self._variables, self._log)

    def _require_supervisor(self, limit_s: float) -> str | None:
        """Start a supervisor if there is none. Returns None, or why it could not be started."""
        if self._supervisor is None:
            try:
                starting = self._begin_supervisor()
                starting.wait_until_ready(limit_s)
                self._supervisor = starting
            except HarnessError as error:
                return str(error)
        return None


class _Process:
    """A started trial, as seen from the parent."""

    def __init__(self, runner: Runner, folder: TrialFolder, *, is_gated: bool) -> None:
        self._runner = runner
        self._folder = folder
        self.is_gated = is_gated
        self._on_stage: StageCallback | None = None
        self._stage = Stage.START
        self._oom_kills = num_oom_kills()
        self.outcome: Outcome | None = None

    @property
    def is_ready(self) -> bool:
        """It waits to be timed, or has ended."""
        return self.outcome is not None or self._stage is Stage.WAIT

    def watch(self, on_stage: StageCallback | None) -> None:
        """Tell the stages from now on, and first the one that it is in."""
        self._on_stage = on_stage
        if on_stage is not None and self._stage is not Stage.START:
            on_stage(self._stage)

    def resume(self) -> None:
        """Let one that may be paused go on."""
        self._order("resume")

    def begin(self) -> None:
        """Let a gated one take its samples."""
        if self.outcome is None:
            self._order("turn")

    def turn(self) -> None:
        if self.outcome is None:
            self._runner.settle()
            self._stage = Stage.RUN
            self._order("turn")
            self.wait_for(Stage.WAIT)

    def finish(self) -> Outcome:
        if self.outcome is None:
            self._order("finish")
        return self.wait()

    def wait(self) -> Outcome:
        """Wait until it ends by itself."""
        while self.outcome is None:
            self._runner.listen()
        return self.outcome

    def wait_for(self, stage: Stage) -> None:
        """Wait until it enters the stage, or ends."""
        while self.outcome is None and self._stage is not stage:
            self._runner.listen()

    def enter(self, stage: Stage) -> None:
        self._stage = stage
        if self._on_stage is not None:
            self._on_stage(stage)

    def end(self, ended: ProcessExit | None) -> None:
        """Record that it has ended; `ended` None: the supervisor was lost."""
        self.outcome = outcome_of(self._folder, ended, oom_killed=num_oom_kills() > self._oom_kills)
        self._folder.drop_leftovers()

    def refuse(self, error: str) -> None:
        """Record that it could not be started."""
        self.outcome = Failure(reason=Reason.HARNESS, stage=Stage.START, error=error, evidence=str(self._folder.stderr))

    def _order(self, order: str) -> None:
        self._runner.send(order=order, folder=str(self._folder.path))
