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
MOST_NAMED = 4
"""Slices that a message names."""
UNKNOWN_TOLERANCES = 5.0
"""Where no spread is known, a slice may differ by so many tolerances by its own largest value,"""
UNKNOWN_FLOOR, MOST_UNKNOWN_FLOOR = 4.0, 0.02
"""and is compared by this times the tolerance, as a share of the largest value, at least: for a tolerance of 1e-3 by
4e-6 of that value, thirty units of float32's rounding; in lower precision by no more than the second number."""


@dataclass(frozen=True)
class Agreement:
    """How one array compares with its reference."""

    error: float
    """max|y - r| / max|r| over the whole array; infinity where the two cannot be compared."""
    wrong: str | None = None
    """What is wrong, in a few words; None if the array is right."""


def compare(reference: Array, output: Array, tolerance: float, spread: Array | None = None) -> Agreement:
    """Compare an array with its reference. `spread`: what `spread_of` gave for the reference."""
    why = why_incomparable(reference, output)
    if why is not None:
        return Agreement(float("inf"), why)
    if is_discrete(reference, output):
        return Agreement(0.0)
    difference, magnitude = _finite(reference, output)
    error = share(_largest(difference), _largest(magnitude))
    if not error <= tolerance:
        where = _where(reference, output, difference, tolerance * _largest(magnitude))
        return Agreement(error, f"relative error {error:.3g}, tolerance {tolerance:g}{where}")
    return Agreement(error, _wrong_slice(difference, magnitude, tolerance, spread))


def spread_of(reference: Array, nudged: Iterable[Array]) -> Array | None:
    """The farthest that each slice of the reference moved, axis after axis in one row; None where nothing moved."""
    moved = [_finite(reference, output)[0] for output in nudged if is_comparable(reference, output)]
    if not moved:
        return None
    farthest = np.maximum.reduce(moved)
    return np.concatenate([np.zeros(0), *(largest for _, largest in _slices(farthest))]) if farthest.any() else None


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


def _wrong_slice(difference: Array, magnitude: Array, tolerance: float, spread: Array | None) -> str | None:
    whole = _largest(magnitude)
    first = 0
    for (axis, off), (_, scale) in zip(_slices(difference), _slices(magnitude), strict=True):
        last = first + len(off)
        floor = FLOOR * (len(off) / difference.size) ** 3 * whole
        if spread is not None:
            allowed = np.maximum(tolerance * np.maximum(scale, floor), SPREADS * spread[first:last])
        else:
            least = max(floor, min(UNKNOWN_FLOOR * tolerance, MOST_UNKNOWN_FLOOR) * whole)
            allowed = tolerance * np.maximum(UNKNOWN_TOLERANCES * scale, least)
        worst = int(np.argmax(off - allowed))
        if off[worst] > allowed[worst]:
            where = f"element {worst}" if difference.ndim == 1 else f"slice {worst} of axis {axis}"
            return f"{where} is off by {off[worst]:.3g}, and its largest value is {scale[worst]:.3g}"
        first = last
    return None


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


def _slices(values: Array) -> Iterator[tuple[int, Array]]:
    """Each axis that has more than one slice, with the largest value of each."""
    for axis in range(values.ndim):
        if values.size and values.shape[axis] > 1:
            others = tuple(other for other in range(values.ndim) if other != axis)
            yield axis, values.max(axis=others).astype(np.float64)


def _largest(values: Array) -> float:
    return float(values.max(initial=0.0))


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "US"


def _shown(array: Array, max_chars: int = 40) -> str:
    if array.size != 1:
        return f"an array of {array.dtype}"
    text = str(array.reshape(())[()])
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
