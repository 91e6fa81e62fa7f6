"""Starting a trial's process from the supervisor: a fork, or a new Python."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from autotune.backends.capabilities import ImportedAhead
from autotune.trial.command import PRELOAD_ONLY_VARIABLE, module_command
from autotune.trial.folder import TrialFolder
from autotune.trial.orphans import MARK_VARIABLE, mark_of
from autotune.trial.process_start import start_when_possible
from autotune.trial.worker import main as worker

PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1


def fork_worker(
    folder: TrialFolder,
    pipes: dict[str, int],
    outputs: Sequence[int],
    to_close: list[int],
    ahead: ImportedAhead | None,
) -> int:
    """Start a trial in a fork of this process, which has imported the framework. Returns the process number.

    `outputs`: pipes for its stdout and stderr; none: it writes to this process's stderr.
    """
    pid = start_when_possible(os.fork)
    if pid:
        return pid
    code = 1
    try:
        _become_child(folder, outputs)
        for descriptor in (*outputs, *to_close):
            os.close(descriptor)
        for name in os.environ.pop(PRELOAD_ONLY_VARIABLE, "").split(","):
            os.environ.pop(name, None)
        for name, pipe in pipes.items():
            os.environ[name] = str(pipe)
            os.set_inheritable(pipe, True)  # The worker may restart its Python.
        code = worker.main([str(folder.path)], ahead)
    finally:
        worker.leave(code)


def spawn_worker(folder: TrialFolder, order: dict[str, Any], pipes: dict[str, int], outputs: Sequence[int]) -> int:
    """Start a trial, or another program for a folder, in a new Python. Returns the process number."""
    numbers = {name: str(pipe) for name, pipe in pipes.items()}
    environment = {**os.environ, **numbers, MARK_VARIABLE: mark_of(folder.path)}
    for name in environment.pop(PRELOAD_ONLY_VARIABLE, "").split(","):
        environment.pop(name, None)
    process = subprocess.Popen(
        module_command(order["program"], str(folder.path)),
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=list(pipes.values()),
        # Safe: a supervisor has a single thread (`supervisor.main` sees to it).
        preexec_fn=lambda: _become_child(folder, outputs),  # noqa: PLW1509
    )
    # Reaped by the supervisor with all the others; Popen must not try.
    process.returncode = 0
    return process.pid


def _become_child(folder: TrialFolder, outputs: Sequence[int]) -> None:
    """Set up a child: own session, killed with the supervisor, default signals, its output."""
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    os.environ[MARK_VARIABLE] = mark_of(folder.path)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, output in enumerate(outputs or (2, 2), start=1):
        os.dup2(output, descriptor)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux: see prctl(2)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
