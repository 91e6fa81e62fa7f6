"""`Calls`: what a trial calls, and everything in which one kind of workload differs from another.

A trial goes through the same stages whatever it measures (`measure`). At each of them it asks its `Calls`, in this
order:

    compile     the function that is called, under the config
    first       the calls in which everything is compiled
    observe     what the gate compares: the first output, and that of the other calls to be checked
    one_pass    the calls that are timed again and again, which `sampling` says how
    launch, copied      what is timed beside the samples, where there is such a thing
    reset       before each call of a model that keeps state, where its author declared how: never timed
    require_sound       after all timing
    completed   what the reference lacks, after all of that
    lead_use, require_use       a longer use than that of a trial, in a block: what the untuned model gives in it, and
                that of a finalist
    authors_inputs      in which the limits of whole numbers are looked for, at the very end

A module here needs no entry anywhere: its `Calls` is found by the kind of work that it says it is for, such as
`OneShape` (the same inputs again and again), `StreamCalls` (inputs of many shapes, as traffic has them), `Steps`
(training steps) and `Continuations` (generated text). Nothing else in a trial's process asks which of them it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import numpy as np

from autotune.backends.call_state import CallState
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import quoted
from autotune.measure.generated import Generated
from autotune.measure.measurement import Replay, Samples
from autotune.measure.parts import Part
from autotune.measure.sampling import Clock, PreparedCall, SamplingPlan
from autotune.measure.sketch import sketched
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import Gate
from autotune.trial.worker.costs import SecondCall
from autotune.trial.worker.subject import Subject, same_in_all
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.work import Work
from autotune.workload.workload import Workload

Step = Callable[..., Any]
"""The model, or its training step, under a config."""


class Calls(ABC):
    """The calls of one trial, made before the subject is changed. The defaults are those of calls with the example
    inputs alone."""

    kind: ClassVar[type[Work]]
    """What they are for."""
    gate: Gate
    """What is compared; used after `observe`."""
    replay: Replay | None = None
    """The stream of calls with its first pass; None where there is none, and before `first`."""
    generated: Generated | None = None
    """The stream of prompts with its first pass; None where nothing is generated, and before `first`."""

    is_used = False
    """A longer use follows at the very end, which may need what is there before."""
    has_many_steps = False
    """A call is hundreds of short ones, one after the other."""

    def __init__(self, workload: Workload, subject: Subject, backend: Backend) -> None:
        self._workload = workload
        self._subject = subject
        self._backend = backend
        self._unseen: tuple[str, ...] = ()
        self._varied: set[str] = set()
        """Names of inputs that were given other values in a longer use."""

    @property
    def not_varied(self) -> tuple[str, ...]:
        """What the inputs that were seen leave as it is, and what no check looks at, each as a sentence."""
        return (*same_in_all(self._subject.constants, self._varied), *self._subject.not_varied, *self._unseen)

    @property
    def authors_inputs(self) -> list[Arguments]:
        """The inputs of the author's, each once, whose limits are those of the calls of a job."""
        return self._subject.authors_inputs

    @property
    def untouched(self) -> Any:
        """The model as its author made it."""
        return self._subject.model

    def reset(self) -> None:
        """Put a model that keeps state into the one that its calls begin in, if its author declared how."""
        if self._subject.reset is not None:
            self._subject.reset()
            self._backend.synchronise()

    @abstractmethod
    def recording(self) -> AbstractContextManager[Any]:
        """The context in which all calls are made."""

    @abstractmethod
    def compile(self, config: Config, changes: UndoLog) -> Step:
        """The function that is called with each of the subject's inputs, and timed."""

    def first(self, step: Step, settings: Config, clock: Clock, begun: float) -> Any:
        """Make the calls that compile. `settings` are the backend's, `begun` is when the making of `step` began.

        Returns the output for the first inputs; None where `observe` makes a call for that.
        """
        del settings, clock, begun
        output = self._subject.inputs[0].call(step)
        self._backend.synchronise()
        return output

    def first_call_s(self, spent_s: float) -> float:
        """Seconds of making the step and its very first call, out of those that it and `first` took."""
        return spent_s

    def second(self, step: Step, settings: Config, clock: Clock) -> SecondCall | None:
        """In place of the step in `observe` where something is still recorded in its second call, which this times;
        None where nothing is."""
        captures = self._backend.copies_outputs(self._subject.model, settings) is not None
        return SecondCall(step, self._backend, clock) if captures else None

    def observe(self, step: Step, first: Any = None, *, reference_tolerance: float | None = None) -> Any:
        """What the gate compares. `first` is the output for the first inputs, None: it is made here. This makes the
        other calls.

        With a `reference_tolerance` they are to be the reference, to which others are held with that tolerance. What
        else calls of the untuned model do is noted.
        """
        if reference_tolerance is None and step is not self._subject.model:
            return self._observe(step, first)
        with self._backend.noting_operators() as names:
            seen = self._observe(step, first, reference_tolerance=reference_tolerance)
        if len(names) == 1:
            what = "an operator that is not the framework's own: what it does beside its result is not compared"
            self._unseen += (f"the model calls {next(iter(names))}, {what}",)
        elif names:
            what = "operators that are not the framework's own: what they do beside their results is not compared"
            self._unseen += (f"the model calls {', '.join(names)}, {what}",)
        return seen

    def _note_sketched(self, names: Sequence[str]) -> None:
        """Say of which of the parts with these names not all was compared."""
        said = sketched(names)
        self._unseen += tuple(sentence for sentence in said if sentence not in self._unseen)

    @abstractmethod
    def _observe(self, step: Step, first: Any = None, *, reference_tolerance: float | None = None) -> Any:
        """See `observe`."""

    @property
    def compared_by_chance(self) -> bool:
        """After the check: what a config computes was compared by distributions alone, since it draws other random
        numbers than the untuned model."""
        return False

    def sampling(self, plan: SamplingPlan) -> SamplingPlan:
        """The plan as these calls can be sampled: one by one where a state is put back between them."""
        return plan if self._subject.reset is None else plan.model_copy(update={"calls_per_sample": 1})

    def one_pass(self, step: Step, times: int = 1) -> list[Callable[[], None]]:
        """The calls that are the unit of sampling. Each is made so many times and waited for; nothing is kept."""
        return [self._waited_for(step, self._subject.inputs[0], times)]

    def example(self, step: Step) -> Callable[[], None]:
        """One call, to be profiled."""
        return self._waited_for(step, self._subject.inputs[0])

    def launch(self, step: Step) -> Callable[[], Any] | None:
        """A call that is not waited for, to be timed by the device's own clock; None where calls differ."""
        return partial(self._subject.inputs[0].call, step) if self._subject.reset is None else None

    def copied(self, settings: Config) -> Callable[[Any], Any] | None:
        """What copies the outputs of a call, and is a part of each latency; None where nothing is copied, or it costs
        nothing."""
        del settings
        return None

    def compile_s(self, first_call_s: float, second_call_s: float | None, samples: Samples) -> float:
        """Extra time of the calls that compile, compared with steady calls."""
        median_s = float(np.median(samples.latency_s))
        cold_s = [call_s for call_s in (first_call_s, second_call_s) if call_s is not None]
        return max(sum(call_s - median_s for call_s in cold_s), 0.0)

    def require_sound(self, step: Step) -> None:  # noqa: B027 -- There is a default: nothing is required.
        """Raises WrongResultError if the timed calls have corrupted the model. By default no call depends on those
        before."""

    def lead_use(self, request: TrialRequest, step: Step) -> None:  # noqa: B027 -- There is a default: no longer use.
        """Write to `use_folder(request)` what the untuned model gives in a longer use, at the very end. Its weights may
        be others afterwards."""

    def require_use(self, request: TrialRequest, step: Step) -> None:  # noqa: B027 -- As above.
        """Raises WrongResultError for a finalist that does not give, in a longer use at the very end, what the untuned
        model gives. What that did not vary is in `not_varied` afterwards."""

    @abstractmethod
    def completed(self, reference: Any, step: Step, tolerance: float) -> Any:
        """The reference with what rounding may do to it, at the very end: the model's weights are others afterwards.
        None if there is nothing to add."""

    def _waited_for(self, step: Step, inputs: Arguments, times: int = 1) -> Callable[[], None]:
        def call() -> None:
            for _ in range(times):
                inputs.call(step)
            self._backend.synchronise()

        return call if self._subject.reset is None else PreparedCall(self.reset, call)


Moment = CallState | str
"""What was seen at one moment, or a sentence about what cannot be looked into."""


class Surroundings:
    """What calls may leave something behind in: the model, and the inputs that its author gave. Inputs that were made
    up are left out: the model need not take them."""

    def __init__(self, subject: Subject, backend: Backend, apart_from: Sequence[Any] = ()) -> None:
        """`apart_from`: tensors that are meant to change, such as the weights in training."""
        self._backend = backend
        self._apart_from = apart_from
        self._roots: dict[str, Any] = {"model": subject.model}
        for number, inputs in enumerate(subject.authors_inputs, start=1):
            self._roots |= {f"{name} of input {number}": leaf for name, leaf in inputs.named_leaves()}

    def now(self) -> Moment:
        try:
            return CallState(self._backend, self._roots)
        except Exception as error:
            return f"the state of the model and its inputs ({quoted(error)})"

    def changed_since(self, before: Moment) -> tuple[list[Part], list[str]]:
        """What has changed, with what it is now; and in words why that is not known."""
        after = self.now()
        if isinstance(before, CallState) and isinstance(after, CallState):
            return after.changed_since(before, self._apart_from), []
        return [], [after if isinstance(after, str) else str(before)]
