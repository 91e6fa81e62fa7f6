"""Processes of this package: their command lines, starting them, and finding those that nobody ends any more.

A supervisor kills all processes of its trials. If the supervisor itself is killed (for lack of memory, say), compiler
processes of a trial may keep running in their own sessions; the code that notices kills them, by a mark in their
environment.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from autotune.backends.registry import entry_of
from autotune.errors import SetupError, causes
from autotune.own_folders import absolute
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest

PRELOAD_ONLY_VARIABLE = "AUTOTUNE_PRELOAD_ONLY"
"""Names of variables that hold for a supervisor's import alone and are taken away from the trials, comma-separated."""

_PACKAGE = Path(__file__).resolve().parent.parent
MARK_VARIABLE = "AUTOTUNE_TRIAL"
"""Set to the trial's folder in every process that a trial starts."""
_SETTLING_S = 0.2
"""Between fork and exec a process still has its parent's environment, without the mark: so the search runs twice."""
RETRY_FOR_S = 30.0
_PAUSE_S = 0.5
_NO_RESOURCES = (errno.EAGAIN, errno.ENOMEM)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

Started = TypeVar("Started")
T = TypeVar("T")


def module_command(name: str, *arguments: str, python: str | Path = sys.executable) -> list[str]:
    """The command line that runs a module of the package (`trial.worker.main`) as a program.

    It is started as a file, not with `-m`: MindSpore's capture `trace` reads the source line of every frame on the
    stack, and `-m` adds a frame without one. Without `-P` modules of the package would hide Python's own.
    """
    return [str(python), "-P", str(_PACKAGE.joinpath(*name.split(".")).with_suffix(".py")), *arguments]


def last_json(text: str, kind: type[T]) -> T | None:
    """The last line that holds JSON of a kind: what a Python was told to print, whatever else it prints."""
    for line in reversed(text.splitlines()):
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, kind):
                return found
    return None


def run_helper(folder: TrialFolder, helper: str) -> int:
    """Run the worker that helps the trial in this folder, under the name of what it does; its exit status."""
    command = module_command("trial.worker.main", str(folder.path), helper)
    return subprocess.run(command, check=False).returncode


def crash_alike(status: int) -> None:
    """End this process by the signal that killed the one with this exit status, so that the crash is reported; nothing
    for any other status."""
    if status < 0:
        os.kill(os.getpid(), -status)


def package_path(declared: str | None = None) -> str:
    """PYTHONPATH for a child: this package first, then the declared value or the current one."""
    home = str(_PACKAGE.parent)
    return os.pathsep.join(filter(None, [home, declared or os.environ.get("PYTHONPATH")]))


def repeat_command(folder: TrialFolder, request: TrialRequest) -> str:
    """A shell command that runs a trial again, without a supervisor."""
    variables = {
        **entry_of(request.workload.framework).process_variables,
        **request.variables,
        "PYTHONPATH": package_path(request.variables.get("PYTHONPATH")),
    }
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*settings, shlex.join(module_command("trial.worker.main", str(folder.path)))])


def start_when_possible(start: Callable[[], Started]) -> Started:
    """The result of `start` (a fork, a Popen), retried for `RETRY_FOR_S`. Raises SetupError after that."""
    end = time.monotonic() + RETRY_FOR_S
    while True:
        try:
            return start()
        except OSError as error:
            if error.errno not in _NO_RESOURCES:
                raise
            if time.monotonic() >= end:
                raise SetupError(
                    f"this machine can start no further process: {error.strerror}",
                    tip="stop unneeded programs, or raise the limits on processes and memory (ulimit -u, the "
                    "container's pids and memory); recorded trials are kept",
                ) from None
        time.sleep(_PAUSE_S)


def lacks_process_resources(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that no process or thread could be started."""
    return any(
        (isinstance(cause, OSError) and cause.errno == errno.EAGAIN)
        or (isinstance(cause, RuntimeError) and "can't start new thread" in str(cause))
        for cause in causes(error)
    )


def lacks_room_on_disk(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that a file could not be written; a C++ compiler says so in its
    own words."""
    return any(
        (isinstance(cause, OSError) and cause.errno in _NO_ROOM) or os.strerror(errno.ENOSPC) in f"{cause}"
        for cause in causes(error)
    )


def mark_of(folder: Path) -> str:
    """The variable's value in the processes of the trial in `folder`."""
    return str(absolute(folder))


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
