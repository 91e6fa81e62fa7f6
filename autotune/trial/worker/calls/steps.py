"""`Steps`: training steps. A step changes the weights, so what is compared is where a few steps lead.

From the weights that the model was built with it takes `NUM_STEPS` steps, on the example batch and the derived one in
turns; then the weights are put back, and the first step is taken again: some captures are right only once.
What the untuned step gave for the same is the reference:

* the losses of all steps; a step that leaves the weights alone gives itself away in the second one;
* the gradients of the first step and of the repeated one, and which weights have none: an optimizer passes those by,
  and weight decay moves the ones whose gradient is zero. Not those of later steps: Adam's first steps go by the sign
  of a gradient, so rounding decides where an entry that is zero but for it moves, and later gradients differ by that;
* how far each weight moved in all, for the same reason by its norm alone;
* what the first step left behind beside the weights: statistics of batch norm, counters, inputs written to.

Where rounding decides a branch, such as a ReLU of an activation next to zero, right gradients differ by far more than
the tolerance. How far the untuned step's own gradients move when its weights are nudged is part of the reference, and
a gradient that is no further away than that is right.

A step may draw random numbers, as dropout does. Each of the steps above has a seed of its own, which is set before it,
so that the untuned step gives the same again. Compiled code draws other numbers from a seed. Where it does, its losses
over several draws are held to those of the untuned step (`chance`), and all of the above is compared in a second
process that draws as the untuned step does (`same_numbers`).

docs/training.md has the figures that the tolerances rest on.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from autotune.apply.config_parts import ConfigParts
from autotune.backends.capabilities import NO_GRADIENT, require
from autotune.backends.outputs import output_arrays
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.command_line import asked
from autotune.config import Config
from autotune.errors import AutotuneError
from autotune.measure import parts
from autotune.measure.agreement import Array, share, why_incomparable
from autotune.measure.parts import DisagreementError, Part, Terms, require_same_changes
from autotune.measure.sampling import Clock
from autotune.trial.worker.accuracy_check import Gate, WrongResultError, heading_of
from autotune.trial.worker.calls.calls import Calls, Step, Surroundings
from autotune.trial.worker.calls.chance import NUM_DRAWS, require_alike
from autotune.trial.worker.subject import Subject, describe_dropouts
from autotune.workload.arguments import Arguments
from autotune.workload.workload import Workload

NUM_STEPS = 4

_LATER_LOSSES = 10.0
"""Losses after the first may differ by so many tolerances: each step multiplies what the one before has rounded."""
_MOVEMENT = 0.5
"""Largest error of a weight's way: 1 is a weight that was left alone, or moved twice as far."""
_FLOOR = 1e-2
"""Share of the largest gradient (or movement) of all weights below which one is compared by that share: some gradients
are zero but for rounding, such as those of an attention's key biases."""

_SLOPE_STEP = 0.02
"""Share of the loss by which it is to change along the gradient, in each direction."""
_SLOPE_ERROR = 0.2

_NUM_NUDGES = 4
_NUDGE = 1e-2
"""Weights are nudged by this share of the tolerance: float32 by 1e-5, ten to a hundred times what rounding does."""
_SPREADS = 3.0
"""A gradient may be this many times as far away as the farthest of the nudged ones; right ones were 0.2 to 1.6."""
_MOST_SPREAD = 0.25
"""Whatever the spread, a gradient that is further away is wrong."""


@dataclass(frozen=True)
class StepsTaken:
    """What the steps of one run gave and left behind."""

    losses: Array
    """The loss of each step in turn, and of the first one repeated."""
    gradients: list[Array]
    """The gradients of the first step."""
    again: list[Array]
    """The gradients of the first step, repeated."""
    ways: Array
    """Root mean square of what each weight moved by in all."""
    left: list[Part]
    """What the first step left behind beside the weights."""
    chance: Array | None = None
    """The losses of the first batch over several draws of random numbers; None where the step draws none."""
    slope: float | None = None
    """How the loss changes along the step's own gradient with the same draw, over what the gradient says: 1 where the
    two belong together. None where nothing is drawn, or the gradients are not known."""
    not_compared: tuple[str, ...] = ()
    """Why that is not known, in words."""
    num_inputs: int = 0
    """Inputs of the subject: without those that were made up, if the untuned step did not take them."""
    spread: Array | None = None
    """In a reference: how far each gradient of the first step moves when the weights are nudged."""

    @property
    def allowed(self) -> Array:
        """The spread, zero for each gradient where there is none."""
        return np.zeros(len(self.gradients)) if self.spread is None else self.spread


class Steps(Calls):
    """Keeps a copy of the weights from its making until `observe`."""

    def __init__(self, workload: Workload, subject: Subject, backend: Backend, *, same_numbers: bool = False) -> None:
        """`same_numbers`: the step draws the random numbers of the untuned one, whatever the config."""
        assert subject.recipe is not None
        super().__init__(subject, backend)
        self._recipe = subject.recipe
        self._training = require(backend.training, asked("task", "train"))
        self._surroundings = Surroundings(subject, backend, self._training.trained(self._recipe.optimizer))
        self._before = self._surroundings.now()
        self._start = self._training.weights(self._recipe.optimizer)
        self._rewind: Callable[[], None] | None = self._training.snapshot(subject.model, self._recipe.optimizer)
        self._seed = workload.seed
        self._gate = StepGate(workload.model, self._why_unrepeatable, same_numbers=same_numbers)
        self.gate: Gate = self._gate

    def recording(self) -> AbstractContextManager[Any]:
        """Gradients are the point."""
        return nullcontext()

    def compile(self, config: Config, changes: UndoLog) -> Step:
        settings = ConfigParts.of(config).settings
        return self._training.training_step(
            self._subject.model, self._recipe.loss, self._recipe.optimizer, settings, changes
        )

    def first(self, step: Step, settings: Config, clock: Clock, begun: float) -> Any:
        self._backend.seed(self._seed_of(0))
        return super().first(step, settings, clock, begun)

    def observe(self, step: Step, first: Any = None, *, reference_tolerance: float | None = None) -> StepsTaken:
        """What `NUM_STEPS` steps come to, of which `first` was the loss of the first, and that one again."""
        assert self._rewind is not None
        example, *others = self._subject.inputs[:-1]
        losses = [self._taken(step, example) if first is None else self._loss(first)]
        left, not_compared = self._surroundings.changed_since(self._before)
        gradients = self._training.gradients(self._recipe.optimizer)
        losses += self._later_losses(step, [*others, example])
        ways = self._ways()
        self._rewind()
        losses.append(self._taken(step, example))
        again = self._training.gradients(self._recipe.optimizer)
        chance = self._chance(step)
        slope = None if chance is None else self._slope(step, again, losses[-1])
        spread = None
        if reference_tolerance is not None:
            spread = self._spread(step, gradients, _NUDGE * reference_tolerance)
        self._rewind, self._start = None, []
        return StepsTaken(
            losses=np.array(losses),
            gradients=gradients,
            again=again,
            ways=ways,
            left=left,
            chance=chance,
            slope=slope,
            not_compared=tuple(not_compared),
            num_inputs=len(self._subject.inputs),
            spread=spread,
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

    def completed(self, reference: StepsTaken, step: Step, tolerance: float) -> None:
        """The spread of the gradients is in it."""

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

    def _chance(self, step: Step) -> Array | None:
        """The losses of the first batch over several draws, each from where the first step began."""
        assert self._rewind is not None
        example = self._subject.inputs[0]
        self._rewind()
        self._backend.seed(self._seed_of(0))
        before = self._backend.random_state()
        losses = [self._loss(example.call(step))]
        if self._backend.random_state() == before and not self._backend.active_dropout(self._subject.model):
            return None
        for number in range(1, NUM_DRAWS):
            self._rewind()
            losses.append(self._taken(step, example, number))
        return np.array(losses)

    def _loss(self, returned: Any) -> float:
        arrays = output_arrays(self._backend, returned)
        if len(arrays) != 1 or arrays[0].size != 1:
            shapes = ", ".join(str(array.shape) for array in arrays) or "no tensor"
            raise AutotuneError(f"the loss gave {shapes} and not one number", tip="let it return its mean or its sum")
        return float(arrays[0].reshape(()))

    def _slope(self, step: Step, gradients: list[Array], loss: float) -> float | None:
        """See `StepsTaken.slope`. `gradients` and `loss` are those of the first step."""
        assert self._rewind is not None
        if len(gradients) != len(self._start):
            return None
        pairs = list(zip(self._start, gradients, strict=True))
        square = sum(float(np.square(gradient, dtype=np.float64).sum()) for _, gradient in pairs)
        if not square > 0 or any(weight.shape != gradient.shape for weight, gradient in pairs if gradient.size):
            return None
        by = _SLOPE_STEP * abs(loss) / square
        ends = []
        for sign in (by, -by):
            moved = (w + np.asarray(sign * g, w.dtype) if g.shape == w.shape else w for w, g in pairs)
            self._rewind()
            self._training.set_weights(self._recipe.optimizer, moved)
            ends.append(self._taken(step, self._subject.inputs[0]))
        return (ends[0] - ends[1]) / (2 * by * square)

    def _spread(self, step: Step, gradients: list[Array], nudge: float) -> Array:
        """The largest distance of each gradient of the first step from what it is with nudged weights."""
        assert self._rewind is not None
        spread = np.zeros(len(gradients))
        generator = np.random.default_rng(0)
        for _ in range(_NUM_NUDGES):
            self._rewind()
            self._training.set_weights(self._recipe.optimizer, _nudged(self._start, nudge, generator))
            self._taken(step, self._subject.inputs[0])
            nudged = self._training.gradients(self._recipe.optimizer)
            spread = np.maximum(spread, [gradient.distance for gradient in _compared(gradients, nudged)])
        return spread

    def _ways(self) -> Array:
        """Root mean square of what each weight changed by since the beginning."""
        now = self._training.weights(self._recipe.optimizer)
        return np.array([_rms(y.astype(np.float64) - x) for x, y in zip(self._start, now, strict=True)])

    def _why_unrepeatable(self) -> str | None:
        """Why steps of this framework's compiled code cannot be compared, where the model draws random numbers."""
        if self._training.draw_as_uncompiled is not None:
            return None
        dropouts = describe_dropouts(self._subject, self._backend)
        if dropouts is not None:
            return f"{dropouts} active: set its share to 0 for the study, since compiled code draws other numbers"
        return (
            "it draws random numbers (dropout as a function, sampling), and compiled code draws others: turn that off"
        )


class StepGate:
    """What training steps are held to. Made for what `Steps.observe` gives."""

    def __init__(
        self, model: str, why_unrepeatable: Callable[[], str | None] = lambda: None, *, same_numbers: bool = False
    ) -> None:
        """`why_unrepeatable` is asked of a step that draws random numbers: None if it can be compared.
        `same_numbers`: the steps draw the random numbers of the untuned one."""
        self._model = model
        self._why_unrepeatable = why_unrepeatable
        self._same_numbers = same_numbers
        self.by_chance = False
        """The steps drew other random numbers, so that only their losses over several draws were compared."""

    def refuse_unusable(self, seen: StepsTaken, tolerance: float) -> None:
        """An untuned step with a loss that is no number, or that gives another result from the same weights."""
        losses = seen.losses
        if not np.isfinite(losses).all():
            raise WrongResultError(
                f"the untuned training step itself gives losses of {_shown(losses)} in its first {NUM_STEPS} steps; "
                "is the learning rate too large?",
                float("nan"),
            )
        if not seen.ways.any():
            raise AutotuneError(
                f"{self._model}: the untuned training step changes no weight",
                tip="is the optimizer made with the parameters of this very model?",
            )
        if seen.chance is not None and (why := self._why_unrepeatable()) is not None:
            raise AutotuneError(f"{self._model}: the training step cannot be repeated: {why}")
        compared = zip(_compared(seen.gradients, seen.again), seen.allowed, strict=True)
        beyond = [pair.error for pair, most in compared if pair.error_within(tolerance, most) is None]
        unlike = max(abs(losses[0] - losses[-1]) / np.abs(losses).max(), *beyond, 0.0)
        if not unlike <= tolerance:
            raise AutotuneError(
                f"{self._model}: the untuned training step gives another result when it is repeated from the same "
                f"weights on the same batch with the same seed (relative error {unlike:.3g})",
                tip="does the loss draw from a generator of its own, or keep state from step to step?",
            )

    def errors(self, reference: StepsTaken, seen: StepsTaken, tolerance: float) -> tuple[float, ...]:
        """Errors of the loss and of the gradients; of steps with other random numbers, that of the mean loss. Raises
        WrongResultError with the step or the weight in question."""
        if reference.chance is None or seen.chance is None or self._same_numbers:
            return self._exact_errors(reference, seen, tolerance)
        try:
            return self._exact_errors(reference, seen, tolerance)
        except WrongResultError:
            self.by_chance = True
        _require_ways(reference.ways, seen.ways)
        _require_slope(reference.slope, seen.slope)
        return (require_alike(reference.chance, seen.chance, tolerance),)

    def _exact_errors(self, reference: StepsTaken, seen: StepsTaken, tolerance: float) -> tuple[float, ...]:
        loss_error = _require_losses(reference.losses, seen.losses, tolerance)
        num_gradients, worst = len(reference.gradients), 0.0
        for when, got in (("in the first step", seen.gradients), ("in the first step, repeated", seen.again)):
            if len(got) != num_gradients:
                raise WrongResultError(f"{len(got)} gradients instead of {num_gradients} {when}", float("inf"))
            for place, gradient in enumerate(_compared(reference.gradients, got)):
                if gradient.is_there_in_one:
                    raise WrongResultError(f"gradient {place + 1} of {len(got)} {when}: {gradient}", gradient.error)
                spread = reference.allowed[place]
                error = gradient.error_within(tolerance, spread)
                if error is None:
                    what = f"{gradient}, tolerance {tolerance:g}; nudged weights move it by {spread:.3g}"
                    raise WrongResultError(f"gradient {place + 1} of {len(got)} {when}: {what}", gradient.error)
                worst = max(worst, error)
        _require_ways(reference.ways, seen.ways)
        try:
            # A wide reference has other element types.
            require_same_changes(reference.left, seen.left, Terms(tolerance, with_forms=False))
        except DisagreementError as error:
            raise WrongResultError(f"in the first step, {error}", error.relative_error) from None
        return loss_error, worst

    def packed(self, seen: StepsTaken) -> list[list[Array]]:
        """What is left comes with its names and forms; a spread, if there is one, comes last."""
        heading = np.asarray(
            json.dumps({"num_inputs": seen.num_inputs, "left": parts.heading_of(seen.left), "slope": seen.slope})
        )
        arrays = [part.array for part in seen.left]
        spread = [] if seen.spread is None else [[seen.spread]]
        chance = [] if seen.chance is None else [seen.chance]
        return [[heading, *arrays], [seen.losses, seen.ways, *chance], seen.gradients, seen.again, *spread]

    def unpacked(self, stored: list[list[Array]]) -> StepsTaken:
        """Raises ValueError for the file of another release."""
        heading = heading_of(stored)
        (_, *arrays), (losses, ways, *drawn), gradients, again, *rest = stored
        left = parts.parts_with(heading["left"], arrays)
        chance = drawn[0] if drawn else None
        spread = rest[0][0] if rest else None
        return StepsTaken(
            losses, gradients, again, ways, left, chance, heading.get("slope"),
            num_inputs=heading["num_inputs"], spread=spread,
        )  # fmt: skip

    def uncompared(self, seen: StepsTaken) -> tuple[str, ...]:
        return seen.not_compared

    def with_forms(self, reference: StepsTaken, seen: StepsTaken) -> None:
        """Nothing is lacking."""


@dataclass(frozen=True)
class _Compared:
    """How far a gradient is from the reference's."""

    error: float
    """Largest difference over the largest entry; infinity where they cannot be compared."""
    distance: float
    """Root mean square of the difference over that of the gradient: a ReLU that flips changes few entries by a lot."""
    is_there_in_one: bool = False
    """One step gave a gradient, and the other none."""

    def __str__(self) -> str:
        if self.is_there_in_one:
            return (
                "one of the steps gives a gradient, be it zeros, and the other none: weight decay moves the first alone"
            )
        return f"relative error {self.error:.3g} (root mean square {self.distance:.3g})"

    def error_within(self, tolerance: float, spread: float) -> float | None:
        """The error to record; None for a wrong gradient."""
        if self.error <= tolerance:
            return self.error
        return self.distance if self.distance <= min(_SPREADS * spread, _MOST_SPREAD) else None


def _require_losses(expected: Array, got: Array, tolerance: float) -> float:
    """The error of the losses from the same weights. Errors are relative to the largest loss: later ones vanish."""
    errors = np.abs(got - expected) / np.abs(expected).max()
    from_the_same = (0, NUM_STEPS)
    for step, error in enumerate(errors):
        allowed = tolerance if step in from_the_same else _LATER_LOSSES * tolerance
        if not error <= allowed:
            what = "the first step, repeated" if step == NUM_STEPS else f"step {step + 1} of {NUM_STEPS}"
            raise WrongResultError(
                f"the loss of {what} is {got[step]:.6g} instead of {expected[step]:.6g}: relative error {error:.3g}, "
                f"tolerance {allowed:g}",
                float(error),
            )
    return float(max(errors[step] for step in from_the_same))


def _compared(expected: list[Array], got: list[Array]) -> list[_Compared]:
    """Each gradient with its reference. One below `_FLOOR` of the largest is compared by that share of the largest."""
    floor = _FLOOR * max(map(_largest, expected), default=0.0)
    rms_floor = _FLOOR * max(map(_rms, expected), default=0.0)
    found = []
    for r, y in zip(expected, got, strict=True):
        if (r.shape == NO_GRADIENT.shape) != (y.shape == NO_GRADIENT.shape):
            found.append(_Compared(float("inf"), float("inf"), is_there_in_one=True))
            continue
        if why_incomparable(r, y) is not None:
            found.append(_Compared(float("inf"), float("inf")))
            continue
        difference = y.astype(np.result_type(y, np.float64)) - r
        error = share(_largest(difference), max(_largest(r), floor))
        found.append(_Compared(error, share(_rms(difference), max(_rms(r), rms_floor))))
    return found


def _nudged(weights: list[Array], nudge: float, generator: np.random.Generator) -> Iterator[Array]:
    """Each weight times 1 + `nudge` times a normal number, one weight in memory at a time."""
    for weight in weights:
        yield np.asarray(weight * (1 + nudge * generator.standard_normal(weight.shape)), dtype=weight.dtype)


def _require_ways(expected: Array, got: Array) -> None:
    errors = np.abs(got - expected) / np.maximum(expected, _FLOOR * expected.max())
    worst = int(np.argmax(errors))
    if not errors[worst] <= _MOVEMENT:
        raise WrongResultError(
            f"weight {worst + 1} of {len(got)} moved by {got[worst]:.3g} in {NUM_STEPS} steps instead of "
            f"{expected[worst]:.3g} (root mean square)",
            float(errors[worst]),
        )


def _require_slope(expected: float | None, got: float | None) -> None:
    """Where the untuned step's shows that it can be judged by."""
    if expected is None or got is None or not abs(expected - 1) <= _SLOPE_ERROR / 2:
        return
    if not abs(got - 1) <= _SLOPE_ERROR:
        raise WrongResultError(
            f"the loss changes along the step's own gradient by {got:.3g} times what the gradient says, that of the "
            f"untuned step by {expected:.3g}: forward and backward do not drop the same",
            abs(got - 1),
        )


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(np.abs(values), dtype=np.float64)))) if values.size else 0.0


def _shown(losses: Array) -> str:
    return ", ".join(f"{loss:.4g}" for loss in losses[:NUM_STEPS])
