"""The supervisor: starts the trials' processes, watches their stages, and leaves no process behind.

Theory of operation. It is a process between the parent (which runs Optuna and must stay light) and the child (which may
do anything). It has one thread and sleeps in one `select`: for orders of the parent on stdin, for what the children say
on their pipes, for what they print, and for the end of any of them (SIGCHLD writes into a pipe of its own). It answers
with events on stdout. Orders and events are those of `messages`; what a child may do, and when its limits count, is the
table of `child`. What is said here is what holds between the children:

* One is timed at a time, and all others stand still meanwhile. That is the parent's doing, who pauses (`Pause`) what
  starts, compiles or becomes warm, gives one `Turn` and waits, and lets them go on (`Resume`) behind the last of a
  sequence of turns. What waits for its turn is stopped (SIGSTOP) as long as it does, be it for the whole search, since
  threads of a runtime may spin for a while after the last call and disturb the next process
  (docs/decisions/0002-supervisor.md).
* A compiler that times candidates is alone. A child that says so waits until it gets the one place there is: all others
  are paused, those that start meanwhile too. One that the parent has paused does not get it, since another one is timed
  then. What would begin a timing, or pause the one that is alone, is put off until it is done (`_deferred`):

      order    while a compiler is alone       else
      Start    starts, paused by the compiler  starts
      Turn     put off                         wakes it and lets it take its samples
      Finish   ends it                         wakes it and closes its turns, so that it ends
      Pause    put off, for the one alone      pauses it, but for one that waits
      Resume   goes on, if nobody pauses it    goes on, and may be alone now
      Kill     kills it                        kills it

* Whatever ends is cleared away: when a child ends, however it does, what it left is killed before its parent hears of
  it. When stdin closes for any reason (the parent ended, was interrupted, was killed with -9), all children are killed,
  and the supervisor ends. It adopts orphans, on Linux, so compiler processes whose parent died are found and killed
  too; and a child is killed when its supervisor dies.

It can import a framework and fork trials from there, which saves seconds per trial. That is safe only while the
process has a single thread and has run no operator, so it checks (docs/decisions/0002-supervisor.md). It can also let
trials be forked by another process of that kind (`fork_server`), which is a child of it like any other.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from autotune.backends.capabilities import ImportedAhead
from autotune.bench.bounded_log import BoundedLog
from autotune.bench.child import (
    LONGEST_WAIT_S,
    PR_SET_CHILD_SUBREAPER,
    Child,
    State,
    fork_worker,
    prctl,
    run_of,
    spawn_worker,
)
from autotune.bench.fork_server import ForkServer, hold_model, preload
from autotune.bench.messages import (
    FORK_SERVER,
    LACKS,
    Event,
    Exited,
    Finish,
    Kill,
    LogTo,
    Order,
    Pause,
    Queued,
    Ready,
    Refused,
    Resume,
    StageReached,
    Start,
    Turn,
    decode,
    encode,
)
from autotune.bench.reaper import kill_descendants, kill_group, reap_children, unkillable
from autotune.errors import SetupError
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import module_command, start_when_possible
from autotune.trial.worker.stages import GATE_FD_VARIABLE, STAGE_FD_VARIABLE, TURN_FD_VARIABLE

_WAITS_AT = {"live": TURN_FD_VARIABLE, "gated": GATE_FD_VARIABLE, "free": None}
"""The pipe at which a process waits for its turn."""
_BY_PARENT, _BY_COMPILER = "parent", "compiler"
"""Who has paused a trial: it goes on when nobody has."""


class Supervisor:
    """Reads orders from `orders` and writes events to `events` (file descriptors)."""

    def __init__(
        self,
        orders: int,
        events: int,
        preloaded: Sequence[str] = (),
        ahead: ImportedAhead | None = None,
        lacks: str | None = None,
    ) -> None:
        self._orders = orders
        self._events = events
        self._preloaded = preloaded
        """Modules that this process has imported, which trials are forked with."""
        self._ahead = ahead
        self._lacks = lacks
        self._servers: dict[str, ForkServer] = {}
        self._selector = selectors.DefaultSelector()
        self._unread = b""
        self._children: dict[str, Child] = {}
        self._alone: Child | None = None
        """Its compiler times candidates."""
        self._deferred: list[Turn | Pause] = []
        """Orders that begin a timing, until no compiler times candidates."""
        self._wakeup_read, self._wakeup_write = os.pipe()
        for descriptor in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, _exit)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        prctl(PR_SET_CHILD_SUBREAPER, 1)

        for descriptor in (self._orders, self._wakeup_read):
            self._selector.register(descriptor, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until stdin closes: start trials, forward their stages, kill those that time out, reap those that end."""
        try:
            self._tell(Ready(self._lacks))
            while self._react():
                pass
        finally:
            kill_descendants()
            # A parent that was killed cannot do it.
            for folder, child in self._children.items():
                self._close_logs(child.logs)
                TrialFolder(Path(folder)).drop_temporary()

    def _react(self) -> bool:
        """Block until something happens, and handle it. Returns False when the parent is gone."""
        seconds = min((child.seconds_left() for child in self._children.values()), default=LONGEST_WAIT_S)
        ready = {key.fd for key, _ in self._selector.select(min(max(seconds, 0), LONGEST_WAIT_S))}
        for child in self._children.values():
            if child.stages in ready and not self._hear(child):
                self._selector.unregister(child.stages)
            for log in child.logs:
                if log.pipe in ready and not log.forward():
                    self._selector.unregister(log.pipe)
        if self._wakeup_read in ready:
            _drain(self._wakeup_read)
            self._reap()
        for child in [child for child in self._children.values() if child.seconds_left() <= 0]:
            if child.state is State.KILLED:
                unkillable.add(child.pid)
                self._end(child, status=signal.SIGKILL, stuck=True)
            else:
                child.kill(timed_out=True)
        return self._orders not in ready or self._read_orders()

    def _read_orders(self) -> bool:
        """Execute every complete line received. Returns False when stdin is closed."""
        received = os.read(self._orders, 65536)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            order = decode(line)
            assert isinstance(order, Order | LogTo), "the parent gives orders"
            _log_to(order.path) if isinstance(order, LogTo) else self._execute(order)
        return received != b""

    def _execute(self, order: Order) -> None:
        if isinstance(order, Start):
            self._take_in(order)
            return
        child = self._children.get(order.job)
        if child is None or (child.turns is None and not isinstance(order, Kill)):
            return  # It has ended, or is about to; the parent has the event or will get it.
        match order:
            case Turn() if self._alone is not None:
                self._deferred.append(order)
            case Pause() if child is self._alone:
                self._deferred.append(order)
            case Pause():
                child.pause(_BY_PARENT)
            case Resume():
                child.resume(_BY_PARENT)
                self._let_one_be_alone()
            case Kill():
                child.kill(timed_out=False)
            case Finish():
                child.wake()
                child.close_turns()
            case Turn():
                child.wake()
                child.answer()

    def _take_in(self, order: Start) -> None:
        """Start a trial, or tell that it cannot be started."""
        try:
            child = self._start(order)
        except SetupError as error:
            self._tell(Refused(order.job, f"{error}"))
            return
        self._children[child.folder] = child
        for descriptor in (child.stages, *(log.pipe for log in child.logs)):
            self._selector.register(descriptor, selectors.EVENT_READ)
        if self._alone is not None:
            child.pause(_BY_COMPILER)

    def _start(self, order: Start) -> Child:
        folder = TrialFolder(Path(order.job))
        stages, told = os.pipe()
        waits_at = _WAITS_AT[order.waits]
        turn, turns = os.pipe() if waits_at is not None else (None, None)
        for_child = {STAGE_FD_VARIABLE: told}
        if waits_at is not None and turn is not None:
            for_child[waits_at] = turn
        ours = [pipe for pipe in (stages, turns) if pipe is not None]
        logs: list[BoundedLog] = []
        try:
            for path in () if order.echo else (folder.stdout, folder.stderr):
                logs.append(BoundedLog(path))
            pid = self._process_of(order, for_child, logs, ours)
        except SetupError:
            self._close_logs(logs)
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in (*for_child.values(), *(log.end for log in logs)):
                os.close(descriptor)
        wall_s = order.limits.get("wall")
        ends_at = None if wall_s is None else time.monotonic() + wall_s
        return Child(
            order.job, pid, stages, turns, stops=order.stops, limits=order.limits, logs=logs,
            ends_at=ends_at, is_live=order.waits == "live",
        )  # fmt: skip

    def _process_of(self, order: Start, pipes: dict[str, int], logs: Sequence[BoundedLog], ours: Sequence[int]) -> int:
        """Start it in the way that the order names. Returns the process number. Raises SetupError."""
        folder, outputs = TrialFolder(Path(order.job)), [log.end for log in logs]
        inherited = [*ours, *_descriptors_of(logs), *self._descriptors()]
        if order.program == FORK_SERVER:
            return self._start_server(order, pipes, outputs, inherited)
        server = self._servers.get(order.fork_of or "")
        if server is not None and order.fork_of is not None:
            self._children[order.fork_of].wake_for_fork()
            return server.fork(folder, pipes, outputs)
        if self._preloaded and not order.fresh:
            return fork_worker(folder, pipes, outputs, inherited, run_of(order.program, self._ahead))
        command = module_command(order.program, order.job)
        return start_when_possible(lambda: spawn_worker(folder, command, pipes, outputs))

    def _start_server(self, order: Start, pipes: dict[str, int], outputs: list[int], inherited: list[int]) -> int:
        """With the modules that this process has imported: a new Python, or a fork, which then holds a model."""
        if not self._preloaded:
            raise SetupError("nothing was imported that could be forked")
        server, folder = ForkServer(), TrialFolder(Path(order.job))
        given = {**pipes, **server.hand_over()}
        command = module_command(order.program, order.job, *self._preloaded)
        with server.starting():
            if order.fresh:
                pid = start_when_possible(lambda: spawn_worker(folder, command, given, outputs, forks=True))
            else:
                hold = partial(hold_model, ahead=self._ahead)
                pid = fork_worker(folder, given, outputs, [*inherited, server.descriptor], hold)
        self._servers[order.job] = server
        return pid

    def _close_logs(self, logs: Sequence[BoundedLog]) -> None:
        for log in logs:
            if log.pipe in self._selector.get_map():
                self._selector.unregister(log.pipe)
            log.close()

    def _descriptors(self) -> list[int]:
        """All file descriptors that a forked trial must close."""
        of_others = [
            pipe for child in self._children.values() for pipe in (child.stages, child.turns) if pipe is not None
        ]
        of_logs = [pipe for child in self._children.values() for pipe in _descriptors_of(child.logs)]
        of_servers = [server.descriptor for server in self._servers.values()]
        return [self._orders, self._events, self._wakeup_read, self._wakeup_write, *of_others, *of_logs, *of_servers]

    def _hear(self, child: Child) -> bool:
        """Take in what the child says, and tell the parent. Returns False when its pipe is closed."""
        said = os.read(child.stages, 4096).decode().split()
        for word in said:
            match child.hear(word):
                case State.QUEUED:
                    self._tell(Queued(child.folder))
                case State.ASKING:
                    self._let_one_be_alone()
                case State() if child is self._alone:
                    self._end_alone()
                case State() if word == child.stage:
                    self._tell(StageReached(child.folder, Stage(word)))
        return bool(said)

    def _let_one_be_alone(self) -> None:
        """One that the parent has paused is not: another one is timed."""
        asking = (child for child in self._children.values() if child.state is State.ASKING and not child.paused_by)
        chosen = next(asking, None)
        if self._alone is not None or chosen is None:
            return
        self._alone, chosen.state = chosen, State.ALONE
        for child in self._children.values():
            if child is not chosen:
                child.pause(_BY_COMPILER)
        chosen.answer()

    def _end_alone(self) -> None:
        """It is done, or has ended."""
        self._alone = None
        for child in self._children.values():
            child.resume(_BY_COMPILER)
        deferred, self._deferred = self._deferred, []
        for order in deferred:
            self._execute(order)
        self._let_one_be_alone()

    def _reap(self) -> None:
        """Reap every ended descendant; if it was a trial's main process, kill the processes that it left."""
        for pid, status in reap_children():
            child = next((child for child in self._children.values() if child.pid == pid), None)
            if child is not None:
                self._end(child, status)

    def _end(self, child: Child, status: int, *, stuck: bool = False) -> None:
        """Kill the processes that the trial's main process left, and report to the parent how that one ended."""
        del self._children[child.folder]
        if child.stages in self._selector.get_map():
            self._selector.unregister(child.stages)
        kill_group(child.pid)
        kill_descendants(None if not self._children else child.folder)
        self._close_logs(child.logs)
        if child.folder in self._servers:
            self._servers.pop(child.folder).close()
        if child is self._alone:
            self._end_alone()
        child.close_turns()
        os.close(child.stages)
        self._tell(Exited(child.folder, status, child.timed_out, stuck))

    def _tell(self, event: Event) -> None:
        # If the parent is gone, the closed stdin ends this process soon.
        with suppress(BrokenPipeError):
            os.write(self._events, encode(event))


def _descriptors_of(logs: Sequence[BoundedLog]) -> list[int]:
    return [descriptor for log in logs for descriptor in log.descriptors]


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def _log_to(path: str) -> None:
    """Everything but the events goes there; nothing changes where it cannot be opened."""
    with suppress(OSError):
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for output in (1, 2):
            os.dup2(log, output)
        os.close(log)


def _exit(*_: object) -> NoReturn:
    raise SystemExit(1)


def main(arguments: list[str]) -> None:
    """`supervisor.py [MODULE [AHEAD [OF_MODEL...]]]`: orders on stdin, events on stdout, everything else on stderr."""
    *modules, lacks = arguments if _is_said(arguments) else (*arguments, "")
    events = os.dup(1)
    os.dup2(2, 1)  # Output of a framework's import must not mix with the events.
    lacks = lacks.removeprefix(LACKS)
    if not modules:
        Supervisor(orders=0, events=events, lacks=lacks or None).serve()
        return
    try:
        imported = preload(*modules)
    except Exception as error:
        # With other threads, neither forking nor preparing a new child is safe: restart with less. Where an import
        # fails, the trial's own will fail in the same way, with the traceback in its stderr.
        what = {1: modules[0], 2: "their compiler"}.get(len(modules), "what the model imports")
        lacks = f"{what} each for itself: {type(error).__name__}: {error}"
        print(f"trials import {lacks}", file=sys.stderr)
        os.dup2(events, 1)
        with_less = modules[: min(len(modules) - 1, 2)]
        os.execv(sys.executable, module_command("bench.supervisor", *with_less, f"{LACKS}{lacks}"))
    Supervisor(0, events, modules, imported, lacks or None).serve()


def _is_said(arguments: Sequence[str]) -> bool:
    """The last one tells what an earlier try lacked."""
    return bool(arguments) and arguments[-1].startswith(LACKS)


if __name__ == "__main__":
    main(sys.argv[1:])
