"""Inputs that are chosen to hurt, made of the example: what a job may bring and an example does not show. NumPy only.

Code that was made for the example may hold on to its range, to a mask that hides nothing, to a number, to values of
which no two are equal, to all of them being numbers. Each kind of input is about one such thing. Nobody knows which of
them the untuned model takes: it is asked first (`trial.worker.use`).

The number of rows is not among them: a job gives a config only the shapes that were compared, so another one would be
compiled for nobody (docs/decisions/0097-which-calls-are-tuned.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.measure.derived_inputs import Array, is_mask, is_normalised

Value = Any
"""An array, a number or a flag of Python; None for anything else, which stays as it is."""

_LARGER = 4
_HIDDEN = -4.0
"""Added to a score, it hides most of what is there, and no row of them becomes NaN."""
_MOST_SPOILED = 3
"""Inputs of floats that get a NaN and an infinity, the largest first: each is a call."""


@dataclass(frozen=True)
class Hurting:
    """Values in place of the example's. `changed` are the places that are other ones."""

    way: str
    values: Sequence[Value]
    changed: tuple[int, ...]
    spoils: bool = False
    """NaN and infinities among the outputs are what is expected."""
    ties: bool = False
    """Values are equal, and are not to be nudged apart."""

    def alone(self, values: Sequence[Value]) -> Iterator[Hurting]:
        """With one of the changes each, if there are several."""
        for place in self.changed if len(self.changed) > 1 else ():
            kept = [self.values[n] if n == place else value for n, value in enumerate(values)]
            yield Hurting(self.way, kept, (place,), self.spoils, self.ties)


def hurting_inputs(values: Sequence[Value], only: str | None = None) -> Iterator[Hurting]:
    """All ways in which something of these values changes, what is most likely to show a fault first; or one way."""
    for way, change, ties in _WAYS if only is None else [each for each in _WAYS if each[0] == only]:
        moved = [None if value is None else change(value) for value in values]
        places = tuple(place for place, other in enumerate(moved) if other is not None)
        if places:
            kept = [value if other is None else other for value, other in zip(values, moved, strict=True)]
            yield Hurting(way, kept, places, ties=ties)
    floats = [place for place, value in enumerate(values) if _is_data(value)]
    for place in sorted(floats, key=lambda place: -values[place].size)[:_MOST_SPOILED]:
        for way, number in (("one NaN", np.nan), ("one infinity", np.inf)):
            if only not in (None, way):
                continue
            spoiled = values[place].copy()
            spoiled.reshape(-1)[spoiled.size // 2] = number
            yield Hurting(way, [*values[:place], spoiled, *values[place + 1 :]], (place,), spoils=True)


def one_value_of(value: Value) -> Value | None:
    """The value that an array has throughout; None where it has several, or is none."""
    if not isinstance(value, np.ndarray) or not value.size or value.dtype.kind not in "biuf":
        return None
    first = value.reshape(-1)[0]
    return first.item() if bool((value == first).all()) else None


def _larger(value: Value) -> Array | None:
    if not _is_data(value) or is_normalised(value):
        return None
    with np.errstate(over="ignore"):
        larger = np.asarray(value * value.dtype.type(_LARGER))
    return larger if value.any() and np.isfinite(larger[np.isfinite(value)]).all() else None


def _with_holes(value: Value) -> Array | None:
    """Every second element from the second on hides what was shown; what hides nothing as zeros hides some now."""
    if not isinstance(value, np.ndarray) or value.size < 2 or not is_mask(value):
        return None
    low, high = value.min(), value.max()
    if value.dtype.kind in "biu":
        hidden = value.dtype.type(0 if high > 0 else 1)
    elif high > 0:
        hidden = value.dtype.type(0)
    else:
        hidden = low if low < high else value.dtype.type(_HIDDEN)
    moved = value.copy()
    axis = max((axis for axis, size in enumerate(value.shape) if size > 1), default=0)
    moved[(slice(None),) * axis + (slice(1, None, 2),)] = hidden
    return None if np.array_equal(moved, value) else moved


def _of_several_values(value: Value) -> Array | None:
    """A tensor of one value that is no mask: every second element is another one, or the only one."""
    first = one_value_of(value)
    if first is None or (value.size > 1 and is_mask(value)):
        return None
    other: Value
    if value.dtype.kind == "b":
        other = not first
    elif value.dtype.kind == "f":
        other = 0.5 * first if first else 0.5
    else:
        other = first - 1 if first > 0 else first + 1
    moved: Array = value.copy()
    moved.reshape(-1)[0 if value.size == 1 else slice(1, None, 2)] = other
    return moved


def _other_number(value: Value) -> Value | None:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return (1.5 * value if value else 0.5) if isinstance(value, float) else None


def _tied(value: Value) -> Array | None:
    """Each value twice along each axis that may hold items, so that there are equal ones wherever an order is made."""
    if not _is_data(value) or value.size < 2 or one_value_of(value) is not None:
        return None
    moved = value
    for axis, size in enumerate(value.shape):
        moved = np.take(moved, np.arange(size) // 2 * 2, axis)
    return None if np.array_equal(moved, value) else np.ascontiguousarray(moved)


def _is_data(value: Value) -> bool:
    """Floats that are no mask."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 0 and not is_mask(value)


_WAYS: tuple[tuple[str, Callable[[Value], Value | None], bool], ...] = (
    ("inputs four times larger", _larger, False),
    ("a mask with holes", _with_holes, False),
    ("a tensor of one value varied", _of_several_values, False),
    ("other numbers", _other_number, False),
    ("equal values", _tied, True),
)
"""Its name, what it makes of a value (None: it stays), and whether it is about equal ones."""
