"""Finding the processes of a trial whose supervisor is gone, by a mark in their environment.

A supervisor kills all processes of its trials. If the supervisor itself is killed (for lack of memory, say), compiler
processes of a trial may keep running in their own sessions; the code that notices kills them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

MARK_VARIABLE = "AUTOTUNE_TRIAL"
"""Set to the trial's folder in every process that a trial starts."""


def mark_of(folder: Path) -> str:
    """The variable's value in the processes of the trial in `folder`."""
    return str(folder.resolve())


_SETTLING_S = 0.2
"""Between fork and exec a process still has its parent's environment, without the mark: so the search runs twice."""


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
