"""`StepGate`: what the training steps of a config are held to, and how far they may be from the untuned ones.

What is compared, and why not more, is in `steps`. Where the steps drew other random numbers than the untuned ones, and
so are other steps, what they have in common is compared: which weights moved, how the loss changes along the step's own
gradient, and the distribution of the losses (`chance`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.errors import AutotuneError
from autotune.measure import parts
from autotune.measure.agreement import Array, rms_of, share, why_incomparable
from autotune.measure.parts import DisagreementError, Part, Strictness, require_same_changes
from autotune.trial.worker.accuracy_check import (
    WrongResultError,
    heading_of,
    settled_floats,
    without_turns,
    without_values,
)
from autotune.trial.worker.calls.chance import require_alike

NUM_STEPS = 4

_LATER_LOSSES = 10.0
"""Losses after the first may differ by so many tolerances: each step multiplies what the one before has rounded."""
_MOVEMENT = 0.5
"""Largest error of a weight's way: 1 is a weight that was left alone, or moved twice as far."""
_MOST_MOVEMENT = 2.0 * NUM_STEPS
"""Times as far may a weight move whose gradient is nothing but rounding: Adam adds up steps of one sign or of two."""
_FLOOR = 1e-2
"""Share of the largest gradient (or movement) of all weights below which one is compared by that share: some gradients
are zero but for rounding, such as those of an attention's key biases."""
_STANDS = 1e-4
"""Share of the largest movement from which on a weight that is left alone is wrong."""
_SPREADS = 3.0
"""A gradient may be this many times as far away as the farthest of the nudged ones; right ones were 0.2 to 1.6."""
_MOST_SPREAD = 0.25
"""Whatever the spread, a gradient that is further away is wrong."""
_OWN_WAY = 0.5
"""Largest distance of a gradient, or a slice of one, as a share of its own norm: 1 is none at all, 2 the opposite."""
_FEW, _SAME_DIRECTION = 64, 0.9
"""Numbers of a weight up to which other draws may lead it another way, and the cosine from which they did not."""
_TINY = 1e-300
_LEAST_SLICE = 1e-2
"""Share of the largest slice's norm below which a slice is not compared by its own."""
NUDGE = 1e-2
"""Weights are nudged by this share of the tolerance: float32 by 1e-5, ten to a hundred times what rounding does."""
_SLOPE_ERROR = 0.01
"""By how much the loss may change along the gradient other than it says, beside the tolerance. Right steps were
off by less than 0.001; a mask of its own in the backward pass made it 0.98 (share 0.1) to 0.7 (0.5, six layers)."""
_MOST_SLOPE_ERROR = 0.1
"""An untuned step that is off by more tells nothing: of a gradient next to zero, or moments in place of gradients."""


Gradient = Mapping[str, Array]
"""What is kept of a gradient, by the end of its name: all of it, or what stands for a large one (`sketch_of`). Empty
where there is none, and the optimizer passes the weight by: zeros are something else."""


@dataclass(frozen=True)
class StepsTaken:
    """What the steps of one run gave and left behind."""

    losses: Array
    """The loss of each step in turn, and of the first one repeated."""
    gradients: Sequence[Gradient]
    """The gradients of the first step."""
    again: Sequence[Gradient]
    """The gradients of the first step, repeated. Not in a reference that was read."""
    ways: Array
    """Root mean square of what each weight moved by in all."""
    left: list[Part]
    """What the first step left behind beside the weights; and which objects the last one left in others' places."""
    chance: Array | None = None
    """The losses of the first batch over several draws of random numbers; None where the step draws none, or those of
    the untuned one."""
    slope: float | None = None
    """How the loss changes along the step's own gradient with the same draw, over what the gradient says: 1 where the
    two belong together. None where nothing is drawn, or the gradients are not known."""
    not_compared: tuple[str, ...] = ()
    """Why that is not known, in words."""
    num_inputs: int = 0
    """Inputs of the subject: without those that were made up, if the untuned step did not take them."""
    spread: Array | None = None
    """In a reference: how far each gradient of the first step moves when the weights are nudged."""
    own_spreads: Sequence[Array] = ()
    """In a reference: the same of each gradient and its slices by their own norms (see `own_distances`)."""
    left_moved: Mapping[str, float] = field(default_factory=dict)
    """Root mean square of what each part of `left` moved by in the steps after the first, by name."""
    has_turns: bool = True
    """See `Seen.has_turns`."""
    times: frozenset[str] = frozenset()
    """See `Seen.times`."""

    @property
    def allowed(self) -> Array:
        """The spread, zero for each gradient where there is none."""
        return np.zeros(len(self.gradients)) if self.spread is None else self.spread


class StepGate:
    """What training steps are held to. Made for what `Steps.observe` gives."""

    def __init__(self, model: str, why_unrepeatable: Callable[[], str | None] = lambda: None) -> None:
        """`why_unrepeatable` is asked of a step that draws random numbers: None if it can be compared."""
        self._model = model
        self._why_unrepeatable = why_unrepeatable
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
        pairs = zip(compared(seen.gradients, seen.again), seen.allowed, strict=True)
        beyond = [pair.error for pair, most in pairs if pair.error_within(tolerance, most) is None]
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
        if reference.chance is None or seen.chance is None:
            return self._exact_errors(reference, seen, tolerance)
        try:
            return self._exact_errors(reference, seen, tolerance)
        except WrongResultError:
            self.by_chance = True
        _require_ways(reference, seen.ways, _led_by_chance(reference, seen))
        _require_slope(reference.slope, seen.slope, tolerance)
        return (require_alike(reference.chance, seen.chance, tolerance),)

    def _exact_errors(self, reference: StepsTaken, seen: StepsTaken, tolerance: float) -> tuple[float, ...]:
        loss_error = _require_losses(reference.losses, seen.losses, tolerance)
        num_gradients, worst = len(reference.gradients), 0.0
        for when, got in (("in the first step", seen.gradients), ("in the first step, repeated", seen.again)):
            if len(got) != num_gradients:
                raise WrongResultError(f"{len(got)} gradients instead of {num_gradients} {when}", float("inf"))
            for place, gradient in enumerate(compared(reference.gradients, got)):
                if gradient.is_there_in_one:
                    raise WrongResultError(f"gradient {place + 1} of {len(got)} {when}: {gradient}", gradient.error)
                spread = reference.allowed[place]
                error = gradient.error_within(tolerance, spread)
                if error is None:
                    what = f"{gradient}, tolerance {tolerance:g}; nudged weights move it by {spread:.3g}"
                    raise WrongResultError(f"gradient {place + 1} of {len(got)} {when}: {what}", gradient.error)
                worst = max(worst, error)
            _require_own_ways(reference, got, when)
        _require_ways(reference, seen.ways)
        _require_later_changes(reference, seen)
        try:
            # A wide reference has other element types.
            left = seen.left if reference.has_turns else without_turns(seen.left, reference.left)
            require_same_changes(
                without_values(reference.left, reference.times), left, Strictness(tolerance, with_forms=False)
            )
        except DisagreementError as error:
            raise WrongResultError(f"in the first step, {error}", error.relative_error) from None
        return loss_error, worst

    def packed(self, seen: StepsTaken) -> list[list[Array]]:
        """What is left comes with its names and forms; a spread, if there is one, comes last. Nothing is held to the
        gradients of the repeated step, whose place is empty."""
        heading = np.asarray(
            json.dumps(
                {
                    "num_inputs": seen.num_inputs,
                    "left": parts.heading_of(seen.left),
                    "left_moved": dict(seen.left_moved),
                    "slope": seen.slope,
                    "has_turns": seen.has_turns,
                    "times": sorted(seen.times),
                    "gradients": [list(gradient) for gradient in seen.gradients],
                }
            )
        )
        arrays = [part.array for part in seen.left]
        spread = [] if seen.spread is None else [[seen.spread, *seen.own_spreads]]
        chance = [] if seen.chance is None else [seen.chance]
        gradients = [array for gradient in seen.gradients for array in gradient.values()]
        return [[heading, *arrays], [seen.losses, seen.ways, *chance], gradients, [], *spread]

    def unpacked(self, stored: list[list[Array]]) -> StepsTaken:
        """Raises ValueError for the file of another release."""
        heading = heading_of(stored)
        (_, *arrays), (losses, ways, *drawn), gradients, _, *rest = stored
        left = parts.parts_with(heading["left"], arrays)
        chance = drawn[0] if drawn else None
        spread, *own_spreads = rest[0] if rest else (None,)
        return StepsTaken(
            losses, _gradients(gradients, heading.get("gradients")), [], ways, left, chance, heading.get("slope"),
            num_inputs=heading["num_inputs"], spread=spread, own_spreads=tuple(own_spreads),
            left_moved=heading.get("left_moved", {}), has_turns=heading.get("has_turns", False),
            times=frozenset(heading.get("times", ())),
        )  # fmt: skip

    def uncompared(self, seen: StepsTaken) -> tuple[str, ...]:
        return seen.not_compared

    def settled(self, reference: StepsTaken, seen: StepsTaken, tolerance: float) -> StepsTaken | None:
        left = settled_floats(reference.left, reference.times, seen.left, tolerance)
        return None if left is None else replace(reference, left=left, times=frozenset())


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


def _gradients(arrays: Sequence[Array], ends: Sequence[Sequence[str]] | None) -> list[Gradient]:
    """As they were stored: whole, whatever their size, until November 2026, and none as no elements."""
    if ends is None:
        whole = [Part("", "", array).kept() if array.shape != (0,) else [] for array in arrays]
        return [{part.name: part.array for part in kept} for kept in whole]
    left = iter(arrays)
    return [{end: next(left) for end in each} for each in ends]


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


def compared(expected: Sequence[Gradient], got: Sequence[Gradient]) -> list[_Compared]:
    """Each gradient with its reference. One below `_FLOOR` of the largest is compared by that share of the largest."""
    floor = _FLOOR * max((_largest(array) for gradient in expected for array in gradient.values()), default=0.0)
    rms_floor = _FLOOR * max((rms_of(*gradient.values()) for gradient in expected), default=0.0)
    return [_compare(r, y, floor, rms_floor) for r, y in zip(expected, got, strict=True)]


def _compare(expected: Gradient, got: Gradient, floor: float, rms_floor: float) -> _Compared:
    """The error is the largest of the arrays' that are kept of a gradient, each by its own scale."""
    if (not expected) != (not got):
        return _Compared(float("inf"), float("inf"), is_there_in_one=True)
    pairs = _pairs(expected, got)
    if pairs is None or any(why_incomparable(*pair) is not None for pair in pairs):
        return _Compared(float("inf"), float("inf"))
    differences = [_difference(*pair) for pair in pairs]
    scales = [max(_largest(r), floor) for r, _ in pairs]
    error = max((share(_largest(off), scale) for off, scale in zip(differences, scales, strict=True)), default=0.0)
    return _Compared(error, share(rms_of(*differences), max(rms_of(*expected.values()), rms_floor)))


def own_distances(expected: Gradient, got: Gradient) -> Array:
    """Root mean square of how far a gradient, and each slice along each axis of what is kept of it, is off, as a share
    of its own; zero where it tells nothing: of a slice much smaller than others, which rounding of those may reach."""
    pairs = _pairs(expected, got)
    if not pairs or any(r.shape != y.shape or not r.size for r, y in pairs):
        return np.zeros(0)
    off = [_difference(*pair) for pair in pairs]
    whole = rms_of(*expected.values())
    found = [np.atleast_1d(rms_of(*off) / whole if whole > 0 else 0.0)]
    for (own, _), difference in zip(pairs, off, strict=True):
        found += _distances_of_slices(own, difference)
    return np.concatenate(found)


def _distances_of_slices(expected: Array, difference: Array) -> Iterator[Array]:
    own, off = (np.square(np.abs(values), dtype=np.float64) for values in (expected, difference))
    for axis in range(own.ndim if own.ndim > 1 else 0):
        others = tuple(other for other in range(own.ndim) if other != axis)
        norms = np.sqrt(own.sum(axis=others))
        counts = norms > _LEAST_SLICE * norms.max()
        yield np.where(counts, np.sqrt(off.sum(axis=others)) / np.maximum(norms, _TINY), 0.0)


def _pairs(expected: Gradient, got: Gradient) -> list[tuple[Array, Array]] | None:
    """What is kept of both; None where that is not the same."""
    return [(array, got[end]) for end, array in expected.items()] if expected.keys() == got.keys() else None


def _difference(expected: Array, got: Array) -> Array:
    return np.asarray(got.astype(np.result_type(got, np.float64)) - expected)


def _require_own_ways(reference: StepsTaken, got: Sequence[Gradient], when: str) -> None:
    """A gradient, or a slice of one, that is much smaller than others leads the same way all the same: Adam goes by its
    sign. Only where rounding up to the tolerance cannot turn it, as the nudges tell."""
    for place, spread in enumerate(reference.own_spreads):
        found = own_distances(reference.gradients[place], got[place])
        if found.shape != spread.shape:
            continue
        wrong = np.flatnonzero((found > _OWN_WAY) & (spread <= NUDGE * _OWN_WAY))
        if wrong.size:
            farthest = float(found[wrong].max())
            what = "" if wrong[0] == 0 else f" in {len(wrong)} of its slices"
            raise WrongResultError(
                f"gradient {place + 1} of {len(got)} {when} is off by {farthest:.3g} times its own size{what}; nudged "
                f"weights move it by {spread[wrong].max():.3g}",
                farthest,
            )


def _require_later_changes(reference: StepsTaken, seen: StepsTaken) -> None:
    """What the first step changes beside the weights goes on to change in the steps after it, or does not."""
    for part in reference.left:
        expected, got = (each.left_moved.get(part.name) for each in (reference, seen))
        if expected is None or got is None:
            continue
        if abs(got - expected) > _MOVEMENT * max(expected, _FLOOR * _way(np.zeros_like(part.array), part.array)):
            raise WrongResultError(
                f"{part.name} moved by {got:.3g} in the {NUM_STEPS - 1} steps after the first instead of "
                f"{expected:.3g} (root mean square)",
                abs(got - expected) / max(expected, _TINY),
            )


def left_moved(first: list[Part], later: list[Part]) -> dict[str, float]:
    """How far each of the first parts has moved to where it is later; zero for what is no number, or may be a time."""
    now = {part.name: part.array for part in later if not part.is_float}
    return {part.name: _way(part.array, now.get(part.name, part.array)) for part in first}


def _way(before: Array, after: Array) -> float:
    if before.shape != after.shape or before.dtype.kind not in "biuf" or after.dtype.kind not in "biuf":
        return 0.0
    return rms_of(after.astype(np.float64) - before)


def _led_by_chance(reference: StepsTaken, seen: StepsTaken) -> Array:
    """Which weights of a few numbers, such as a classifier's bias, had a gradient of another direction with the other
    draw: chance does not average out there, and Adam adds up steps of one sign or of two."""
    if not len(reference.gradients) == len(seen.gradients) == len(reference.ways):
        return np.zeros(len(reference.ways), bool)
    pairs = [_pairs(*both) for both in zip(reference.gradients, seen.gradients, strict=True)]
    return np.array([pair is not None and len(pair) == 1 and _leads_elsewhere(*pair[0]) for pair in pairs])


def _leads_elsewhere(expected: Array, got: Array) -> bool:
    return expected.shape == got.shape and expected.size <= _FEW and _cosine(expected, got) < _SAME_DIRECTION


def _cosine(expected: Array, got: Array) -> float:
    product = np.vdot(expected.astype(np.float64), got.astype(np.float64))
    return float(product) / max(float(np.linalg.norm(expected) * np.linalg.norm(got)), _TINY)


def _require_ways(reference: StepsTaken, got: Array, by_chance: Array | None = None) -> None:
    """How far each weight moved; of one whose gradient is nothing but rounding, such as a bias before a batch norm, or
    is led by chance, no more than that it moved."""
    expected, spreads = reference.ways, reference.own_spreads
    errors = np.abs(got - expected) / np.maximum(expected, _FLOOR * expected.max())
    is_rounding = np.zeros(len(got), bool)
    if len(spreads) == len(got):
        is_rounding = np.array([spread.size > 0 and spread[0] > _OWN_WAY for spread in spreads])
        errors = np.where(is_rounding & (got > 0) & (got < _MOST_MOVEMENT * expected), 0.0, errors)
    if by_chance is not None:
        farthest = np.maximum(_MOST_MOVEMENT * expected, expected.max())
        errors = np.where(by_chance & (got > 0) & (got <= farthest), 0.0, errors)
    errors = np.where(~is_rounding & (got == 0) & (expected > _STANDS * expected.max()), 1.0, errors)
    worst = int(np.argmax(errors))
    if not errors[worst] <= _MOVEMENT:
        raise WrongResultError(
            f"weight {worst + 1} of {len(got)} moved by {got[worst]:.3g} in {NUM_STEPS} steps instead of "
            f"{expected[worst]:.3g} (root mean square)",
            float(errors[worst]),
        )


def _require_slope(expected: float | None, got: float | None, tolerance: float) -> None:
    if expected is None or got is None or not abs(expected - 1) <= _MOST_SLOPE_ERROR:
        return
    if not abs(got - 1) <= _SLOPE_ERROR + tolerance + 2 * abs(expected - 1):
        raise WrongResultError(
            f"the loss changes along the step's own gradient by {got:.3g} times what the gradient says, that of the "
            f"untuned step by {expected:.3g}: forward and backward do not drop the same (what a backward computes "
            "again it may draw again)",
            abs(got - 1),
        )


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def _shown(losses: Array) -> str:
    return ", ".join(f"{loss:.4g}" for loss in losses[:NUM_STEPS])
