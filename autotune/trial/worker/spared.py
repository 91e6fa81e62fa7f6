"""`Spared`: what a trial's compile finds done, and the seconds and the memory that it would have taken.

A fork server has imported the compiler, and earlier trials have compiled kernels of the same source. A job finds
neither: these seconds, as they were measured where the work was done, are part of the trial's compile times, and what
the imports hold is part of its peak memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from autotune.backends.capabilities import ImportedAhead
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of
from autotune.measure.sampling import Clock
from autotune.trial.request import TrialRequest


class Spared:
    """Of the compile of one trial, by whose clock what it compiles itself is timed."""

    def __init__(self, request: TrialRequest, backend: Backend, ahead: ImportedAhead | None, clock: Clock) -> None:
        self._request = request
        self._backend = backend
        self._ahead = ahead
        self._clock = clock
        self.seconds = 0.0
        self.resident_bytes = 0
        """Of the imports."""

    def clock(self) -> float:
        """The trial's clock, put forward by what was spared so far."""
        return self._clock() + self.seconds

    def found(self) -> AbstractContextManager[Any]:
        """For the call that compiles: it finds imports, which count from here on, and kernels. Taken within what is
        timed, since it may import the compiler."""
        entry = entry_of(self._request.workload.framework)
        if self._request.untuned or not entry.compiles(self._request.config):
            return nullcontext()
        if self._ahead is not None:
            self._add(self._ahead.seconds)
            self.resident_bytes = self._ahead.resident_bytes
        kernels, find = self._request.kernels, self._backend.shared_kernels
        if kernels is None or find is None:
            return nullcontext()
        return find(Path(kernels.folder), kernels.num_threads, self._clock, self._add)

    def _add(self, seconds: float) -> None:
        self.seconds += seconds
