"""The supervisor: starts the trials' processes, watches their stages, and leaves no process behind.

It is a process between the parent (which runs Optuna and must stay light) and the child (which may do anything). It
reads orders from stdin, one JSON line each, and writes events to stdout. When stdin closes for any reason (the parent
ended, was interrupted, was killed with -9), it kills the process tree of every trial and ends.

A trial runs to its end by itself, or is `live`: it waits before sampling, and takes some samples at each order `turn`,
until the order `finish`. Several live processes are held at once, of which one runs at a time. Between its turns a
process is stopped (SIGSTOP) if its start order said so, since threads of a runtime may spin for a while after the last
call and disturb the next process (docs/decisions/0008-stopped-between-turns.md).

A `gated` trial compiles ahead: it waits before sampling, and takes all its samples at the one order `turn`. Until then
the orders `pause` and `resume` stop all its processes while another one is timed. A compiler that times candidates asks
to be `alone`: all others are stopped until it is done, and nothing is timed meanwhile.

It can import a framework and fork trials from there, which saves seconds per trial. That is safe only while the
process has a single thread and has run no operator, so it checks (docs/decisions/0002-supervisor.md).

On Linux the supervisor also adopts orphans, so compiler processes whose parent died are found and killed too; and a
child is killed when its supervisor dies.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from autotune.backends.capabilities import ImportedAhead
from autotune.bench.bounded_log import BoundedLog
from autotune.bench.child import LONGEST_WAIT_S, Child
from autotune.bench.reaper import kill_descendants, kill_group, reap_children, unkillable
from autotune.bench.spawn import PR_SET_CHILD_SUBREAPER, fork_worker, prctl, spawn_worker
from autotune.errors import HarnessError
from autotune.trial.command import module_command
from autotune.trial.folder import TrialFolder
from autotune.trial.process_start import start_when_possible
from autotune.trial.worker.stages import (
    ALONE,
    GATE_FD_VARIABLE,
    QUEUED,
    SERVED,
    STAGE_FD_VARIABLE,
    TOGETHER,
    TURN_FD_VARIABLE,
)

_BY_PARENT, _BY_COMPILER = "parent", "compiler"
"""Who has paused a trial: it goes on when nobody has."""


class Supervisor:
    """Reads orders from `orders` and writes events to `events` (file descriptors)."""

    def __init__(self, orders: int, events: int, *, preloaded: bool, ahead: ImportedAhead | None = None) -> None:
        self._orders = orders
        self._events = events
        self._preloaded = preloaded
        self._ahead = ahead
        self._selector = selectors.DefaultSelector()
        self._unread = b""
        self._children: dict[str, Child] = {}
        self._alone: Child | None = None
        """Its compiler times candidates."""
        self._want_alone: list[Child] = []
        self._deferred: list[dict[str, Any]] = []
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
            self._tell(event="ready")
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
        seconds = min((each.seconds_left() for each in self._children.values()), default=LONGEST_WAIT_S)
        ready = {key.fd for key, _ in self._selector.select(min(max(seconds, 0), LONGEST_WAIT_S))}
        for child in self._children.values():
            if child.stages in ready and not self._forward_stages(child):
                self._selector.unregister(child.stages)
            for log in child.logs:
                if log.pipe in ready and not log.forward():
                    self._selector.unregister(log.pipe)
        if self._wakeup_read in ready:
            _drain(self._wakeup_read)
            self._reap()
        for child in [each for each in self._children.values() if each.seconds_left() <= 0]:
            if child.timed_out is None:
                child.timed_out, child.killed_at = child.stage, time.monotonic()
                kill_group(child.pid)
            else:
                unkillable.add(child.pid)
                self._end(child, status=signal.SIGKILL, stuck=True)
        return self._orders not in ready or self._read_orders()

    def _read_orders(self) -> bool:
        """Execute every complete line received. Returns False when stdin is closed."""
        received = os.read(self._orders, 65536)
        *lines, self._unread = (self._unread + received).split(b"\n")
        for line in lines:
            self._execute(json.loads(line))
        return received != b""

    def _execute(self, order: dict[str, Any]) -> None:
        if order["order"] == "start":
            self._take_in(order)
            return
        held = self._children.get(order["folder"])
        if held is None or held.turns is None:
            return  # It has ended; the parent has the event or will get it.
        match order["order"]:
            case "turn" if self._alone is not None:
                self._deferred.append(order)
            case "pause" if held is self._alone:
                self._deferred.append(order)
            case "pause":
                held.pause(_BY_PARENT)
            case "resume":
                held.resume(_BY_PARENT)
                self._let_one_be_alone()
            case "kill":
                held.kill()
            case "finish":
                held.wake()
                held.close_turns()
            case "turn":
                held.wake()
                held.answer()

    def _take_in(self, order: dict[str, Any]) -> None:
        """Start a trial, or tell that it cannot be started."""
        try:
            child = self._start(order)
        except HarnessError as error:
            self._tell(event="refused", folder=order["folder"], error=str(error))
            return
        self._children[child.folder] = child
        for descriptor in (child.stages, *(log.pipe for log in child.logs)):
            self._selector.register(descriptor, selectors.EVENT_READ)
        if self._alone is not None:
            child.pause(_BY_COMPILER)

    def _start(self, order: dict[str, Any]) -> Child:
        folder = TrialFolder(Path(order["folder"]))
        stages, told = os.pipe()
        waits_at = {"live": TURN_FD_VARIABLE, "gated": GATE_FD_VARIABLE, "free": None}[order["waits"]]
        turn, turns = os.pipe() if waits_at is not None else (None, None)
        for_child = {STAGE_FD_VARIABLE: told}
        if waits_at is not None and turn is not None:
            for_child[waits_at] = turn
        ours = [each for each in (stages, turns) if each is not None]
        logs: list[BoundedLog] = []
        try:
            for path in () if order["echo"] else (folder.stdout, folder.stderr):
                logs.append(BoundedLog(path))
            outputs = [log.end for log in logs]
            if self._preloaded and not order["fresh"]:
                inherited = [*ours, *_descriptors_of(logs), *self._descriptors()]
                pid = fork_worker(folder, for_child, outputs, inherited, self._ahead)
            else:
                pid = start_when_possible(lambda: spawn_worker(folder, order, for_child, outputs))
        except HarnessError:
            self._close_logs(logs)
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in (*for_child.values(), *(log.end for log in logs)):
                os.close(descriptor)
        return Child(order["folder"], pid, stages, turns, stops=order["stops"], limits=order["limits"], logs=logs)

    def _close_logs(self, logs: Sequence[BoundedLog]) -> None:
        for log in logs:
            if log.pipe in self._selector.get_map():
                self._selector.unregister(log.pipe)
            log.close()

    def _descriptors(self) -> list[int]:
        """All file descriptors that a forked trial must close."""
        of_others = [pipe for each in self._children.values() for pipe in (each.stages, each.turns) if pipe is not None]
        of_logs = [each for child in self._children.values() for each in _descriptors_of(child.logs)]
        return [self._orders, self._events, self._wakeup_read, self._wakeup_write, *of_others, *of_logs]

    def _forward_stages(self, child: Child) -> bool:
        """Forward the child's stages to the parent. Returns False when the pipe is closed."""
        told = os.read(child.stages, 4096).decode().split()
        for word in told:
            if word in (QUEUED, SERVED):
                child.note_queue(word)
                if word == QUEUED:
                    self._tell(event=word, folder=child.folder)
            elif word == ALONE:
                self._want_alone.append(child)
                self._let_one_be_alone()
            elif word == TOGETHER:
                self._end_alone(child)
            else:
                child.enter(word)
                self._tell(event="stage", folder=child.folder, stage=word)
        return bool(told)

    def _let_one_be_alone(self) -> None:
        """One that the parent has paused is not: another one is timed."""
        chosen = next((each for each in self._want_alone if not each.paused_by), None)
        if self._alone is not None or chosen is None:
            return
        self._want_alone.remove(chosen)
        self._alone = chosen
        for each in self._children.values():
            if each is not chosen:
                each.pause(_BY_COMPILER)
        chosen.answer()

    def _end_alone(self, child: Child) -> None:
        """It is done, or has ended."""
        if child in self._want_alone:
            self._want_alone.remove(child)
        if child is not self._alone:
            return
        self._alone = None
        for each in self._children.values():
            each.resume(_BY_COMPILER)
        deferred, self._deferred = self._deferred, []
        for order in deferred:
            self._execute(order)
        self._let_one_be_alone()

    def _reap(self) -> None:
        """Reap every ended descendant; if it was a trial's main process, kill the processes that it left."""
        for pid, status in reap_children():
            child = next((each for each in self._children.values() if each.pid == pid), None)
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
        self._end_alone(child)
        child.close_turns()
        os.close(child.stages)
        self._tell(event="ended", folder=child.folder, status=status, timed_out=child.timed_out, stuck=stuck)

    def _tell(self, **event: Any) -> None:
        # If the parent is gone, the closed stdin ends this process soon.
        with suppress(BrokenPipeError):
            os.write(self._events, (json.dumps(event) + "\n").encode())


def _descriptors_of(logs: Sequence[BoundedLog]) -> list[int]:
    return [each for log in logs for each in log.descriptors]


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def _exit(*_: object) -> NoReturn:
    raise SystemExit(1)


def _preload(module: str, ahead: str) -> ImportedAhead | None:
    """Import the framework, and its compiler with the module `ahead` if one is named. Raises where that fails, and
    HarnessError if forking is not safe afterwards."""
    importlib.import_module(module)
    imported: ImportedAhead | None = importlib.import_module(ahead).import_ahead() if ahead else None
    try:
        num_threads = len(os.listdir("/proc/self/task"))
    except OSError:
        raise HarnessError("the system does not tell the number of threads") from None
    if num_threads > 1:
        raise HarnessError(f"importing {module} left {num_threads} threads")
    return imported


def main(arguments: list[str]) -> None:
    """`supervisor.py [MODULE [AHEAD]]`: orders on stdin, events on stdout, everything else on stderr."""
    module, ahead = (*arguments, "", "")[:2]
    events = os.dup(1)
    os.dup2(2, 1)  # Output of a framework's import must not mix with the events.
    if not module:
        Supervisor(orders=0, events=events, preloaded=False).serve()
        return
    try:
        imported = _preload(module, ahead)
    except Exception as error:
        # With other threads, neither forking nor preparing a new child is safe: restart with less. Where an import
        # fails, the trial's own will fail in the same way, with the traceback in its stderr.
        why = f"{type(error).__name__}: {error}"
        print(f"trials import {'their compiler' if ahead else module} each for itself: {why}", file=sys.stderr)
        os.dup2(events, 1)
        os.execv(sys.executable, module_command("bench.supervisor", *([module] if ahead else [])))
    Supervisor(orders=0, events=events, preloaded=True, ahead=imported).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
