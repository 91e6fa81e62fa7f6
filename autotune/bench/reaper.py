"""Stopping, killing and reaping the descendants of the supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from autotune.trial.processes import kill_marked

_REAPED_WITHIN_S = 10.0
"""Killed descendants must end within this time; those that do not are named and left."""

unkillable: set[int] = set()
"""Processes that were killed and do not end."""


def reap_children() -> list[tuple[int, int]]:
    """Process number and status of every descendant that has ended since the last call."""
    ended = []
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            ended.append(found)
    return ended


def kill_descendants(of_trial: str | None = None) -> None:
    """Kill every descendant and wait for it, orphans handed to this process included.

    With `of_trial` (a folder) only those that carry the trial's mark: other trials are running. A process that does not
    end, because it waits for a device or a disk (state D), is named and left.
    """
    if of_trial is not None:
        kill_marked(Path(of_trial), psutil.Process().children(recursive=True))
        return
    end = time.monotonic() + _REAPED_WITHIN_S
    while descendants := [child for child in psutil.Process().children(recursive=True) if child.pid not in unkillable]:
        if time.monotonic() >= end:
            unkillable.update(process.pid for process in descendants)
            print(f"cannot be killed, and left: {', '.join(map(_name_of, descendants))}", file=sys.stderr)
            return
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if not reap_children():
            time.sleep(0.01)


def stop_tree(pid: int) -> None:
    """Stop a process and all its descendants, those in other sessions included; none is started meanwhile."""
    stopped: set[int] = set()
    while new := [process for process in _tree(pid) if process.pid not in stopped]:
        for process in new:
            stopped.add(process.pid)
            with suppress(psutil.Error):
                process.suspend()


def continue_tree(pid: int) -> None:
    """Let a process and all its descendants go on."""
    for process in _tree(pid):
        with suppress(psutil.Error):
            process.resume()


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _name_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"process {process.pid} ({process.name()}, {process.status()})"
    return f"process {process.pid}"


def kill_group(pid: int) -> None:
    """Kill the process group that the process leads, if it is still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
