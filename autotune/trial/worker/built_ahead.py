"""`BuiltAhead`: a model that the process has built which a trial is forked from.

The build is called once, with the generators of random numbers as in any trial's process; a fork has the model's pages
in common with all others until it writes to them, and its generators go on where the build has left them. On a device
it begins the driver, and moves its copy there. What a fork does not take over rules it out: threads, an accelerator's
driver, processes, open files, and files in the folders that each trial has of its own. Each trial then builds the model
for itself. So does a trial whose process starts anew, as a config with a start of its own wants it, and on a CPU one
that trains: its first step writes to all pages.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.backends.protocol import variables_set
from autotune.backends.registry import load_backend
from autotune.errors import SetupError
from autotune.workload.build import Built
from autotune.workload.workload import Workload

WORKLOAD_FILE = "workload.json"
WHY_FILE = "why"
"""Why the model cannot be forked, in the folder of the process that tried to."""
_THREADS_END_WITHIN_S = 2.0


@dataclass(frozen=True)
class BuiltAhead:
    """The model, for forks of this process, or where these would lack something for the process itself."""

    workload: Workload
    build: _Once
    go_on: Callable[[], None] = lambda: None
    anonymous_bytes: int = 0
    """By which this process grew while it built."""


class _Once:
    """A build that is made once, whatever comes of it: who asks again gets the same model or the same error."""

    def __init__(self, build: Callable[[], Built]) -> None:
        self._build = build
        self._built: Built | None = None
        self._error: Exception | None = None

    def __call__(self) -> Built:
        if self._error is not None:
            raise self._error
        if self._built is None:
            try:
                self._built = self._build()
            except Exception as error:
                self._error = error
                raise
        return self._built


_here: list[BuiltAhead] = []
"""The one model, until it is taken over."""


def build_ahead(folder: Path) -> None:
    """Build the workload that is written in this folder, on the host, and keep the model for forks, which put it on
    their device. Raises SetupError where they would lack something of it, and whatever the build raises; what came of
    the build is kept all the same, for this process."""
    from autotune.trial.worker.subjects import built_for

    workload = Workload.model_validate_json((folder / WORKLOAD_FILE).read_text())
    backend = load_backend(workload.framework)
    build = _Once(lambda: built_for(workload, backend))
    _here.append(BuiltAhead(workload, build))
    if backend.built_once is None:
        raise SetupError(f"a model of {workload.framework} is not forked")
    working, temporary = folder / "working", folder / "temporary"
    working.mkdir()
    temporary.mkdir()
    open_before, bytes_before = _open_files(), _anonymous_bytes()
    with _in_folders(working, temporary):
        backend.prepare("cpu", workload.seed)
        _, go_on = backend.built_once(workload.device, build)
        _require_forkable(working, temporary, open_before)
    _here[:] = [BuiltAhead(workload, build, go_on, max(_anonymous_bytes() - bytes_before, 0))]


@contextmanager
def _in_folders(working: Path, temporary: Path) -> Iterator[None]:
    before, tempfile.tempdir = Path.cwd(), None
    os.chdir(working)
    try:
        with variables_set({"TMPDIR": str(temporary)}):
            yield
    finally:
        os.chdir(before)
        tempfile.tempdir = None


def take_over(workload: Workload) -> Built | None:
    """The model of this workload, if this process is a fork of one that has built it; once. `Backend.prepare` comes
    before. Raises what its build has raised."""
    ahead = _here.pop() if _here else None
    if ahead is None or not ahead.workload.is_built_as(workload):
        return None
    ahead.go_on()
    return ahead.build()


def bytes_ahead() -> int:
    """What this process holds of the model already: 0 for one that builds it."""
    return sum(ahead.anonymous_bytes for ahead in _here)


def _require_forkable(working: Path, temporary: Path, open_before: frozenset[str]) -> None:
    if (num_threads := _threads_left()) > 1:
        raise SetupError(f"its build leaves {num_threads} threads")
    if psutil.Process().children():
        raise SetupError("its build leaves a process")
    if more := sorted(_open_files() - open_before):
        raise SetupError(f"its build leaves open {more[0].partition(' ')[2]}")
    if any(working.iterdir()) or any(temporary.iterdir()):
        raise SetupError("its build leaves files in the working folder or in that for temporary files")


def _threads_left() -> int:
    """All threads of this process. Those of a pool that was told to end are given time for it, and the one that watches
    progress bars of tqdm, which any loading of a pretrained model shows, is ended: the next bar begins another one."""
    for thread in threading.enumerate():
        if type(thread).__module__ == "tqdm._monitor":
            thread.exit()  # type: ignore[attr-defined]
    waited_until = time.monotonic() + _THREADS_END_WITHIN_S
    while (num_threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < waited_until:
        time.sleep(0.01)
    return num_threads


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
