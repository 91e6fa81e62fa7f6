"""Holds the trials' processes: starts one at a time, watches its stages, and leaves nothing of it alive.

A process of its own, between the parent (which runs Optuna and must stay light) and the child (which may do anything).
It listens on stdin for orders, one JSON line each, and answers on stdout with events. When stdin closes, for whatever
reason (the parent ended, was interrupted, was killed with -9), it kills the trial's whole process tree and ends.

It can import a framework ahead and fork trials from there, which saves the import's seconds. That is safe only while
the importing process has a single thread and has run no operator, so it checks (docs/decisions/0002-supervisor.md).

Linux gives two more guarantees: the supervisor is the reaper of orphans, so compiler processes whose parent died are
found and killed too; and a child dies with its supervisor.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil

from autotune import worker
from autotune.leftovers import MARK_VARIABLE
from autotune.measurement import Stage
from autotune.trial import TrialFolder, module_command

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_AFTER_KILL_S = 3600.0
"""A killed process is gone in milliseconds; one stuck in a device driver may take long, and must not be left."""
_LONGEST_WAIT_S = 86400.0
"""The system call takes milliseconds in 32 bits; after a day it is simply made again."""
_PRELOAD_ONLY = "AUTOTUNE_PRELOAD_ONLY"
"""Names of variables that hold for the import alone and are taken away from the trials, comma-separated."""


@dataclass
class Child:
    """The running trial: its process and group, the pipe of its stages, the deadlines."""

    pid: int
    stages: int
    limits: dict[str, float]
    started: float = field(default_factory=time.monotonic)
    stage: str = Stage.START.value
    stage_started: float = field(default_factory=time.monotonic)
    timed_out: str | None = None
    status: int | None = None

    def seconds_left(self) -> float:
        now = time.monotonic()
        stage_left = self.limits[self.stage] - (now - self.stage_started)
        return min(stage_left, self.limits["total"] - (now - self.started))

    def enter(self, stage: str) -> None:
        self.stage = stage
        self.stage_started = time.monotonic()


class Supervisor:
    """Takes orders from `orders`, writes events to `events` (file descriptors)."""

    def __init__(self, orders: int, events: int) -> None:
        self._orders = orders
        self._events = events
        self._unread = b""
        self._wakeup_read, self._wakeup_write = os.pipe()
        for descriptor in (self._wakeup_read, self._wakeup_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, _exit)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def serve(self, preloaded: bool) -> None:
        """Until stdin closes: one order, one trial, one `ended`."""
        try:
            while (order := self._next_order()) is not None:
                self._run(order, preloaded)
        finally:
            kill_descendants()

    def _run(self, order: dict[str, Any], preloaded: bool) -> None:
        folder = TrialFolder(Path(order["folder"]))
        child = self._start(folder, order, fork=preloaded and not order["fresh"])
        try:
            self._watch(child)
        finally:
            _kill_group(child.pid)
            kill_descendants()
            os.close(child.stages)
        if child.status is None:
            raise SystemExit  # The parent went away in the middle of a trial.
        self._tell(event="ended", status=child.status, timed_out=child.timed_out)

    def _start(self, folder: TrialFolder, order: dict[str, Any], fork: bool) -> Child:
        stages, told = os.pipe()
        if fork:
            ours = [stages, self._orders, self._events, self._wakeup_read, self._wakeup_write]
            pid = _fork_worker(folder, order, told, ours)
        else:
            pid = _spawn_worker(folder, order, told)
        os.close(told)
        return Child(pid=pid, stages=stages, limits=order["limits"])

    def _watch(self, child: Child) -> None:
        """Block until the child ended, or kill it at a deadline, or return when the parent is gone."""
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._orders, child.stages, self._wakeup_read):
                selector.register(descriptor, selectors.EVENT_READ)
            while child.status is None:
                ready = {key.fd for key, _ in selector.select(min(max(child.seconds_left(), 0), _LONGEST_WAIT_S))}
                if child.stages in ready and not self._read_stages(child):
                    selector.unregister(child.stages)
                if self._orders in ready and self._read_orders() == b"":
                    return
                if self._wakeup_read in ready:
                    _drain(self._wakeup_read)
                    _reap(child)
                if child.status is None and child.timed_out is None and child.seconds_left() <= 0:
                    child.timed_out = child.stage
                    child.limits = dict.fromkeys(child.limits, _AFTER_KILL_S)
                    _kill_group(child.pid)

    def _read_stages(self, child: Child) -> bool:
        """Pass the child's stages on to the parent. False when the pipe is closed."""
        told = os.read(child.stages, 4096).decode().split()
        for stage in told:
            child.enter(stage)
            self._tell(event="stage", stage=stage)
        return bool(told)

    def _next_order(self) -> dict[str, Any] | None:
        while b"\n" not in self._unread:
            if self._read_orders() == b"":
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def _read_orders(self) -> bytes:
        received = os.read(self._orders, 65536)
        self._unread += received
        return received

    def _tell(self, **event: Any) -> None:
        # A parent that is gone hears nothing; the closed stdin ends this process in a moment.
        with suppress(BrokenPipeError):
            os.write(self._events, (json.dumps(event) + "\n").encode())


def _fork_worker(folder: TrialFolder, order: dict[str, Any], told: int, to_close: list[int]) -> int:
    """A trial in a fork of this process, the framework already imported."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become_child(folder, order)
        for descriptor in to_close:
            os.close(descriptor)
        for name in os.environ.pop(_PRELOAD_ONLY, "").split(","):
            os.environ.pop(name, None)
        os.environ[worker.STAGE_FD_VARIABLE] = str(told)
        os.set_inheritable(told, True)  # The worker may start its Python anew.
        code = worker.main([str(folder.path)])
    finally:
        worker.leave(code)


def _spawn_worker(folder: TrialFolder, order: dict[str, Any], told: int) -> int:
    """A trial in a Python of its own."""
    mark = {MARK_VARIABLE: str(folder.path.resolve()), worker.STAGE_FD_VARIABLE: str(told)}
    environment = {**os.environ, **mark}
    for name in environment.pop(_PRELOAD_ONLY, "").split(","):
        environment.pop(name, None)
    process = subprocess.Popen(
        module_command("worker", str(folder.path)),
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=[told],
        # Safe: a supervisor has a single thread (`main` sees to it).
        preexec_fn=lambda: _become_child(folder, order),  # noqa: PLW1509
    )
    # Reaped in `_reap` with all the others; Popen must not try.
    process.returncode = 0
    return process.pid


def _become_child(folder: TrialFolder, order: dict[str, Any]) -> None:
    """Own session, dies with the supervisor, default signals, output into the folder."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    os.environ[MARK_VARIABLE] = str(folder.path.resolve())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if order["echo"]:
        os.dup2(2, 1)
        return
    for descriptor, path in ((1, folder.stdout), (2, folder.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)


def _reap(child: Child) -> None:
    """Collect every ended descendant; remember how the trial's own process ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child.pid:
            child.status = status


def kill_descendants() -> None:
    """Kill every descendant and wait for it, orphans handed to this process included."""
    while descendants := psutil.Process().children(recursive=True):
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def _exit(*_: object) -> NoReturn:
    raise SystemExit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _preload(module: str) -> str | None:
    """Import ahead; None if forking from here is safe, else why not."""
    try:
        importlib.import_module(module)
    except Exception as error:
        # The trial's own import will fail in the same way, and its stderr is where the story belongs.
        return f"import {module}: {type(error).__name__}: {error}"
    try:
        num_threads = len(os.listdir("/proc/self/task"))
    except OSError:
        return "the system does not tell the number of threads"
    return None if num_threads == 1 else f"importing {module} left {num_threads} threads"


def main(arguments: list[str]) -> None:
    """`supervisor.py [MODULE]`: orders on stdin, events on stdout, everything else on stderr."""
    module = arguments[0] if arguments else ""
    events = os.dup(1)
    os.dup2(2, 1)  # Whatever a framework prints while it is imported must not mix with the events.
    if not module:
        Supervisor(orders=0, events=events).serve(preloaded=False)
        return
    why_not = _preload(module)
    if why_not is not None:
        # With other threads about, neither forking nor preparing a new child is safe: begin again without.
        print(f"trials start from a fresh Python each: {why_not}", file=sys.stderr)
        os.dup2(events, 1)
        os.execv(sys.executable, module_command("supervisor"))
    Supervisor(orders=0, events=events).serve(preloaded=True)


if __name__ == "__main__":
    main(sys.argv[1:])
