"""`BuiltAhead`: a model that the process has built which a trial is forked from.

The build is called once, with the generators of random numbers as in any trial's process; a fork has the model's pages
in common with all others until it writes to them, and its generators go on where the build has left them. What a fork
does not take over rules it out: threads, an accelerator's driver, processes, open files, and files in the folders that
each trial has of its own. Each trial then builds the model for itself. So does a trial whose process starts anew, as a
config with a start of its own wants it, and one that trains: its first step writes to all pages.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.backends.registry import load_backend
from autotune.errors import SetupError
from autotune.workload.build import Built
from autotune.workload.workload import Workload

WORKLOAD_FILE = "workload.json"
WHY_FILE = "why"
"""Why the model cannot be forked, in the folder of the process that tried to."""


@dataclass(frozen=True)
class BuiltAhead:
    """The model, for forks of this process."""

    workload: Workload
    built: Built
    go_on: Callable[[], None]
    anonymous_bytes: int
    """By which this process grew while it built."""


_here: list[BuiltAhead] = []
"""The one model, until it is taken over."""


def build_ahead(folder: Path) -> None:
    """Build the workload that is written in this folder, and keep the model for forks. Raises SetupError where they
    would lack something of it, and whatever the build raises."""
    from autotune.trial.worker.subjects import built_for

    workload = Workload.model_validate_json((folder / WORKLOAD_FILE).read_text())
    backend = load_backend(workload.framework)
    if backend.built_once is None:
        raise SetupError(f"a model of {workload.framework} is not forked")
    working, temporary = folder / "working", folder / "temporary"
    working.mkdir()
    temporary.mkdir()
    before, open_before, bytes_before = Path.cwd(), _open_files(), _anonymous_bytes()
    given, tempfile.tempdir = os.environ.get("TMPDIR"), None
    os.environ["TMPDIR"] = str(temporary)
    os.chdir(working)
    backend.prepare("cpu", workload.seed)
    built, go_on = backend.built_once(lambda: built_for(workload, backend))
    _require_forkable(working, temporary, open_before)
    os.chdir(before)
    tempfile.tempdir = None
    os.environ.pop("TMPDIR") if given is None else os.environ.update(TMPDIR=given)
    _here.append(BuiltAhead(workload, built, go_on, max(_anonymous_bytes() - bytes_before, 0)))


def take_over(workload: Workload) -> Built | None:
    """The model of this workload, if this process is a fork of one that has built it; once. `Backend.prepare` comes
    before."""
    ahead = _here.pop() if _here else None
    if ahead is None or ahead.workload != workload:
        return None
    ahead.go_on()
    return ahead.built


def bytes_ahead() -> int:
    """What this process holds of the model already: 0 for one that builds it."""
    return sum(ahead.anonymous_bytes for ahead in _here)


def _require_forkable(working: Path, temporary: Path, open_before: frozenset[str]) -> None:
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        raise SetupError(f"its build leaves {num_threads} threads")
    if psutil.Process().children():
        raise SetupError("its build leaves a process")
    if more := sorted(_open_files() - open_before):
        raise SetupError(f"its build leaves open {more[0].partition(' ')[2]}")
    if any(working.iterdir()) or any(temporary.iterdir()):
        raise SetupError("its build leaves files in the working folder or in that for temporary files")


def _open_files() -> frozenset[str]:
    """Number and target of each descriptor, but of the one that is read here."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            continue
    return frozenset(found)


def _anonymous_bytes() -> int:
    """Resident pages that are of no file, which forks have too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
