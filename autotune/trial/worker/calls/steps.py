"""`Steps`: training steps. A step changes the weights, so what is compared is where a few steps lead.

From the weights that the model was built with it takes `NUM_STEPS` steps, on the example batch and the derived one in
turns; then the weights are put back, and the first step is taken again: some captures are right only once.
What the untuned step gave for the same is the reference:

* the losses of all steps; a step that leaves the weights alone gives itself away in the second one;
* the gradients of the first step and of the repeated one, and which weights have none: an optimizer passes those by,
  and weight decay moves the ones whose gradient is zero. Not those of later steps: Adam's first steps go by the sign
  of a gradient, so rounding decides where an entry that is zero but for it moves, and later gradients differ by that;
* how far each weight moved in all, for the same reason by its norm alone;
* what the first step left behind beside the weights: statistics of batch norm, counters, inputs written to; and how
  far each of that moved in the steps after it.

Where rounding decides a branch, such as a ReLU of an activation next to zero, right gradients differ by far more than
the tolerance. How far the untuned step's own gradients move when its weights are nudged is part of the reference, and
a gradient that is no further away than that is right. And where they hardly move a gradient, or a slice of one, it is
compared by its own size too, however small it is beside others: a head that learns in the wrong direction, the rows of
rare words that get no gradient.

A step may draw random numbers, as dropout does. Each of the steps above has a seed of its own, which is set before it,
so that the untuned step gives the same again. Compiled code draws other numbers from a seed. Where it does, its losses
over several draws are held to those of the untuned step (`chance`), and all of the above is compared in a second
process that draws as the untuned step does (`same_numbers`).

docs/training.md has the figures that the tolerances rest on.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from autotune.apply.config_parts import ConfigParts
from autotune.backends.capabilities import require
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import marked, quoted
from autotune.measure.parts import OBJECT, Part
from autotune.measure.sampling import Clock
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import Gate, WrongResultError, possible_times, read_reference, without_values
from autotune.trial.worker.calls.calls import Calls, Step, Surroundings
from autotune.trial.worker.calls.later_steps import (
    Kept,
    Later,
    LostStartError,
    Untuned,
    require_like_reference,
)
from autotune.trial.worker.calls.seeded_steps import SeededSteps
from autotune.trial.worker.calls.step_gate import (
    NUM_STEPS,
    StepGate,
    StepsTaken,
    left_moved,
)
from autotune.trial.worker.subject import Subject
from autotune.trial.worker.use import use_folder
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.train import Train
from autotune.workload.workload import Workload


class Steps(Calls):
    """Keeps a copy of the weights, where they lie, from its making until `observe`, as `SeededSteps` has them."""

    kind = Train

    def __init__(self, workload: Workload, subject: Subject, backend: Backend, *, same_numbers: bool = False) -> None:
        """`same_numbers`: the step draws the random numbers of the untuned one, whatever the config, or drops nothing
        where a framework cannot do that."""
        super().__init__(workload, subject, backend)
        self._recipe = subject.work_as(Train)
        self._training = require(backend.training, marked("task", "train"))
        optimizer = self._recipe.optimizer
        self._surroundings = Surroundings(subject, backend, self._training.trained(optimizer))
        self._before = self._surroundings.now()
        self._steps = SeededSteps(backend, self._training, subject.model, optimizer, workload.seed)
        self._same_numbers = same_numbers
        self._settings = Config({})
        self._draws_in_silence = False
        """Random numbers are drawn with all dropout layers silent."""
        self._draws_others = False
        """Random numbers are drawn, and not those of the untuned step."""
        self._after_first: Kept | None = None
        self._timed_from: list[Hashable] = []
        """What tells of changes to the weights, as the timed steps begin, if steps are taken again after them."""
        self._gate = StepGate(workload.model, self._why_unrepeatable)
        self.gate: Gate = self._gate

    def recording(self) -> AbstractContextManager[Any]:
        """Gradients are the point."""
        return nullcontext()

    def compile(self, config: Config, changes: UndoLog) -> Step:
        settings = self._settings = ConfigParts.of(config).settings
        if self._same_numbers and self._training.silence is not None:
            self._training.silence(self._subject.model)
            self._before = self._surroundings.now()
        model, recipe = self._subject.model, self._recipe
        return self._training.training_step(model, recipe.loss, recipe.optimizer, settings, changes)

    def first(self, step: Step, settings: Config, clock: Clock, begun: float) -> Any:
        self._steps.seed(0)
        return super().first(step, settings, clock, begun)

    def _observe(self, step: Step, first: Any = None, *, reference_tolerance: float | None = None) -> StepsTaken:
        """What `NUM_STEPS` steps come to, of which `first` was the loss of the first, and that one again."""
        steps, put_back = self._steps, self._silenced()
        example, *others = self._subject.inputs[:-1]
        is_to_take = first is None or put_back is not None
        losses = [steps.taken(step, example) if is_to_take else steps.loss(first)]
        left, not_compared = self._surroundings.changed_since(self._before)
        gradients = steps.gradients()
        names = (f"gradient {n} of {len(gradients)}{end}" for n, each in enumerate(gradients, start=1) for end in each)
        self._note_sketched([*(part.name for part in left), *names])
        self._after_first = steps.kept() if self.is_used else None
        losses += self._later_losses(step, [*others, example])
        later = self._surroundings.changed_since(self._before)[0]
        ways = steps.start.ways()
        loss, is_random = steps.repeated(step, example)
        repeated = self._surroundings.changed_since(self._before)[0]
        again = steps.gradients()
        spread, own_spreads = steps.spreads(step, example, gradients, reference_tolerance)
        if put_back is not None:
            self._draws_in_silence = is_random
            put_back()
        is_random = is_random or bool(self._backend.active_dropout(self._subject.model))
        draws_others = is_random and not (self._same_numbers or self._training.draws_as_uncompiled(self._settings))
        chance = steps.over_draws(step, example) if draws_others else None
        slope = steps.slope(step, example) if draws_others and self._training.silence is None else None
        self._keep_start(draws_others=draws_others)
        return StepsTaken(
            losses=np.array([*losses, loss]),
            gradients=gradients,
            again=again,
            ways=ways,
            **_left_behind(left, later, repeated, draws=is_random and reference_tolerance is not None),
            chance=chance,
            slope=slope,
            not_compared=tuple(not_compared),
            num_inputs=len(self._subject.inputs),
            spread=spread,
            own_spreads=own_spreads,
        )

    @property
    def compared_by_chance(self) -> bool:
        return self._gate.by_chance

    def require_sound(self, step: Step) -> None:
        """Raises WrongResultError where the loss is no number any more after the steps that were timed."""
        loss = self._steps.loss(self._subject.inputs[0].call(step))
        if not np.isfinite(loss):
            raise WrongResultError(
                f"the loss is {loss} after the steps that were timed: give the optimizer a smaller learning rate, or "
                "the loss something that keeps it away from its limit (label smoothing)",
                float("nan"),
            )

    def lead_use(self, request: TrialRequest, step: Step) -> None:
        tolerance = request.tolerance_for(self._subject.dtypes)
        try:
            untuned = Untuned.of(self._later(step), read_reference(request, self._gate), self._gate, tolerance)
        except Exception as error:  # Its figures stand: they are no worse for that.
            traceback.print_exc()
            untuned = Untuned(why_unlike=f"they cannot be taken ({quoted(error)})")
        untuned.write(use_folder(request))

    def require_use(self, request: TrialRequest, step: Step) -> None:
        later, untuned = self._later(step), Untuned.read(use_folder(request))
        reference, tolerance = read_reference(request, self._gate), request.tolerance_for(self._subject.dtypes)
        self._unseen += require_like_reference(later, untuned, reference, self._gate, tolerance)

    def _later(self, step: Step) -> Later:
        """What the timed steps have moved, and the compared ones, taken again."""
        weights = zip(self._timed_from, self._steps.contents(), strict=True)
        moved = [place for place, (before, now) in enumerate(weights) if before != now]
        changed = [part.name for part in self._surroundings.changed_since(self._before)[0]]
        return Later(partial(self._again, step), moved, changed)

    def _again(self, step: Step) -> StepsTaken:
        """The compared steps, from what each of them began with."""
        steps = self._steps
        if not steps.can_rewind or self._after_first is None:
            raise LostStartError("it was not kept")
        put_back = self._silenced()
        steps.rewind()
        steps.begin_anew()
        self._before = self._surroundings.now()
        example, *others = self._subject.inputs[:-1]
        losses = [steps.taken(step, example)]
        left, not_compared = self._surroundings.changed_since(self._before)
        gradients = steps.gradients()
        self._after_first.put_back()
        after_first = steps.contents()
        losses += self._later_losses(step, [*others, example])
        later = self._surroundings.changed_since(self._before)[0]
        stands = np.array([one == other for one, other in zip(after_first, steps.contents(), strict=True)])
        ways = np.where(stands, 0.0, steps.start.ways())
        if put_back is not None:
            put_back()
        return StepsTaken(
            losses=np.array([*losses, losses[0]]),
            gradients=gradients,
            again=gradients,
            ways=ways,
            left=left,
            chance=steps.over_draws(step, example) if self._draws_others else None,
            not_compared=tuple(not_compared),
            num_inputs=len(self._subject.inputs),
            left_moved=left_moved(left, later),
        )

    def _keep_start(self, *, draws_others: bool) -> None:
        """For steps that are taken again later; where none are, nothing is held from now on."""
        start = None
        if self.is_used:
            self._steps.rewind()
            start = self._steps.kept()
            self._timed_from = self._steps.contents()
            self._before = self._surroundings.now()
        self._draws_others = draws_others
        self._steps.keep(None if start is None else start.put_back)

    def completed(self, reference: StepsTaken, step: Step, tolerance: float) -> None:
        """The spread of the gradients is in it."""

    def _later_losses(self, step: Step, batches: list[Arguments]) -> list[float]:
        """Losses of the steps after the first, on these batches in turns. One that was made up is left out if its loss
        fails, which moves no weight, and no reference says that it does not."""
        first, *others = batches
        if first is self._subject.derived and self._subject.derived_may_fail:
            try:
                loss = self._steps.taken(step, first, 1)
            except Exception:  # Whatever the author's code raises for a batch that nobody meant.
                traceback.print_exc()
                self._subject = self._subject.without_derived()
                batches = others
            else:
                rest = enumerate(islice(cycle([*others, first]), NUM_STEPS - 2), start=2)
                return [loss, *(self._steps.taken(step, batch, number) for number, batch in rest)]
        following = enumerate(islice(cycle(batches), NUM_STEPS - 1), start=1)
        return [self._steps.taken(step, batch, number) for number, batch in following]

    def _silenced(self) -> Callable[[], None] | None:
        """Dropout layers are silent from now on, and the model is where it began. Returns what puts them back; None
        where they are not: compiled code would not see it, or numbers can be compared without."""
        model, compiles = self._subject.model, entry_of(self._workload.framework).compiles(self._settings)
        if compiles or self._training.silence is None or not self._backend.active_dropout(model):
            return None
        put_back = self._training.silence(model)
        self._steps.rewind()
        self._before = self._surroundings.now()
        return put_back

    def _why_unrepeatable(self) -> str | None:
        """Why steps of this framework's compiled code cannot be compared, where the model draws random numbers."""
        if self._training.draw_as_uncompiled is not None or not self._draws_in_silence:
            return None
        return "it draws random numbers (dropout as a function, sampling), compiled code draws others: turn that off"


def _left_behind(first: list[Part], later: list[Part], repeated: list[Part], *, draws: bool) -> dict[str, Any]:
    """What `StepsTaken` says of what was changed after the first step, the last, and the first one repeated. `draws`:
    compiled steps draw other random numbers, and floats are left without values."""
    times = possible_times(first, repeated, later)
    left = without_values(first, frozenset(part.name for part in first if draws and part.is_float))
    turns = [*_turns(later, NUM_STEPS), *_turns(repeated, NUM_STEPS + 1)]
    return {"left": [*left, *turns], "left_moved": left_moved(first, later), "times": times}


def _turns(changed: list[Part], num_steps: int) -> Iterator[Part]:
    """Which objects are in others' places after so many steps: what takes turns may be where it was at some step, and
    at none after another."""
    for part in changed:
        if part.form == OBJECT:
            yield replace(part, name=f"{part.name} after {num_steps} steps")
