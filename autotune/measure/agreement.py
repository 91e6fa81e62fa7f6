"""Whether one array is what another says it should be, within a tolerance. NumPy only.

An array is compared as a whole and slice by slice along each of its axes. One scale for all of it would hide what is
small beside what is large: class scores beside boxes in pixels, a variance beside a mean, log-probabilities beside
indices. A slice's own scale alone would refuse right results, since rounding does not shrink with the slice where a
small value is the sum of large ones. So a slice may differ by the largest of

* the tolerance, by the slice's own largest value;
* `SPREADS` times as much as the untuned model itself moves it when its weights and inputs are nudged (`spread_of`),
  where that is known: what rounding can do there, measured;
* a floor, by the largest value of the whole array, that shrinks with the number of elements of a slice: of one element
  near zero nobody can tell its scale, and two nudges of it may both be small by chance; of eight elements one can tell.

Where no spread is known, as in a job, the terms are coarser: several tolerances, and a floor for slices of any size.

Some values jump where others drift: the class of a row, the angle of a box that changed its place in an order. One of
them would let all of its slice be as far off as it moved. So elements that jump are no part of a slice's spread; they
are counted, and not many more may be off in an output. Whole numbers do nothing but jump: in a slice that holds only
such, classes or indices in a floating type, each is equal but for those.

docs/decisions/0045-what-right-means.md has the figures behind the constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SPREADS = 3.0
"""A slice may differ by this many times what nudges move it by."""
FLOOR = 0.3
"""Share of the largest value by which a slice of one element is compared at least; of n elements, by 1 / n³ of it."""
JUMP = 10.0
"""An element jumps that a nudge moves by more than this times what it moves the others of its slice by. Right ones are
below 7 where rounding is normally distributed."""
FURTHER_JUMPS = 2
"""Where some of a slice jump, an output may have `SPREADS` times as many that are off, and so many more."""
MOST_JUMPING = 0.1
"""Share of a slice that jumps at most. More of them are no exception: their movement is the slice's spread."""
UNEQUAL = 0.49
"""Whole numbers that are further apart are not equal."""
_BITS = 8
"""A slice of fractions looks like whole numbers by a chance of two to the power of minus this, at most."""
MOST_NAMED = 4
"""Slices that a message names."""
UNKNOWN_TOLERANCES = 5.0
"""Where no spread is known, a slice may differ by so many tolerances, by its own largest value."""
UNKNOWN_FLOOR, MOST_UNKNOWN_FLOOR = 4.0, 0.02
"""Where no spread is known, the scale of a slice is at least the first times the tolerance, as a share of the largest
value, but no more than the second: at a tolerance of 1e-3 errors of 4e-6 of that value pass, thirty units of float32's
rounding."""


@dataclass(frozen=True)
class ArrayAgreement:
    """How one array compares with its reference."""

    error: float
    """max|y - r| / max|r| over the whole array; infinity where the two cannot be compared."""
    wrong: str | None = None
    """What is wrong, in a few words; None if the array is right."""


def compare(
    reference: Array, output: Array, tolerance: float, spread: Array | None = None, step: float | None = None
) -> ArrayAgreement:
    """Compare an array with its reference. `spread`: what `spread_of` gave for the reference; `step`: how far 1 is from
    the next number of the type that the elements had, where the array has another one."""
    why = why_incomparable(reference, output)
    if why is not None:
        return ArrayAgreement(float("inf"), why)
    if is_discrete(reference, output):
        return ArrayAgreement(0.0)
    difference, magnitude = _finite(reference, output)
    error = share(_largest(difference), _largest(magnitude))
    if not error <= tolerance:
        where = _where(reference, output, difference, tolerance * _largest(magnitude))
        return ArrayAgreement(error, f"relative error {error:.3g}, tolerance {tolerance:g}{where}")
    return ArrayAgreement(
        error, _wrong_slice(difference, magnitude, _Allowance(tolerance, _step(reference, step), spread))
    )


def spread_of(reference: Array, nudged: Iterable[Array], step: float | None = None) -> Array | None:
    """The farthest that the array and each of its slices, axis after axis, moved without the elements that jumped, and
    how many did; shape (2, 1 + number of slices). None where nothing moved. `step` is that of `compare`."""
    moved = [_finite(reference, output)[0] for output in nudged if is_comparable(reference, output)]
    farthest = np.maximum.reduce(moved) if moved else np.zeros(0)
    if not farthest.any():
        return None
    magnitude = _finite(reference, reference)[1]
    roots = np.sqrt(farthest)
    found = [_moved(slices, farthest, roots) for slices in _slices(magnitude, _step(reference, step))]
    return np.concatenate(found, axis=1)


def why_incomparable(reference: Array, output: Array) -> str | None:
    """Why the distance of `output` from `reference` is no number, in a few words; None if it is one.

    Integers, truth values and texts are equal or wrong. NaN and infinities stand where the reference has them.
    """
    if reference.shape != output.shape:
        return f"shape {output.shape} instead of {reference.shape}"
    if is_discrete(reference, output):
        return _unequal(reference, output)
    if _is_text(reference) or _is_text(output):
        return f"{_shown(output)} instead of {_shown(reference)}"
    return _misplaced(reference, output)


def is_comparable(reference: Array, output: Array) -> bool:
    """Their distance is a number that tells something."""
    return not is_discrete(reference, output) and why_incomparable(reference, output) is None


def is_discrete(reference: Array, output: Array) -> bool:
    """Classes, tokens, masks or texts, for which only equal values are right."""
    return not (np.issubdtype(reference.dtype, np.inexact) or np.issubdtype(output.dtype, np.inexact))


def share(part: float, whole: float) -> float:
    """The part by the whole; the part itself where the whole is zero."""
    return part / whole if whole > 0 else part


def rms_of(*arrays: Array) -> float:
    """Root mean square of all elements; 0 for none."""
    squares = sum(float(np.square(np.abs(array), dtype=np.float64).sum()) for array in arrays)
    return float(np.sqrt(squares / max(sum(array.size for array in arrays), 1)))


def _unequal(reference: Array, output: Array) -> str | None:
    num_different = int(np.count_nonzero(reference != output))
    if not num_different:
        return None
    if reference.size == 1:
        return f"{_shown(output)} instead of {_shown(reference)}"
    what = "texts" if _is_text(reference) else "integers"
    return f"{num_different} of {reference.size} {what} differ"


def _misplaced(reference: Array, output: Array) -> str | None:
    """What is wrong with NaN and infinities, which must be where the reference has them: a mask makes such rows."""
    lacking, is_nan = np.isnan(reference), np.isnan(output)
    if num_new := int(np.count_nonzero(is_nan & ~lacking)):
        return f"{num_new} of {output.size} elements are NaN" + (" beside those of the reference" * bool(lacking.any()))
    if num_lost := int(np.count_nonzero(lacking & ~is_nan)):
        return f"{num_lost} of {output.size} elements are numbers where the reference is NaN"
    infinite = np.isinf(reference)
    if np.isinf(output[~infinite]).any():
        return "infinity where the reference is finite"
    if not np.array_equal(reference[infinite], output[infinite]):
        return "another value where the reference is infinite"
    return None


def _finite(reference: Array, output: Array) -> tuple[Array, Array]:
    """How far each element is off, and how large it is; zero where the reference is no finite number."""
    wide = np.result_type(reference.dtype, output.dtype, np.float32)
    r, y = reference.astype(wide, copy=False), output.astype(wide, copy=False)
    finite = np.isfinite(r)
    if finite.all():
        return np.abs(y - r), np.abs(r)
    with np.errstate(invalid="ignore"):
        return np.where(finite, np.abs(y - r), 0), np.where(finite, np.abs(r), 0)


@dataclass(frozen=True)
class _Slices:
    """The slices of an array along one axis, or all of it as one."""

    axis: int | None
    others: tuple[int, ...]
    """The axes within each."""
    num_elements: int
    """Number of elements of each."""
    scale: Array
    """The largest value of each."""
    is_whole: Array
    """Whether each holds whole numbers and nothing else."""

    def along(self, values: Array) -> Array:
        """One value a slice, to be compared with all elements."""
        return values if self.axis is None else np.expand_dims(values, self.others)


@dataclass(frozen=True)
class _Allowance:
    """How far the slices of an array may be off."""

    tolerance: float
    step: float
    """How far 1 is from the next number."""
    spread: Array | None

    def of(self, slices: _Slices, largest: float, first: int) -> tuple[Array, Array]:
        """For each slice the most that an element may be off, and how many may be off by more. `largest` is the array's
        largest value, and `first` is where the spreads of these slices begin."""
        floor = FLOOR / slices.num_elements**3 * largest
        if self.spread is None:
            least = max(floor, min(UNKNOWN_FLOOR * self.tolerance, MOST_UNKNOWN_FLOOR) * largest)
            allowed = self.tolerance * np.maximum(UNKNOWN_TOLERANCES * slices.scale, least)
            num_jumping = np.floor(min(MOST_JUMPING, UNKNOWN_FLOOR * self.tolerance) * slices.num_elements)
            num_more = np.where(slices.is_whole, num_jumping, 0)
        else:
            drifted, num_jumped = self.spread[:, first : first + len(slices.scale)]
            allowed = np.maximum(self.tolerance * np.maximum(slices.scale, floor), SPREADS * drifted)
            most = np.minimum(SPREADS * num_jumped + FURTHER_JUMPS, max(slices.num_elements // 2, 1))
            num_more = np.where(slices.is_whole, np.floor(self.tolerance * slices.num_elements), 0)
            num_more = np.where(num_jumped > 0, np.maximum(most, num_more), num_more)
        if slices.axis is None:  # It was compared by its largest value.
            allowed = np.full(1, np.inf)
        return np.where(slices.is_whole, np.minimum(allowed, UNEQUAL), allowed), num_more


def _wrong_slice(difference: Array, magnitude: Array, allowance: _Allowance) -> str | None:
    largest, first = _largest(magnitude), 0
    for slices in _slices(magnitude, allowance.step):
        allowed, num_more = allowance.of(slices, largest, first)
        first += len(allowed)
        off = _largest_of(difference, slices.others)
        if not (off > allowed).any():
            continue
        num_off = np.atleast_1d(np.count_nonzero(difference > slices.along(allowed), axis=slices.others))
        wrong = num_off > num_more
        if wrong.any():
            worst = int(np.argmax(np.where(wrong, off - allowed, -np.inf)))
            words = f"is off by {off[worst]:.3g}, and its largest value is {slices.scale[worst]:.3g}"
            if slices.num_elements > 1 and (slices.is_whole[worst] or num_more[worst]):
                words = f"has {num_off[worst]} of {slices.num_elements} elements off by more than {allowed[worst]:.3g}"
            return f"{_named(slices.axis, worst, difference.ndim)} {words}"
    return None


def _named(axis: int | None, place: int, num_axes: int) -> str:
    if axis is None:
        return "it"
    return f"element {place}" if num_axes == 1 else f"slice {place} of axis {axis}"


def _moved(slices: _Slices, farthest: Array, roots: Array) -> Array:
    """How far each slice moved without what jumped, and how many elements did. A mean of `roots` hardly sees jumps."""
    num_moved = np.maximum(np.count_nonzero(farthest, axis=slices.others), 1)
    typical = (roots.sum(axis=slices.others, dtype=np.float64) / num_moved) ** 2
    jumps = farthest > slices.along(np.where(slices.is_whole, UNEQUAL, JUMP * typical))
    num_jumped = np.atleast_1d(np.count_nonzero(jumps, axis=slices.others))
    is_counted = slices.is_whole | (num_jumped <= MOST_JUMPING * slices.num_elements)
    drifted = _largest_of(np.where(jumps & slices.along(is_counted), 0, farthest), slices.others)
    return np.stack([drifted, np.where(is_counted, num_jumped, 0)])


def _where(reference: Array, output: Array, difference: Array, allowed: float) -> str:
    """Where an array is wrong, with the two values; in which slices of an axis, if others are right; and whether the
    reference is zero wherever it is wrong, as where a fast path leaves padded places out. Empty for one number."""
    if difference.size < 2:
        return ""
    place = np.unravel_index(int(np.argmax(difference)), difference.shape)
    shown = ", ".join(map(str, map(int, place)))
    words = f"; at [{shown}] it is {output[place]:.6g} instead of {reference[place]:.6g}"
    wrong = difference > allowed
    if wrong.sum() == 1:
        return f"{words}, and nowhere else"
    confined = []
    for axis, size in enumerate(difference.shape):
        others = tuple(other for other in range(difference.ndim) if other != axis)
        slices = np.flatnonzero(wrong.any(axis=others))
        if size > 1 and len(slices) <= size / 2:
            confined.append((len(slices) / size, axis, slices))
    if confined:
        _, axis, slices = min(confined, key=lambda each: each[:2])
        named = ", ".join(map(str, slices[:MOST_NAMED])) + ", ..." * (len(slices) > MOST_NAMED)
        words += f", and wrong only in {named} of axis {axis} (of {difference.shape[axis]})"
    if not reference[wrong].any():
        words += "; wherever it is wrong the untuned model gives zero, which `compare` may leave out"
    return words


def _slices(magnitude: Array, step: float) -> Iterator[_Slices]:
    """All of the array, then the slices along each axis that has more than one."""
    if not magnitude.size:
        return
    is_whole = magnitude == np.rint(magnitude)
    for axis in (None, *(axis for axis, size in enumerate(magnitude.shape) if size > 1)):
        others = tuple(other for other in range(magnitude.ndim) if other != axis)
        scale = _largest_of(magnitude, others)
        whole = np.atleast_1d(is_whole.all(axis=others))
        if whole.any():
            num_of_each = np.atleast_1d(np.count_nonzero(magnitude, axis=others))
            whole &= _shows_whole_numbers(scale, num_of_each, step)
        yield _Slices(axis, others, magnitude.size // len(scale), scale, whole)


def _shows_whole_numbers(scale: Array, num_of_each: Array, step: float) -> Array:
    """Whether so many elements up to `scale` that are no fractions are none by chance, in a type of this step."""
    bits = -np.log2(step) - np.floor(np.log2(np.maximum(scale, 1.0)))
    return np.asarray((scale >= 1) & (bits >= 1) & (bits * num_of_each >= _BITS))


def _step(reference: Array, given: float | None) -> float:
    kind = reference.dtype if np.issubdtype(reference.dtype, np.inexact) else np.float64
    return float(np.finfo(kind).eps) if given is None else given


def _largest_of(values: Array, axes: tuple[int, ...]) -> Array:
    return np.atleast_1d(np.asarray(values.max(axis=axes), np.float64))


def _largest(values: Array) -> float:
    return float(values.max(initial=0.0))


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "US"


def _shown(array: Array, max_chars: int = 40) -> str:
    if array.size != 1:
        return f"an array of {array.dtype}"
    text = str(array.reshape(())[()])
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
