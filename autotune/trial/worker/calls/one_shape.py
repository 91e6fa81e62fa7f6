"""`OneShape`: the model is called with the example inputs; what its calls give and leave behind is compared."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

from autotune.apply.compile_model import compile_under, declared_functions
from autotune.apply.config_parts import ConfigParts
from autotune.backends.outputs import Observed, observed
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import AutotuneError, quoted
from autotune.measure import accuracy
from autotune.measure.agreement import Array, spread_of
from autotune.measure.parts import Part
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import (
    EARLIER,
    Gate,
    OutputGate,
    Seen,
    is_outside,
    possible_times,
    read_reference,
    without_values,
)
from autotune.trial.worker.calls.calls import Calls, Step, Surroundings
from autotune.trial.worker.subject import Subject, why_unrepeatable
from autotune.trial.worker.use import Finalist, InUse, Leader, use_folder
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.infer import Infer
from autotune.workload.kinds.work import Work
from autotune.workload.traffic import Shapes
from autotune.workload.workload import Workload

NUM_NUDGES = 2
LONGEST_NUDGING_S = 5.0
"""No nudge is begun after so long. What is not nudged is compared by a coarser floor (`agreement.UNKNOWN_FLOOR`)."""


class OneShape(Calls):
    """Calls of a model for inference. What they leave behind is counted from the first after this was made."""

    kind: ClassVar[type[Work]] = Infer
    _shapes: Shapes | None = None
    """What a shape strategy goes by."""
    _takes_others = True
    """Other inputs than the author's can be made of these."""

    def __init__(self, workload: Workload, subject: Subject, backend: Backend) -> None:
        super().__init__(workload, subject, backend)
        self.gate: Gate = OutputGate(workload.model, self._why_unrepeatable, subject.authors, subject.num_in_a_row)
        self._surroundings = Surroundings(subject, backend)
        with self.recording():
            self.reset()
        self._before = self._surroundings.now()

    def recording(self) -> AbstractContextManager[Any]:
        """Gradients are recorded if an input of the author's requires them, and else not."""
        return nullcontext() if self._subject.signature.records_gradients else self._backend.inference()

    def compile(self, config: Config, changes: UndoLog) -> Step:
        functions = declared_functions(config, self._subject.variants)
        return compile_under(self._backend, self._subject.model, config, functions, changes, shapes=self._shapes)

    def _observe(
        self,
        step: Step,
        first: Any = None,
        *,
        reference_tolerance: float | None = None,
    ) -> Seen:
        """What the call gives for each of the subject's inputs, and what all calls leave behind."""
        example, *others = self._subject.inputs
        if first is None:
            self.reset()
            first = example.call(step)
        makes_reference = reference_tolerance is not None
        random_state = self._backend.random_state() if makes_reference else None
        calls = [self._observed(first, example)]
        once = self._surroundings.changed_since(self._before)[0] if makes_reference else []
        disturbed: list[Part] = []
        earlier: list[Part] = []
        for place, inputs in enumerate(others, start=1):
            may_fail = inputs is self._subject.derived and self._subject.derived_may_fail
            if may_fail or (place == len(others) and len(calls) == place):  # Not after one that failed.
                earlier = self._surroundings.changed_since(self._before)[0]
            if place < self._subject.num_in_a_row:
                calls.append(self._observed(self._next(step, inputs, is_new=makes_reference), inputs))
                continue
            self.reset()
            if may_fail:
                found, disturbed = self._tried(step, inputs, calls[0])
                calls += found
            else:
                calls.append(self._observed(inputs.call(step), inputs))
        left, not_compared = self._surroundings.changed_since(self._before)
        names = frozenset(part.name for part in disturbed)
        if makes_reference and self._backend.random_state() != random_state:  # Compiled code draws other numbers.
            names |= {part.name for part in left if part.is_float}
        left = without_values(left, names)
        times = possible_times(left, once, earlier)
        left += _one_call_earlier(earlier, names)
        has_forms = not self._subject.is_wide
        self._note_sketched([part.name for parts in (*(call.parts for call in calls), left) for part in parts])
        return Seen(calls, left, not_compared, framework=self._workload.framework, has_forms=has_forms, times=times)

    def _next(self, step: Step, inputs: Arguments, *, is_new: bool) -> Any:
        """The output of a call that goes on from the state that the one before has left. `is_new`: nobody knows that
        the untuned model can be called so often."""
        try:
            return inputs.call(step)
        except Exception as error:
            if not is_new:
                raise
            raise AutotuneError(
                f"the model fails at a further call after a reset ({quoted(error)})",
                tip=f"let reset leave room for {self._subject.num_in_a_row} calls in a row: that these hand the state "
                "on is compared too",
            ) from error

    def _why_unrepeatable(self, changed: Sequence[str]) -> str | None:
        """`changed`: what the calls have changed; with a reset, what that does not put back counts."""
        if self._subject.reset is not None:
            self.reset()
            changed = [part.name for part in self._surroundings.changed_since(self._before)[0]]
        return why_unrepeatable(self._subject, self._backend, changed)

    def copied(self, settings: Config) -> Callable[[Any], Any] | None:
        return self._backend.copies_outputs(self._subject.model, settings)

    def _tried(self, step: Step, inputs: Arguments, example: Observed) -> tuple[list[Observed], list[Part]]:
        """What the model gives for inputs that were made up. If it does not take them, nothing, and what the call left
        behind; from now on the subject is without them."""
        before = self._surroundings.now()
        try:
            call = self._observed(inputs.call(step), inputs)
        except Exception:  # Whatever the author's code raises for inputs that nobody meant.
            traceback.print_exc()
        else:
            if not is_outside(call.parts, example.parts):
                return [call], []
            print("the further input, made of the example, gives NaN", file=sys.stderr)
        self._subject = self._subject.without_derived()
        return [], self._surroundings.changed_since(before)[0]

    def completed(self, reference: Seen, step: Step, tolerance: float) -> Seen | None:
        nudged: list[list[Observed]] = [[] for _ in reference.calls]
        try:
            for number, call in self._nudged_calls(step, accuracy.NUDGE * tolerance):
                nudged[number].append(call)
        except Exception:
            traceback.print_exc()  # The model does not take nudged inputs: of them and those after it nothing is known.
        nudged[-1] = nudged[0]
        spreads = [
            [spread_of(part.array, _same_part(part, others), part.step) for part in call.parts]
            for call, others in zip(reference.calls, nudged, strict=True)
        ]
        return replace(reference, spreads=spreads)

    def _nudged_calls(self, step: Step, share: float) -> Iterator[tuple[int, Observed]]:
        start = time.monotonic()
        for _ in range(NUM_NUDGES):
            self._backend.nudge(self._subject.model, share)
            for number, inputs in enumerate(self._subject.inputs[:-1]):
                if time.monotonic() - start > LONGEST_NUDGING_S:
                    return
                if not 0 < number < self._subject.num_in_a_row:
                    self.reset()
                nudged = inputs.with_leaves([self._backend.nudge(leaf, share) for leaf in inputs.leaves()])
                yield number, self._observed(nudged.call(step), nudged)

    def lead_use(self, request: TrialRequest, step: Step) -> None:
        usage, model = self._usage(request), self._subject.model
        Leader(usage).lead(step, lambda share: self._backend.nudge(model, share))

    def require_use(self, request: TrialRequest, step: Step) -> None:
        keeps_nan = self._backend.keeps_nan(ConfigParts.of(request.config).settings)
        finalist = Finalist(self._usage(request), read_reference(request, self.gate), keeps_nan=keeps_nan)
        finalist.require(step)
        self._varied |= finalist.varied
        self._unseen = (*self._unseen, *finalist.said)

    def _usage(self, request: TrialRequest) -> InUse:
        assert isinstance(self.gate, OutputGate), "it is one of outputs"
        return InUse(
            self._backend,
            self.gate,
            self._workload.framework,
            self._subject.inputs,
            self._called,
            use_folder(request),
            request.tolerance_for(self._subject.dtypes),
            has_layouts=self._shapes is None,
            takes_others=self._takes_others,
        )

    def _called(self, step: Step, inputs: Arguments) -> Any:
        self.reset()
        return inputs.call(step)

    def _observed(self, returned: Any, inputs: Arguments) -> Observed:
        return observed(self._backend, returned, inputs=inputs, reads=True, whole=self._subject.authors is not None)


def _one_call_earlier(changed: list[Part], apart_from: frozenset[str]) -> Iterator[Part]:
    """See `EARLIER`. Numbers with a fraction are compared after the last call alone."""
    for part in changed:
        if not part.is_tensor | (part.name in apart_from):
            yield replace(part.without_value() if part.is_float else part, name=part.name + EARLIER)


def _same_part(part: Part, calls: list[Observed]) -> Iterator[Array]:
    for call in calls:
        yield from (other.array for other in call.parts if other.name == part.name)
