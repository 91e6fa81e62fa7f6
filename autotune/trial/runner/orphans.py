"""Finding the processes of a trial whose supervisor is gone, by a mark in their environment.

A supervisor leaves nothing alive. If it is itself killed (by the kernel for lack of memory, say), a trial's compiler
processes may go on in sessions of their own, beside the next trial; whoever notices first clears them away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

MARK_VARIABLE = "AUTOTUNE_TRIAL"
"""Holds the trial's folder, in every process that a trial starts."""


def mark_of(folder: Path) -> str:
    """What the variable holds in the processes of the trial in `folder`."""
    return str(folder.resolve())


_SETTLING_S = 0.2
"""Between fork and exec a process carries its parent's environment, and not yet the mark: they are looked for twice."""


def kill_marked(folder: Path, among: Iterable[psutil.Process] | None = None) -> None:
    """Kill every process of this user (or of those in `among`) that carries the mark of the trial in `folder`."""
    if among is not None:
        _kill(mark_of(folder), among)
        return
    _kill(mark_of(folder), psutil.process_iter())
    time.sleep(_SETTLING_S)
    _kill(mark_of(folder), psutil.process_iter())


def _kill(mark: str, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK_VARIABLE) == mark:
                process.kill()
