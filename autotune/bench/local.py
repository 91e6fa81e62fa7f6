"""`LocalBench`: trials in processes of this machine, under a supervisor for each framework.

Whatever happens to a child, the result is a value. The parent blocks in a read; it never polls beside the process that
is being timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType

from autotune.backends.registry import entry_of, framework_version
from autotune.bench.bench import Bench, Process, Running, StageCallback, Waits
from autotune.bench.exit_status import num_oom_kills, outcome_of, require_disk
from autotune.bench.messages import (
    Exited,
    Finish,
    Kill,
    Order,
    Pause,
    Queued,
    Ready,
    Refused,
    Resume,
    StageReached,
    Start,
    Turn,
)
from autotune.bench.supervisor_process import Following, SupervisorProcess
from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.toolchain import ensure_toolchain

_TOOLCHAIN_LIMIT_S = 600.0
"""Making the toolchain takes 30 s of CPU time with inductor; the machine may be slow or busy."""


class LocalBench(Bench):
    """Runs trials of any framework. A context manager: no process is left behind.

    `variables` are set before any Python of a trial starts. `preload` forks trials from a process that has imported the
    framework; with None only where a framework's live processes are forks, with False never. What is started `fresh`,
    and live processes before the first `new_block`, get a new Python anyway. The supervisors' output goes to the file
    `log`; with None it goes to this process's stderr, and so does the trials' output.

    On a CPU whatever is at work is paused while a process is timed (`_Quiet`).
    `on_queued` is called, once, when a trial waits for the device, which a trial of another run has.
    """

    is_here = True
    width = None

    def __init__(
        self,
        variables: dict[str, str],
        *,
        preload: bool | None = None,
        log: Path | None,
        on_queued: Callable[[], None] = lambda: None,
    ) -> None:
        self._variables = variables
        self._preload = preload
        self._log = log
        self._on_queued = cache(on_queued)
        self._of_frameworks: dict[str, _Supervised] = {}
        self._quiet = _Quiet(self._of_frameworks)

    def __enter__(self) -> LocalBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(
        self, folder: TrialFolder, request: TrialRequest, waits: Waits = "free", *, fresh: bool = False
    ) -> Running:
        return self._of(request.workload.framework).start(folder, request, waits, fresh=fresh)

    def run_program(self, framework: str, folder: TrialFolder, program: str, limits: Limits) -> Outcome:
        """Run another module of this package in a new Python, with the folder as its argument, and wait for its end.
        What it leaves behind is killed. Returns how it ended as a `Failure`, unless it left an outcome."""
        return self._of(framework).run_program(folder, program, limits)

    def first_ready(self, started: Sequence[Running]) -> Running:
        """The first one that is ready. All are of one framework: nothing is started ahead for two."""
        processes = [running for running in started if isinstance(running, _Process)]
        if not any(process.is_ready for process in processes):
            self._quiet.end()
        while True:
            for process in processes:
                if process.is_ready:
                    return process
            processes[0].supervised.listen()

    def new_block(self) -> None:
        """Live processes are forks of one process from now on, and of another one after each call, with a memory layout
        of its own. That of the next block starts already, and rests before this one's first turn. Nothing changes where
        nothing was imported ahead."""
        for supervised in self._of_frameworks.values():
            supervised.new_block()

    def quiet(self) -> AbstractContextManager[None]:
        return self._quiet.lasting()

    def drop(self, started: Sequence[Running]) -> None:
        processes = [running for running in started if isinstance(running, _Process)]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

    def close(self) -> None:
        """End the supervisors, which kill all their processes, and wait for that."""
        for supervised in self._of_frameworks.values():
            supervised.close()

    def _of(self, framework: str) -> _Supervised:
        if framework not in self._of_frameworks:
            preload = self._preload if self._preload is not None else not entry_of(framework).holds_fresh
            self._of_frameworks[framework] = _Supervised(
                framework, self._variables, self._quiet, preload=preload, log=self._log, on_queued=self._on_queued
            )
        return self._of_frameworks[framework]


class _Quiet:
    """Who stands still while a process is timed: all others of the bench that are at work, on a CPU.

    They are paused before it begins, and go on behind it; inside of `lasting` they stay paused until its end. Whoever
    waits for one that is not ready ends the quiet first, since it may be paused; the next process that is timed begins
    it again.
    """

    def __init__(self, of_frameworks: Mapping[str, _Supervised]) -> None:
        self._of_frameworks = of_frameworks
        self._depth = 0

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """See `Bench.quiet`."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.end()

    @contextmanager
    def around(self, timed: _Process) -> Iterator[None]:
        """For what one process is timed in."""
        with self.lasting():
            for process in self._processes():
                if process is not timed:
                    process.pause()
            timed.go_on()
            yield

    def end(self) -> None:
        """Let all go on."""
        for process in self._processes():
            process.go_on()

    def _processes(self) -> list[_Process]:
        return [process for supervised in self._of_frameworks.values() for process in supervised.running.values()]


class _Supervised:
    """The trials of one framework, and their supervisor: the present one, and that of the next block."""

    def __init__(
        self,
        framework: str,
        variables: dict[str, str],
        quiet: _Quiet,
        *,
        preload: bool,
        log: Path | None,
        on_queued: Callable[[], None],
    ) -> None:
        self._entry = entry_of(framework)
        self.quiet = quiet
        self._on_queued = on_queued
        self._framework = framework
        self._modules = self._entry.preloaded if preload else ()
        self._variables = {**self._entry.process_variables, **variables}
        self._log = log
        self.supervisor: SupervisorProcess | None = None
        self._following = Following()
        self.holds_forks = False
        """Live processes are forks, though the framework's could be new Pythons."""
        self.running: dict[str, _Process] = {}
        self._toolchain: tuple[Path | None] | None = None
        """In a tuple: (None,) means that it cannot be made."""

    def start(self, folder: TrialFolder, request: TrialRequest, waits: Waits, *, fresh: bool) -> _Process:
        """See `Bench`. What is to run at once beside others at work is gated as they are."""
        if waits == "live":
            fresh = self._entry.holds_fresh and not self.holds_forks
        elif any(process.may_be_paused for process in self.running.values()):
            waits = "gated"
        started = _Process(self, folder, self._with_toolchain(request), waits, fresh=fresh)
        self.launch(started)
        return started

    def run_program(self, folder: TrialFolder, program: str, limits: Limits) -> Outcome:
        """See `LocalBench`."""
        started = _Process(self, folder, None, "free", fresh=True)
        self._send_start(started, limits, program, stops=False, echo=False)
        return started.wait()

    def launch(self, process: _Process) -> None:
        """Write its request and start it. One that cannot be started has a failure as its outcome. Raises HarnessError
        if the disk is full."""
        folder, request = process.folder, process.request
        assert request is not None, "it is a trial"
        require_disk(folder.path)
        try:
            folder.write_request(request)
        except OSError as error:
            raise HarnessError(f"cannot write {folder.path}: {error.strerror}") from None
        # Whether stopping is safe with a device driver in the process was not measured.
        stops = process.waits != "free" and request.workload.device == "cpu"
        self._send_start(process, request.limits, "trial.worker.main", stops=stops, echo=self._log is None)

    def new_block(self) -> None:
        """See `LocalBench`."""
        if not self._modules or self._entry.imports_ahead is None or self.running:
            return
        self.holds_forks = True
        following = self._following.take()
        if following is not None:
            self.close()
            self.supervisor = following
        self._following.begin(self._begin_supervisor)

    def settle(self) -> None:
        """Wait until nothing starts beside a process that is to be timed."""
        try:
            self._following.settle()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the supervisor, which kills all its processes, and wait for that. What was started ahead and not waited
        for yet is started anew when it is."""
        self._following.close()
        if self.supervisor is None:
            return
        supervisor, self.supervisor = self.supervisor, None
        supervisor.close()
        running = list(self.running.values())
        self.running.clear()
        for process in running:
            process.end(None)

    def send(self, order: Order) -> None:
        """Send an order to the supervisor. If it was lost, so are its trials; the next trial gets a new supervisor."""
        if self.supervisor is None:
            return
        try:
            self.supervisor.send(order)
        except BrokenPipeError:
            self.close()
        except BaseException:
            self.close()
            raise

    def listen(self) -> None:
        """Wait for one event and pass it to the trial process that it is about."""
        if self.supervisor is None:
            return
        try:
            event = self.supervisor.next_event()
        except BaseException:
            self.close()
            raise
        match event:
            case None:
                self.close()
            case Exited():
                self.running.pop(event.job).end(event)
            case Refused():
                self.running.pop(event.job).refuse(event.error)
            case StageReached() | Queued():
                try:
                    self._on_queued() if isinstance(event, Queued) else self.running[event.job].reach(event.stage)
                except BaseException:
                    self.close()
                    raise
            case Ready():
                """It was waited for already."""

    def _send_start(self, process: _Process, limits: Limits, program: str, *, stops: bool, echo: bool) -> None:
        if self.supervisor is None:
            try:
                starting = self._begin_supervisor()
                starting.wait_until_ready(min(limits.start, limits.total))
            except HarnessError as error:
                process.refuse(str(error))
                return
            self.supervisor = starting
        job = str(process.folder.path)
        self.running[job] = process
        self.send(Start(job, limits.model_dump(), program, process.waits, fresh=process.fresh, stops=stops, echo=echo))

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


class _Process(Process):
    """A started trial, as seen from the parent."""

    def __init__(
        self, supervised: _Supervised, folder: TrialFolder, request: TrialRequest | None, waits: Waits, *, fresh: bool
    ) -> None:
        super().__init__(supervised.listen)
        self.supervised = supervised
        self.folder = folder
        self.request = request
        """None: it is no trial."""
        self.waits: Waits = waits
        self.fresh = fresh
        self._is_paused = False
        self._is_awaited = waits == "free"
        """Somebody has begun to wait for it. Before, losing it with its supervisor costs nobody anything."""
        self._must_start_anew = False
        self._oom_kills = num_oom_kills()

    @property
    def is_ready(self) -> bool:
        return self._must_start_anew or super().is_ready

    @property
    def may_be_paused(self) -> bool:
        """It is at work, and where that is safe. One that is not gated takes its samples without being told."""
        at_work = self.outcome is None and self.stage is not Stage.WAIT
        is_on_cpu = self.request is None or self.request.workload.device == "cpu"
        return at_work and self.waits != "free" and is_on_cpu

    def pause(self) -> None:
        """Let it stand still while another one is timed, unless it is at rest."""
        if self.may_be_paused and not self._is_paused:
            self._is_paused = True
            self.order(Pause)

    def go_on(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.order(Resume)

    def warm(self, on_stage: StageCallback | None = None) -> None:
        self._await(on_stage)
        self._wait_for_readiness()

    def turn(self) -> float | None:
        if self.outcome is not None:
            return None
        self.supervised.settle()
        with self.supervised.quiet.around(self):
            self._begin()
            self.wait_until_ready()
        return self.folder.read_turn_s() if self.outcome is None else None

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:
        self._await(on_stage)
        if self.waits == "live":
            self.go_on()
            self.order(Finish)
            return self.wait()
        if self.waits == "gated":
            self._wait_for_readiness()
        with self.supervised.quiet.around(self):
            if self.waits == "gated":
                self._begin()
            return self.wait()

    def kill(self) -> None:
        """Nobody needs it."""
        self._is_awaited = True
        if self._must_start_anew:
            self.refuse("it is not needed")
        self.order(Kill)

    def end(self, exited: Exited | None) -> None:
        """Record that it has ended; None: the supervisor was lost."""
        outcome = outcome_of(self.folder, exited, oom_killed=num_oom_kills() > self._oom_kills)
        self.folder.drop_leftovers()
        self._is_paused = False
        if exited is None and not self._is_awaited:
            self._must_start_anew = True
        else:
            self.outcome = outcome

    def refuse(self, error: str) -> None:
        """Record that it could not be started."""
        self.outcome = Failure(reason=Reason.HARNESS, stage=Stage.START, error=error, evidence=str(self.folder.stderr))

    def order(self, order: type[Turn | Finish | Pause | Resume | Kill]) -> None:
        """Tell the supervisor, as long as it runs."""
        if self.outcome is None and not self._must_start_anew:
            self.supervised.send(order(str(self.folder.path)))

    def _begin(self) -> None:
        """Let it take samples."""
        self.stage = Stage.RUN
        self.order(Turn)

    def _wait_for_readiness(self) -> None:
        if not self.is_ready:
            self.supervised.quiet.end()
            self.wait_until_ready()

    def _await(self, on_stage: StageCallback | None) -> None:
        self._is_awaited = True
        if self._must_start_anew:
            self._must_start_anew, self.stage = False, Stage.START
            self.supervised.launch(self)
        self.watch(on_stage)
