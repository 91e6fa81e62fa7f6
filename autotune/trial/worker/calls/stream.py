"""`StreamCalls`: calls of many shapes. The trial replays a stream of calls, in which each shape has its share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.backends.outputs import Observed, observed
from autotune.backends.protocol import Backend
from autotune.config import Config
from autotune.measure.diagnosis import Compilations
from autotune.measure.measurement import Replay, Samples
from autotune.measure.sampling import Clock, SamplingPlan, take_cold_pass
from autotune.trial.worker.calls.calls import Step
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.trial.worker.subject import Subject
from autotune.trial.worker.subjects.stream_inputs import StreamInputs
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.stream import Stream
from autotune.workload.workload import Workload


class StreamCalls(OneShape):
    """Calls of the shapes of the traffic. What is compiled for a shape is compiled in a first pass of the stream; each
    shape has its own second call, somewhere in the second pass, which is not told apart."""

    kind = Stream

    def __init__(self, workload: Workload, subject: Subject, backend: Backend) -> None:
        super().__init__(workload, subject, backend)
        self._stream = subject.work_as(StreamInputs)
        self._shapes = self._stream.shapes

    def first(self, step: Step, settings: Config, clock: Clock, begun: float) -> None:
        """One pass of the stream; making the step counts as part of its first call."""
        wrapping_s = clock() - begun

        def read() -> Compilations | None:
            shapes = self._backend.shapes
            return None if shapes is None else shapes.compilations(self._subject.model, settings)

        read()  # The first reading may set up counters, which is not part of the first call.
        cold_s, compilations = take_cold_pass(self.one_pass(step), read, clock)
        self.replay = Replay(
            sizes=self._stream.sizes,
            stream=self._stream.calls,
            cold_s=(wrapping_s + cold_s[0], *cold_s[1:]),
            compilations=compilations,
            inputs=self._stream.shapes.inputs,
            outputs=self._stream.shapes.outputs,
            padding=self._stream.shapes.padding,
        )

    def first_call_s(self, spent_s: float) -> float:
        del spent_s
        assert self.replay is not None
        return self.replay.cold_s[0]

    def second(self, step: Step, settings: Config, clock: Clock) -> None:
        """Not told apart."""

    def sampling(self, plan: SamplingPlan) -> SamplingPlan:
        """Calls of a stream are timed one by one."""
        return plan.model_copy(update={"calls_per_sample": 1})

    def one_pass(self, step: Step, times: int = 1) -> list[Callable[[], None]]:
        of_shape = [self._waited_for(step, inputs, times) for inputs in self._stream.inputs]
        return [of_shape[index] for index in self._stream.calls]

    def launch(self, step: Step) -> None:
        """Calls differ."""

    def copied(self, settings: Config) -> None:
        """Not told apart by shape."""

    def compile_s(self, first_call_s: float, second_call_s: float | None, samples: Samples) -> float:
        """Extra time of the first pass."""
        del first_call_s, second_call_s
        assert self.replay is not None
        return max(sum(self.replay.cold_s) - len(self.replay.stream) * float(np.mean(samples.latency_s)), 0.0)

    def _observed(self, returned: Any, inputs: Arguments) -> Observed:
        """A shape strategy may pad or split a call, whose inputs are then copies."""
        del inputs
        return observed(self._backend, returned, inputs=None, reads=True, whole=self._subject.authors is not None)
