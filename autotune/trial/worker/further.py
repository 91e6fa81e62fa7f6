"""`Further`: processes of a trial beside its own, which that one starts, and whose failures are the trial's: the other
instances of a model (`instances`).

Each has a folder of its own within the trial's, with the request, a log, and an outcome where it failed. None outlives
the trial: the supervisor kills what a trial has started.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from autotune.errors import AutotuneError, InvalidConfigError, SetupError
from autotune.measure.measurement import Failure, Reason
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import module_command
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import WrongResultError

Start = Callable[[list[str], IO[bytes]], "subprocess.Popen[bytes]"]
"""Starts a process: its command line, and where its output goes."""
_LOOK_S = 0.02
_LEAVES_WITHIN_S = 5.0
"""What a process that has failed writes is waited for so long."""


@dataclass(frozen=True)
class Further:
    """Numbered from 1; the trial's own process is number 0."""

    name: str
    """What one is called in sentences, and what the worker is told that it is."""
    folders: tuple[TrialFolder, ...]
    processes: tuple[subprocess.Popen[bytes], ...]

    @classmethod
    def start(cls, name: str, folder: TrialFolder, request: TrialRequest, starts: Sequence[Start]) -> Further:
        """Start one by each of these. They find the caches of the trial's own process."""
        folders = tuple(TrialFolder(folder.path / f"{name}-{number}") for number in range(1, len(starts) + 1))
        processes = []
        for inner, start in zip(folders, starts, strict=True):
            inner.write_request(request.for_a_further_process())
            with inner.stderr.open("wb") as log:
                processes.append(start(module_command("trial.worker.main", str(inner.path), name), log))
        return cls(name, folders, tuple(processes))

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """An exception within that follows from another process's is replaced by that one."""
        try:
            yield
        except AutotuneError:
            raise
        except Exception as error:
            cause = self.cause()
            if cause is None:
                raise
            raise cause from error

    def cause(self) -> Exception | None:
        """What the first process that has failed by itself says."""
        end = time.monotonic() + _LEAVES_WITHIN_S
        while time.monotonic() < end and any(process.poll() is None for process in self.processes):
            time.sleep(_LOOK_S)
        for number, (folder, process) in enumerate(zip(self.folders, self.processes, strict=True), start=1):
            outcome = folder.read_outcome()
            if isinstance(outcome, Failure):
                return error_of(outcome, f"{self.name} {number}: ")
            if process.poll() not in (None, 0):
                how = f"{self.name} {number} ended with exit status {process.poll()}"
                return SetupError(f"{how}; full log: {folder.stderr}")
        return None


def error_of(failure: Failure, begin: str) -> Exception:
    """What another process of the trial failed with, to be raised in its own. `begin`: of the sentence."""
    kind = _KINDS.get(failure.reason, RuntimeError)
    text = begin + failure.error.removeprefix(f"{kind.__name__}: ")
    if kind is WrongResultError:
        return WrongResultError(text, math.nan if failure.relative_error is None else failure.relative_error)
    return kind(text)


_KINDS: dict[Reason, type[Exception]] = {
    Reason.WRONG_RESULT: WrongResultError,
    Reason.INVALID: InvalidConfigError,
    Reason.SETUP: SetupError,
    Reason.OUT_OF_MEMORY: MemoryError,
}
"""Those that the worker makes such a reason of again."""
