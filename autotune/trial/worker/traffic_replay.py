"""The stream of a subject under traffic, called: its first pass as a `Replay`, and the calls of the passes after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.backends.protocol import Backend
from autotune.config import Config
from autotune.measure.diagnosis import Compilations
from autotune.measure.measurement import Replay
from autotune.measure.passes import take_cold_pass
from autotune.trial.worker.subject import Subject


def stream_calls(subject: Subject, step: Callable[..., Any], backend: Backend) -> list[Callable[[], None]]:
    """What makes each call of the stream. Each lets go of its output before it returns."""
    assert subject.stream is not None

    def call_of(index: int) -> Callable[[], None]:
        inputs = stream.inputs[index]

        def call() -> None:
            inputs.call(step)
            backend.synchronise()

        return call

    stream = subject.stream
    of_shape = [call_of(index) for index in range(len(stream.inputs))]
    return [of_shape[index] for index in stream.calls]


def first_pass(
    subject: Subject, step: Callable[..., Any], config: Config, backend: Backend, wrapping_s: float
) -> Replay:
    """Call the whole stream for the first time; `wrapping_s` is what it took to make `step`."""
    assert subject.stream is not None
    assert subject.shapes is not None

    def read() -> Compilations | None:
        return backend.compilations(subject.model, config)

    read()  # What a framework does to be able to tell is no part of the first call.
    cold_s, compilations = take_cold_pass(stream_calls(subject, step, backend), read)
    return Replay(
        sizes=subject.stream.sizes,
        stream=subject.stream.calls,
        cold_s=(wrapping_s + cold_s[0], *cold_s[1:]),
        compilations=compilations,
        inputs=subject.shapes.inputs,
        outputs=subject.shapes.outputs,
        padding=subject.shapes.padding,
    )
