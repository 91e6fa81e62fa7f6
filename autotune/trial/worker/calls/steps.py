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
from autotune.backends.outputs import output_arrays, parts_held
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import AutotuneError, marked, quoted
from autotune.measure.agreement import Array
from autotune.measure.parts import OBJECT, Part
from autotune.measure.sampling import Clock
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import Gate, WrongResultError, possible_times, read_reference, without_values
from autotune.trial.worker.calls.calls import Calls, Step, Surroundings
from autotune.trial.worker.calls.chance import NUM_DRAWS
from autotune.trial.worker.calls.later_steps import (
    Beginning,
    Kept,
    Later,
    LostStartError,
    Untuned,
    require_like_reference,
)
from autotune.trial.worker.calls.step_gate import (
    NUDGE,
    NUM_STEPS,
    Gradient,
    StepGate,
    StepsTaken,
    compared,
    left_moved,
    own_distances,
)
from autotune.trial.worker.subject import Subject
from autotune.trial.worker.use import use_folder
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.train import Train
from autotune.workload.workload import Workload

_SLOPE_STEP = 0.02
"""Share of the loss by which it is to change along the gradient, in each direction."""
_NUM_NUDGES = 4


class Steps(Calls):
    """Keeps a copy of the weights, where they lie, from its making until `observe`."""

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
        begun_with = self._training.begun_with(subject.model, optimizer)
        self._start: Beginning | None = Beginning(backend, self._training, optimizer, begun_with)
        self._rewind: Callable[[], None] | None = self._start.put_back
        self._seed = workload.seed
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
        self._backend.seed(self._seed_of(0))
        return super().first(step, settings, clock, begun)

    def _observe(self, step: Step, first: Any = None, *, reference_tolerance: float | None = None) -> StepsTaken:
        """What `NUM_STEPS` steps come to, of which `first` was the loss of the first, and that one again."""
        assert self._start is not None
        put_back = self._silenced()
        example, *others = self._subject.inputs[:-1]
        is_to_take = first is None or put_back is not None
        losses = [self._taken(step, example) if is_to_take else self._loss(first)]
        left, not_compared = self._surroundings.changed_since(self._before)
        gradients = self._gradients()
        names = (f"gradient {n} of {len(gradients)}{end}" for n, each in enumerate(gradients, start=1) for end in each)
        self._note_sketched([*(part.name for part in left), *names])
        self._after_first = self._kept()
        losses += self._later_losses(step, [*others, example])
        later = self._surroundings.changed_since(self._before)[0]
        ways = self._start.ways()
        loss, is_random = self._repeated(step, example)
        repeated = self._surroundings.changed_since(self._before)[0]
        again = self._gradients()
        spread, own_spreads = self._spreads(step, gradients, reference_tolerance)
        if put_back is not None:
            self._draws_in_silence = is_random
            put_back()
        is_random = is_random or bool(self._backend.active_dropout(self._subject.model))
        draws_others = is_random and not (self._same_numbers or self._training.draws_as_uncompiled(self._settings))
        chance = self._chance(step) if draws_others else None
        slope = self._slope(step) if draws_others and self._training.silence is None else None
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
        loss = self._loss(self._subject.inputs[0].call(step))
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
        weights = zip(self._timed_from, self._contents(), strict=True)
        moved = [place for place, (before, now) in enumerate(weights) if before != now]
        changed = [part.name for part in self._surroundings.changed_since(self._before)[0]]
        return Later(partial(self._again, step), moved, changed)

    def _again(self, step: Step) -> StepsTaken:
        """The compared steps, from what each of them began with."""
        if self._rewind is None or self._after_first is None:
            raise LostStartError("it was not kept")
        put_back = self._silenced()
        self._rewind()
        optimizer = self._recipe.optimizer
        self._start = Beginning(self._backend, self._training, optimizer, self._training.trained(optimizer))
        self._before = self._surroundings.now()
        example, *others = self._subject.inputs[:-1]
        losses = [self._taken(step, example)]
        left, not_compared = self._surroundings.changed_since(self._before)
        gradients = self._gradients()
        self._after_first.put_back()
        after_first = self._contents()
        losses += self._later_losses(step, [*others, example])
        later = self._surroundings.changed_since(self._before)[0]
        stands = np.array([one == other for one, other in zip(after_first, self._contents(), strict=True)])
        ways = np.where(stands, 0.0, self._start.ways())
        if put_back is not None:
            put_back()
        return StepsTaken(
            losses=np.array([*losses, losses[0]]),
            gradients=gradients,
            again=gradients,
            ways=ways,
            left=left,
            chance=self._chance(step) if self._draws_others else None,
            not_compared=tuple(not_compared),
            num_inputs=len(self._subject.inputs),
            left_moved=left_moved(left, later),
        )

    def _keep_start(self, *, draws_others: bool) -> None:
        """For steps that are taken again later; where none are, nothing is held from now on."""
        assert self._rewind is not None
        start = None
        if self.is_used:
            self._rewind()
            start = self._kept()
            self._timed_from = self._contents()
            self._before = self._surroundings.now()
        self._draws_others = draws_others
        self._rewind, self._start = None if start is None else start.put_back, None

    def _contents(self) -> list[Hashable]:
        """A value for each weight, which is another one once the weight was changed."""
        trained = self._training.trained(self._recipe.optimizer)
        return [self._backend.content(weight, reads_weights=True) for weight in trained]

    def _gradients(self) -> list[Gradient]:
        """What is kept of those of the last step."""
        given = self._training.gradients(self._recipe.optimizer)
        held = ([] if each is None else parts_held(self._backend, "", each) for each in given)
        return [{part.name: part.array for part in parts or ()} for parts in held]

    def _kept(self) -> Kept | None:
        """What there is now; None where no step is taken again later, or it cannot be kept."""
        if not self.is_used:
            return None
        held = partial(self._training.held, self._subject.model, self._recipe.optimizer)
        try:
            return Kept(self._backend, held, self._training.write)
        except Exception:  # A full disk, or a tensor that NumPy has no form for.
            traceback.print_exc()
            return None

    def completed(self, reference: StepsTaken, step: Step, tolerance: float) -> None:
        """The spread of the gradients is in it."""

    def _repeated(self, step: Step, example: Arguments) -> tuple[float, bool]:
        """The loss of the first step, taken again from where it began, and whether it draws random numbers."""
        assert self._rewind is not None
        self._rewind()
        self._backend.seed(self._seed_of(0))
        random_state = self._backend.random_state()
        loss = self._taken(step, example)
        return loss, self._backend.random_state() != random_state

    def _later_losses(self, step: Step, batches: list[Arguments]) -> list[float]:
        """Losses of the steps after the first, on these batches in turns. One that was made up is left out if its loss
        fails, which moves no weight, and no reference says that it does not."""
        first, *others = batches
        if first is self._subject.derived and self._subject.derived_may_fail:
            try:
                loss = self._taken(step, first, 1)
            except Exception:  # Whatever the author's code raises for a batch that nobody meant.
                traceback.print_exc()
                self._subject = self._subject.without_derived()
                batches = others
            else:
                rest = enumerate(islice(cycle([*others, first]), NUM_STEPS - 2), start=2)
                return [loss, *(self._taken(step, batch, number) for number, batch in rest)]
        following = enumerate(islice(cycle(batches), NUM_STEPS - 1), start=1)
        return [self._taken(step, batch, number) for number, batch in following]

    def _taken(self, step: Step, batch: Arguments, number: int = 0) -> float:
        """The loss of a step on this batch, which has the random numbers of the step of this number."""
        self._backend.seed(self._seed_of(number))
        return self._loss(batch.call(step))

    def _seed_of(self, number: int) -> int:
        """Another one than that with which the model was built, whose numbers are in its weights."""
        return self._seed + 1 + number

    def _chance(self, step: Step) -> Array:
        """The losses of the first batch over several draws, each from where the first step began."""
        assert self._rewind is not None
        losses = []
        for number in range(NUM_DRAWS):
            self._rewind()
            losses.append(self._taken(step, self._subject.inputs[0], number))
        return np.array(losses)

    def _loss(self, returned: Any) -> float:
        arrays = output_arrays(self._backend, returned)
        if len(arrays) != 1 or arrays[0].size != 1:
            shapes = ", ".join(str(array.shape) for array in arrays) or "no tensor"
            raise AutotuneError(f"the loss gave {shapes} and not one number", tip="let it return its mean or its sum")
        return float(arrays[0].reshape(()))

    def _slope(self, step: Step) -> float | None:
        """See `StepsTaken.slope`. The first step is taken again for each direction: a copy of its gradients takes as
        much memory as the weights."""
        assert self._start is not None
        example, change = self._subject.inputs[0], 0.0
        for sign in (1.0, -1.0):
            self._start.put_back()
            by = _SLOPE_STEP * abs(self._taken(step, example))
            if not self._start.go_along(self._training.gradients(self._recipe.optimizer), sign * by):
                return None
            change += sign * self._taken(step, example) / (2 * by)
        return change

    def _spreads(
        self, step: Step, gradients: list[Gradient], reference_tolerance: float | None
    ) -> tuple[Array | None, list[Array]]:
        """The largest distance of each gradient of the first step from what it is with nudged weights, and the same of
        it and its slices by their own norms. None and nothing where no reference is made."""
        assert self._start is not None
        if reference_tolerance is None:
            return None, []
        weights, share = self._training.trained(self._recipe.optimizer), NUDGE * reference_tolerance
        spread = np.zeros(len(gradients))
        own = [own_distances(gradient, gradient) for gradient in gradients]
        for number in range(_NUM_NUDGES):
            self._start.put_back()
            self._backend.seed(self._seed_of(number))
            self._training.write(weights, (self._backend.nudge(weight, share) for weight in weights))
            self._taken(step, self._subject.inputs[0])
            nudged = self._gradients()
            spread = np.maximum(spread, [gradient.distance for gradient in compared(gradients, nudged)])
            own = [np.maximum(*each) for each in zip(own, map(own_distances, gradients, nudged), strict=True)]
        return spread, own

    def _silenced(self) -> Callable[[], None] | None:
        """Dropout layers are silent from now on, and the model is where it began. Returns what puts them back; None
        where they are not: compiled code would not see it, or numbers can be compared without."""
        assert self._rewind is not None
        model, compiles = self._subject.model, entry_of(self._workload.framework).compiles(self._settings)
        if compiles or self._training.silence is None or not self._backend.active_dropout(model):
            return None
        put_back = self._training.silence(model)
        self._rewind()
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
