"""`WholeNumbers`: which whole numbers in its inputs tuned code is given.

Compiled code checks an index within a loop of several threads, which ends the process where the untuned model raises an
exception, or does not check it at all. So tuned code gets the numbers that the untuned model is known to take: by the
file, whose study has tried, or since it took them in a call of this job. A call with others is made untuned; if that
answers, its numbers are taken from then on.

A tensor may hold indices of several tables: the two rows of edges, the columns of a list of cells. Each slice along a
short axis counts for itself. A few numbers are known one by one, as a label that a loss ignores is none of its classes;
many of them stand for all between the smallest and the largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.backends.contracts.values import Values
from autotune.job.fallback import raise_interruption
from autotune.measure.limits import InputLimits, Span
from autotune.workload.arguments import named

SHORT = 8
"""Slices along an axis that count for themselves, at most."""
FEW = 64
"""Numbers that are known one by one, at most: as many of them below zero, and as many others."""


@dataclass(frozen=True)
class Numbers:
    """Those from `lowest` to `highest`, and some others."""

    lowest: float = math.inf
    highest: float = -math.inf
    also: frozenset[int] = frozenset()

    @classmethod
    def of(cls, span: Span) -> Numbers:
        """Those that a file names."""
        lowest = -math.inf if span.lowest is None else span.lowest
        return cls(lowest, math.inf if span.highest is None else span.highest, frozenset(span.also))

    def span(self, smallest: float, largest: float) -> bool:
        """Whether they have all numbers between these."""
        return self.lowest <= smallest and largest <= self.highest

    def have(self, numbers: Iterable[int]) -> bool:
        """Whether all of these are among them."""
        return all(self.lowest <= each <= self.highest or each in self.also for each in numbers)

    def with_(self, distinct: Iterable[int]) -> Numbers:
        """These, and those of a tensor."""
        lowest, highest = self.lowest, self.highest
        also = self.also | {each for each in distinct if not lowest <= each <= highest}
        for side in ({each for each in also if each < 0}, {each for each in also if each >= 0}):
            if len(side) > FEW:
                lowest, highest = min(lowest, *side), max(highest, *side)
        return Numbers(lowest, highest, frozenset(each for each in also if not lowest <= each <= highest))


@dataclass(frozen=True)
class SeenNumbers:
    """What is in one input of a call."""

    parts: dict[Along, list[list[int]]]
    """The different numbers in each slice."""
    bounds: Any
    """Bounds of the type; None: it has none, as Python's numbers."""


Along = tuple[int | None, int]
"""An axis, and the number of slices along it. None: the whole tensor is one."""
Slices = dict[Along, tuple[Numbers, ...]]


class WholeNumbers:
    """What is known of one input. Threads may share it: what is known is replaced as a whole."""

    def __init__(self, backend: Values, name: str, limits: Slices | None = None) -> None:
        """`limits`: what the file says; None: nothing, and all is learned from the untuned model."""
        self.name = name
        self.num_learned = 0
        """Calls that were made untuned for new numbers in it, and answered."""
        self.is_learned = limits is None
        self._backend = backend
        self._slices: Slices = limits or {}
        self._has_all = False
        """There is no number of its type that is not taken."""

    @property
    def told_apart(self) -> str:
        """The axes whose slices count for themselves, in words: `each of 4 along axis 0`; nothing without one."""
        axes = [f"each of {size} along axis {axis}" for axis, size in self._slices if axis is not None]
        return " and ".join(axes)

    @property
    def has_no_limits(self) -> bool:
        """By the file: all numbers are taken."""
        return not self.is_learned and all(
            numbers.span(-math.inf, math.inf) for each in self._slices.values() for numbers in each
        )

    def are_taken(self, value: Any, open_axes: frozenset[int]) -> bool:
        """Whether tuned code is given this tensor, or number. `open_axes`: those with more sizes than one."""
        if self._has_all:
            return True
        try:
            return all(self._has_slices(value, along) for along in self._along(value, open_axes))
        except Exception as error:  # As of a tensor that stands for a batch of calls.
            raise_interruption(error)
            return False

    def seen(self, value: Any, open_axes: frozenset[int]) -> SeenNumbers | None:
        """The numbers of each slice, before a call that may change them; None where that cannot be told."""
        try:
            array = self._array(value)
            parts = {
                along: [_distinct(part) for part in _parts(array, along[0])] for along in self._along(value, open_axes)
            }
        except Exception as error:
            raise_interruption(error)
            return None
        return SeenNumbers(parts, None if array.ndim == 0 or array.dtype.kind not in "iu" else np.iinfo(array.dtype))

    def learn(self, seen: SeenNumbers) -> bool:
        """The untuned model has answered a call with these. True: some are new, of an input of which the file says
        nothing. Called by one thread at a time."""
        slices = dict(self._slices)
        for along, parts in seen.parts.items():
            known = slices.get(along) or (Numbers(),) * len(parts)
            if len(known) == len(parts):
                slices[along] = tuple(numbers.with_(part) for numbers, part in zip(known, parts, strict=True))
        is_new = self.is_learned and slices != self._slices
        self.num_learned += is_new
        self._slices = slices
        bounds = seen.bounds
        self._has_all = bounds is not None and all(
            numbers.span(bounds.min, bounds.max) for each in slices.values() for numbers in each
        )
        return is_new

    def _has_slices(self, value: Any, along: Along) -> bool:
        extremes, known = self._backend.extremes(value, along[0]), self._slices.get(along, ())
        if extremes is None:
            return True
        if len(extremes) != len(known):
            return False
        if all(numbers.span(*ends) for numbers, ends in zip(known, extremes, strict=True)):
            return True
        if not any(numbers.also for numbers in known):
            return False
        parts = _parts(self._array(value), along[0])
        return all(numbers.have(_distinct(part)) for numbers, part in zip(known, parts, strict=True))

    def _along(self, value: Any, open_axes: frozenset[int]) -> Sequence[Along]:
        """The axes whose slices count for themselves."""
        if not self.is_learned:
            return tuple(self._slices)
        shape = getattr(value, "shape", ())
        short: list[Along] = [
            (axis, size) for axis, size in enumerate(shape) if size <= SHORT and axis not in open_axes
        ]
        return short or [(None, 1)]

    def _array(self, value: Any) -> Any:
        array = self._backend.to_array(value)
        return np.asarray(value) if array is None else array


def _parts(array: Any, axis: int | None) -> list[Any]:
    return [array] if axis is None else list(np.moveaxis(array, axis, 0))


def _distinct(array: Any) -> list[int]:
    found: list[int] = np.unique(array).tolist()
    return found


def limits_of(limits: Iterable[InputLimits], names: Sequence[str]) -> dict[str, Slices]:
    """What a file says of each input by its name, where inputs that are given by position have the names of the
    function's parameters."""
    return {
        named(each.name, names): {(each.axis, len(each.spans)): tuple(map(Numbers.of, each.spans))} for each in limits
    }
