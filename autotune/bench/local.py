"""`LocalBench`: trials in processes of this machine, under a supervisor for each framework.

Whatever happens to a child, the result is a value. The parent blocks in a read; it never polls beside the process that
is being timed.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType

from autotune.backends.registry import entry_of
from autotune.bench.bench import Bench, Process, Running, StageCallback, Waits
from autotune.bench.builder import IMPORT_LIMIT_S, Builder, job_at_rest
from autotune.bench.exit_status import outcome_of, require_disk
from autotune.bench.messages import (
    FORK_SERVER,
    TRIAL,
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
from autotune.bench.supervisor_process import SupervisorProcess
from autotune.bench.toolchains import Toolchains, compiles
from autotune.environment import num_oom_kills
from autotune.errors import SetupError
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.measure.sampling import Reading
from autotune.own_folders import remove_abandoned
from autotune.trial.deadline import SHORTEST_S
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Device, Workload

_NAMES = itertools.count()


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
        python: Path | None = None,
    ) -> None:
        """`python`: the interpreter of another environment, in which all processes run."""
        self._variables = variables
        self._python = python
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
        return self._of(request.workload).start(folder, request, waits, fresh=fresh)

    def run_program(
        self, framework: str, folder: TrialFolder, program: str, limits: Limits, forked_for: Device | None = None
    ) -> Outcome:
        """Run another module of this package with the folder as its argument, and wait for its end: in a new Python, or
        in a fork of the process that trials on this device come from, where there is one. What it leaves behind is
        killed. Returns how it ended as a `Failure`, unless it left an outcome."""
        supervised = self._of_framework(framework, forked_for or "cpu")
        return supervised.run_program(folder, program, limits, fresh=forked_for is None)

    def build_ahead(self, workload: Workload, folder: TrialFolder, limits: Limits) -> str | None:
        """Build a model in a process that trials will be forked from, and answer what its folder asks of the model
        (`probe`). Why it holds none, where that is so."""
        return self._of(workload).builder.hold(workload, folder, limits)

    def leave(self, *, holds: bool) -> None:
        """Nothing is run here any more: the supervisors stay for the next bench that wants such ones, if there may be
        one (`kept_supervisors`), with the model that they hold if trials share it."""
        for supervised in self._of_frameworks.values():
            supervised.leave(holds=holds)

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

    def prepare(self, workload: Workload, most_s: float = math.inf) -> None:
        self._of(workload).prepare(workload, most_s)

    @property
    def lacks(self) -> str | None:
        """See `Bench`."""
        return next((each.lacks for each in self._of_frameworks.values() if each.lacks is not None), None)

    @property
    def built_apart(self) -> str | None:
        """See `Bench`."""
        return next(filter(None, (each.builder.lacks for each in self._of_frameworks.values())), None)

    def new_block(self) -> None:
        """Live processes are forks of a process of their own from now on, and after the next call of the one that the
        trials come from, whose memory has another layout: the blocks use the two in turns. The first begins when it may
        be needed soon, beside whatever is at work. Nothing changes where nothing was imported ahead."""
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
        """End the supervisors, which kill all their processes, wait for that, and remove what these were kept from."""
        for supervised in self._of_frameworks.values():
            supervised.close()
        remove_abandoned()

    def _of(self, workload: Workload) -> _Supervised:
        """`workload`: that of all trials of the framework here, so far as what they need is alike."""
        return self._of_framework(workload.framework, workload.device, workload.imported)

    def _of_framework(self, framework: str, device: Device = "cpu", of_model: Sequence[str] = ()) -> _Supervised:
        if framework not in self._of_frameworks:
            entry = entry_of(framework)
            preload = self._preload if self._preload is not None else not entry.holds_fresh
            modules = entry.preloaded_on(device) if preload else ()
            if entry.imports_ahead in modules:
                modules = (*modules, *of_model)
            self._of_frameworks[framework] = _Supervised(
                framework, self._variables, self._quiet, modules,
                log=self._log, on_queued=self._on_queued, python=self._python,
            )  # fmt: skip
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
    """The trials of one framework, their supervisor, and what they need beside it: a toolchain, a fork server."""

    def __init__(
        self,
        framework: str,
        variables: dict[str, str],
        quiet: _Quiet,
        modules: Sequence[str],
        *,
        log: Path | None,
        on_queued: Callable[[], None],
        python: Path | None = None,
    ) -> None:
        self._entry = entry_of(framework)
        self._python = python
        self.quiet = quiet
        self._on_queued = on_queued
        self._modules = modules
        """What its supervisor and fork server import."""
        self._variables = {**self._entry.process_variables, **variables}
        self._log = log
        self.supervisor: SupervisorProcess | None = None
        self.running: dict[str, _Process] = {}
        self.has_servers = bool(self._modules) and self._entry.imports_ahead is not None
        self._server: _Process | None = None
        """The fork server, which the blocks use in turns with the supervisor."""
        self.lacks: str | None = None
        """See `Bench`."""
        self.builder = Builder(self)
        self._num_blocks = 0
        """From the first one on live processes are forks, though the framework's could be new Pythons."""
        self._is_prepared = False
        self._toolchains = Toolchains(self, framework, self._variables, has_any=python is None)

    def start(self, folder: TrialFolder, request: TrialRequest, waits: Waits, *, fresh: bool) -> _Process:
        """See `Bench`. What is to run at once beside others at work is gated as they are."""
        begun = time.monotonic()
        if waits == "live":
            # Where the model's own modules are imported ahead, a new Python would import them once more.
            is_ahead = bool(request.workload.imported) and set(request.workload.imported) <= set(self._modules)
            fresh = self._entry.holds_fresh and not self._num_blocks and not is_ahead and not self.builder.is_used
        request = self._toolchains.given_to(request)
        on_device = request.workload.device != "cpu" and not request.workload.built_once
        if on_device and self._is_prepared and self.has_servers:
            self._begun_server()  # It imports while the untuned model's process opens the driver.
        if waits == "free" and any(process.may_be_paused for process in self.running.values()):
            waits = "gated"
        started = _Process(self, folder, request, waits, fresh=fresh)
        started.begun = begun
        self.launch(started)
        if self._is_prepared and self.has_servers and not self.builder.is_used and compiles(request):
            self._begun_server()
        return started

    def run_program(self, folder: TrialFolder, program: str, limits: Limits, *, fresh: bool) -> Outcome:
        """See `LocalBench`."""
        return self.begin(program, folder, limits, waits="free", fresh=fresh).wait()

    def leave(self, *, holds: bool) -> None:
        """See `LocalBench`."""
        held = self.builder.leave()
        holder = None if held is None else self.running.get(held.job or "")
        if holder is not None and not holds:
            holder.kill()
            holder.wait()
        if self.supervisor is not None and set(self.running.values()) <= {holder}:
            self.supervisor.leave(held if holds else None)
            self.supervisor = None

    def launch(self, process: _Process) -> None:
        """Write its request and start it. One that cannot be started has a failure as its outcome. Raises SetupError
        if the disk is full."""
        folder, request = process.folder, process.request
        assert request is not None, "it is a trial"
        require_disk(folder.path)
        try:
            folder.write_request(request)
        except OSError as error:
            raise SetupError(f"cannot write {folder.path}: {error.strerror}") from None
        self._send_start(process, request.limits, TRIAL, echo=self._log is None)

    def prepare(self, workload: Workload, most_s: float) -> None:
        """See `Bench`. Where another process makes the toolchain just now, configs that compile wait."""
        self._is_prepared = True
        self._toolchains.begin_ahead(workload, most_s)

    def new_block(self) -> None:
        """See `LocalBench`."""
        self._num_blocks += self.has_servers

    def close(self) -> None:
        """End the supervisor, which kills all its processes, and wait for that. What was started ahead and not waited
        for yet is started anew when it is."""
        if self.supervisor is None:
            return
        supervisor, self.supervisor = self.supervisor, None
        supervisor.close()
        running = list(self.running.values())
        self.running.clear()
        self.builder.end()
        self._server = None
        for process in running:
            process.end(None)
        self._toolchains.settle()

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
                self._toolchains.settle()
            case Refused():
                self.running.pop(event.job).refuse(event.error)
                self._toolchains.settle()
            case StageReached() | Queued():
                try:
                    self._on_queued() if isinstance(event, Queued) else self.running[event.job].reach(event.stage)
                except BaseException:
                    self.close()
                    raise
            case Ready():
                pass  # `first_ready` waits for it.

    def _begin_supervisor(self, limits: Limits) -> str | None:
        """Where none runs; it may hold a model already. Returns why there is none."""
        if self.supervisor is None:
            try:
                starting = SupervisorProcess.begin(self._modules, self._variables, self._log, self._python)
                starting.wait_until_ready(min(limits.start, limits.total))
            except SetupError as error:
                return f"{error}"
            self.supervisor, self.lacks = starting, starting.lacks
            if (held := starting.take()) is not None:
                self.builder.take(held)
        return None

    def _send_start(self, process: _Process, limits: Limits, program: str, *, echo: bool) -> None:
        lacks = self._begin_supervisor(limits)
        server = None if lacks else self._server_for(process)
        lacks = lacks or self._begin_supervisor(limits)  # It may have been lost while the server was waited for.
        if lacks is not None:
            process.refuse(lacks)
            return
        job = str(process.folder.path)
        self.running[job] = process
        how = {"fresh": process.fresh, "stops": process.stops, "echo": echo}
        given = limits.model_dump(exclude_none=True)
        if limits.wall is not None:  # What was waited for first took its share of the run's time.
            given["wall"] = max(limits.wall - (time.monotonic() - process.begun), SHORTEST_S)
        self.send(Start(job, given, program, process.waits, **how, fork_of=server))

    def _server_for(self, process: _Process) -> str | None:
        """Job of the fork server that a trial comes from, once it rests. None: it comes from the supervisor, as live
        ones do before the first block, in every second one, and where the server did not come."""
        if process.fresh or process.request is None:
            return None
        builder = self.builder.job_for(process.request)
        if builder is not None or process.waits != "live" or self._num_blocks % 2 == 0:
            return builder
        return job_at_rest(self._begun_server(), self.quiet)

    def _begun_server(self) -> _Process:
        """The fork server. One that failed is not tried again."""
        if self._server is None:
            name = f"autotune-forks-{os.getpid()}-{next(_NAMES)}"  # No such folder is made.
            folder = TrialFolder(Path(tempfile.gettempdir(), name))
            self._server = self.begin(FORK_SERVER, folder, Limits(start=IMPORT_LIMIT_S), echo=True)
        return self._server

    def begin(
        self, program: str, folder: TrialFolder, limits: Limits, *, waits: Waits = "gated", fresh: bool = True,
        echo: bool = False,
    ) -> _Process:  # fmt: skip
        """See `Supervised`."""
        started = _Process(self, folder, None, waits, fresh=fresh)
        self._send_start(started, limits, program, echo=echo)
        return started

    @property
    def requests(self) -> list[TrialRequest]:
        """See `Making`."""
        return [process.request for process in self.running.values() if process.request is not None]

    def resting_server(self, folder: TrialFolder) -> _Process:
        """See `Supervised`."""
        server = _Process(self, folder, None, "gated", fresh=False)
        server.stage = Stage.WAIT
        self.running[str(folder.path)] = server
        return server


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
        self._is_awaited = waits == "free" or request is None
        """Somebody has begun to wait for it. Before, losing it with its supervisor costs nobody anything."""
        self._must_start_anew = False
        self._oom_kills = num_oom_kills()
        self.begun = time.monotonic()
        """When it was asked for."""

    @property
    def is_ready(self) -> bool:
        return self._must_start_anew or super().is_ready

    @property
    def stops(self) -> bool:
        """It stands still while it waits for its turn. Whether that is safe with a device's driver was not measured."""
        return self.waits != "free" and self.request is not None and self.request.workload.device == "cpu"

    @property
    def may_be_paused(self) -> bool:
        """It is at work, and where that is safe. One that is not gated takes its samples without being told."""
        at_work = self.outcome is None and self.stage is not Stage.WAIT
        return at_work and (self.stops or (self.request is None and self.waits != "free"))

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

    def turn(self) -> Reading | None:
        if self.outcome is not None:
            return None
        with self.supervised.quiet.around(self):
            self._begin()
            self.wait_until_ready()
        return self.folder.read_turn() if self.outcome is None else None

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
        self.outcome = Failure(reason=Reason.SETUP, stage=Stage.START, error=error, evidence=str(self.folder.stderr))

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
