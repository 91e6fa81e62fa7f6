"""The calls of a trial that are timed: one call with the example inputs, or the stream of calls under traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.backends.protocol import Backend
from autotune.config import Config
from autotune.measure.diagnosis import Compilations
from autotune.measure.measurement import Replay
from autotune.measure.sampling import Clock, take_cold_pass
from autotune.trial.worker.subject import Subject
from autotune.workload.arguments import Arguments

NUM_COPIES = 20


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


def one_call(step: Callable[..., Any], inputs: Arguments, backend: Backend, times: int = 1) -> Callable[[], None]:
    """A function that makes the call, or so many, and returns when the output is ready, without keeping it."""

    def call() -> None:
        for _ in range(times):
            inputs.call(step)
        backend.synchronise()

    return call


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


def calls_of_a_pass(
    subject: Subject, step: Callable[..., Any], backend: Backend, calls_per_sample: int = 1
) -> list[Callable[[], None]]:
    """The calls of the stream, or without traffic the single call with the example inputs, or so many of it."""
    if subject.stream is None:
        return [one_call(step, subject.inputs[0], backend, calls_per_sample)]
    of_shape = [one_call(step, inputs, backend) for inputs in subject.stream.inputs]
    return [of_shape[index] for index in subject.stream.calls]


def first_pass(
    subject: Subject, step: Callable[..., Any], config: Config, backend: Backend, *, clock: Clock, wrapping_s: float
) -> Replay:
    """Call the whole stream for the first time; `wrapping_s` is what it took, by the clock, to make `step`."""
    assert subject.stream is not None
    assert subject.shapes is not None

    def read() -> Compilations | None:
        return None if backend.shapes is None else backend.shapes.compilations(subject.model, config)

    read()  # The first reading may set up counters, which is not part of the first call.
    cold_s, compilations = take_cold_pass(calls_of_a_pass(subject, step, backend), read, clock)
    return Replay(
        sizes=subject.stream.sizes,
        stream=subject.stream.calls,
        cold_s=(wrapping_s + cold_s[0], *cold_s[1:]),
        compilations=compilations,
        inputs=subject.shapes.inputs,
        outputs=subject.shapes.outputs,
        padding=subject.shapes.padding,
    )
