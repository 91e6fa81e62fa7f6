"""What a trial costs beside the calls that are sampled: what its compile found done, a second call, copies of outputs.

A fork server has imported the compiler, earlier trials have compiled kernels of the same source, and the toolchain's
program has asked what the processor can do; on a device the processes that compile were begun with the trial. A job
finds none of that: these seconds, as they were measured where the work was done, are part of the trial's compile times,
and what the imports hold is part of its peak memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from autotune.backends.capabilities import ImportedAhead
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of
from autotune.measure.sampling import Clock
from autotune.trial.request import TrialRequest

NUM_COPIES = 20


class Spared:
    """What the compile of one trial finds done: the seconds and the memory that it would have taken. `clock` is the one
    by which what the trial compiles itself is timed."""

    def __init__(
        self,
        request: TrialRequest,
        backend: Backend,
        ahead: ImportedAhead | None,
        clock: Clock,
        begun_s: Callable[[], float] | None = None,
    ) -> None:
        self._request = request
        self._backend = backend
        self._ahead = ahead
        self._clock = clock
        self._begun_s = begun_s
        self.seconds = 0.0
        self.resident_bytes = 0 if ahead is None else ahead.model_bytes
        """Memory that the imports hold."""

    def clock(self) -> float:
        """The trial's clock, put forward by what was spared so far."""
        return self._clock() + self.seconds

    def found(self) -> AbstractContextManager[Any]:
        """For the call that compiles: it finds imports, which count from here on, answers of the toolchain, and
        kernels. Taken within what is timed, since it may import the compiler."""
        entry = entry_of(self._request.workload.framework)
        if self._request.untuned or not entry.compiles(self._request.config):
            return nullcontext()
        if self._ahead is not None:
            self._add(self._ahead.seconds)
            self.resident_bytes += self._ahead.resident_bytes
        if self._begun_s is not None:
            self._add(self._begun_s())
        with ExitStack() as found:
            toolchain, answered = self._request.toolchain, self._backend.answered_probes
            # A job has no toolchain: what the compiler tries out belongs into the caches that it is given.
            is_for_a_job = self._request.keep_cache_in is not None or self._request.shipped is not None
            if toolchain is not None and answered is not None and not is_for_a_job:
                found.enter_context(answered(Path(toolchain), self._add))
            kernels, find = self._request.kernels, self._backend.shared_kernels
            if kernels is not None and find is not None:
                found.enter_context(find(Path(kernels.folder), kernels.num_threads, self._clock, self._add))
            return found.pop_all()

    def _add(self, seconds: float) -> None:
        self.seconds += seconds


class SecondCall:
    """A step whose first call from here on is timed: the second one of the process."""

    def __init__(self, step: Callable[..., Any], backend: Backend, clock: Clock) -> None:
        self._step = step
        self._backend = backend
        self._clock = clock
        self.seconds: float | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.seconds is not None:
            return self._step(*args, **kwargs)
        start = self._clock()
        result = self._step(*args, **kwargs)
        self._backend.synchronise()
        self.seconds = self._clock() - start
        return result


def copying_s(copy: Callable[[Any], Any], outputs: Any, synchronise: Callable[[], None], clock: Clock) -> float:
    """Seconds that it takes to copy the outputs of a call: the mean of some copies with one wait at their end, since
    within a call nothing waits for them either."""
    copy(outputs)
    synchronise()
    start = clock()
    for _ in range(NUM_COPIES):
        copy(outputs)
    synchronise()
    return (clock() - start) / NUM_COPIES
