"""`InputLimits`: which whole numbers the untuned model takes in one of its inputs, and how that is found out.

What lies beyond is for the untuned model to refuse: code that a compiler made of it may end the process instead.

One element is moved until the model refuses it: by one, then to the sizes of its tables, then in long steps; what is
between is bisected. Then all elements are moved to the ends that were found, and each slice of a short axis by one
beyond, which shows that rows or columns have limits of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from autotune.schema import Record

Array = NDArray[Any]
Takes = Callable[[Array], bool | None]
"""Whether the untuned model takes these values in the input. None: it does, and it took so long, or so much memory,
that greater ones are not to be tried."""

_FARTHEST = 2**40
_GROWTH = 32
_NUM_SIZES = 6
"""Sizes of tables that are tried on each side, the nearest ones."""
_LONGEST = 16
"""An axis that is longer holds positions; the slices of a shorter one may mean something each."""
_MOST_APART = 4
IGNORED = -100
"""The label that losses ignore by default."""


class Span(Record):
    """The values from `lowest` to `highest`, both taken, and those of `also`."""

    lowest: int | None
    """None: no limit was found on this side, as far as was tried."""
    highest: int | None
    also: tuple[int, ...] = ()
    """Values beyond that are taken as well, such as the label that a loss ignores."""


class InputLimits(Record):
    """What was found for one tensor of whole numbers among a call's inputs."""

    name: str
    """As `Arguments.named_leaves` names it."""
    axis: NonNegativeInt | None = None
    """The axis whose slices have a span each: the two rows of edges, the columns of a table. None: there is one span,
    for all elements."""
    spans: Annotated[tuple[Span, ...], Field(min_length=1)]


def find_limits(name: str, array: Array, sizes: Iterable[int], takes: Takes) -> InputLimits | None:
    """The limits of an input that is a call of the model's with these values. `sizes`: those of the model's tables and
    of the inputs, one of which may be the limit. None where no spans describe what it takes."""
    search = _Search(array, frozenset(sizes), takes)
    whole = search.span(search.slices(None)[0])
    short = [axis for axis in reversed(range(array.ndim)) if array.ndim > 1 and 1 < array.shape[axis] <= _LONGEST]
    wider = [axis for axis in short if whole is not None and search.takes_more(search.slices(axis), whole)]
    if whole is not None and not wider and search.agrees(None, [whole]):
        return InputLimits(name=name, spans=(whole,))
    for axis in wider or short:
        spans = [span for places in search.slices(axis) if (span := search.span(places)) is not None]
        if len(spans) == array.shape[axis] and search.agrees(axis, spans):
            return InputLimits(name=name, axis=axis, spans=tuple(spans))
    return None


def hold_for(limits: InputLimits, array: Array, takes: Takes) -> bool:
    """Whether the limits are those of another call too, with these values: it may have other sizes."""
    search, axis = _Search(array, frozenset(), takes), limits.axis
    if axis is not None and (axis >= array.ndim or array.shape[axis] != len(limits.spans)):
        return False
    pairs = list(zip(search.slices(axis), limits.spans, strict=True))
    return (
        all(_is_within(array.reshape(-1)[places], span) for places, span in pairs)
        and search.agrees(axis, limits.spans)
        and not any(search.takes_more([places], span) for places, span in pairs)
    )


def _is_within(values: Array, span: Span) -> bool:
    low = values.min() if span.lowest is None else span.lowest
    high = values.max() if span.highest is None else span.highest
    return bool((((values >= low) & (values <= high)) | np.isin(values, span.also)).all())


@dataclass(frozen=True)
class _Search:
    """Places are those of the flat array."""

    array: Array
    sizes: frozenset[int]
    takes: Takes

    def slices(self, axis: int | None) -> list[Array]:
        """The places of each slice of the axis; None: all of them."""
        places = np.arange(self.array.size).reshape(self.array.shape)
        if axis is None:
            return [places.reshape(-1)]
        return [np.take(places, number, axis).reshape(-1) for number in range(self.array.shape[axis])]

    def span(self, places: Array) -> Span | None:
        """What is taken in these places. None where more than a few values are taken apart from the others."""
        values = self.array.reshape(-1)[places]
        seen = [int(value) for value in np.unique(values)]
        inner = [value for value in seen if value >= 0] or seen
        inner = self._without_far(places[values == inner[-1]][-1], inner)
        top, bottom = (places[values == end] for end in (inner[-1], inner[0]))
        highest = self._end(top[-1], inner[-1], 1, self.sizes)
        wrapped = {size + 1 for size in self.sizes} if highest is None else {highest + 2}
        lowest = self._end(bottom[0], inner[0], -1, {1, *wrapped})
        apart = [value for value in seen if value > inner[-1] or (lowest is not None and value < lowest)]
        if lowest is not None and lowest >= 0 and IGNORED not in apart and self._takes(bottom[0], IGNORED):
            apart.append(IGNORED)
        return None if len(apart) > _MOST_APART else Span(lowest=lowest, highest=highest, also=tuple(sorted(apart)))

    def takes_more(self, slices: Sequence[Array], span: Span) -> bool:
        """Whether a slice takes a greater number than the span."""
        if span.highest is None:
            return False
        tops = (places[np.argmax(self.array.reshape(-1)[places])] for places in slices)
        return any(self._takes(top, span.highest + 1) for top in tops)

    def agrees(self, axis: int | None, spans: Sequence[Span]) -> bool:
        """Whether the model takes all elements at the ends of their slices' spans."""
        for sign in (1, -1):
            moved = self.array.copy()
            for places, span in zip(self.slices(axis), spans, strict=True):
                end = span.highest if sign > 0 else span.lowest
                moved.reshape(-1)[places] = sign * self._farthest(sign) if end is None else end
            if self.takes(moved) is False:
                return False
        return True

    def _without_far(self, top: Any, values: list[int]) -> list[int]:
        """Without the greatest value if it is far from the others, and nothing between is taken: a label that is
        ignored, such as 255."""
        if len(values) < 3 or 2 * (values[-1] - values[-2]) <= values[-1] - values[0]:
            return values
        return values if self._takes(top, (values[-1] + values[-2]) // 2) else values[:-1]

    def _takes(self, place: Any, value: int) -> bool | None:
        """Whether it takes one element of this value; not if its type has no such value."""
        if not _lowest(self.array) <= value <= _greatest(self.array):
            return False
        moved = self.array.copy()
        moved.reshape(-1)[place] = value
        return self.takes(moved)

    def _farthest(self, sign: int) -> int:
        """As far as is tried in one direction."""
        return min(_greatest(self.array) if sign > 0 else -_lowest(self.array), _FARTHEST)

    def _end(self, place: Any, start: int, sign: int, edges: Iterable[int]) -> int | None:
        """The last value that is taken from `start` on; None: there is no end. `edges`: where the next one may be
        refused. Distances from zero in the direction of `sign` are what is counted."""
        good = sign * start
        for point in self._points(good, sign, edges):
            taken = self._takes(place, sign * point)
            if taken is None:
                return sign * point
            if not taken:
                return sign * self._between(place, good, point, sign)
            good = point
        return None

    def _points(self, good: int, sign: int, edges: Iterable[int]) -> Iterator[int]:
        """What is tried one after the other. Greater numbers are reached in steps, since one may be a size."""
        farthest = self._farthest(sign)
        near = sorted(edge for edge in edges if edge > good)[:_NUM_SIZES]
        steps = ((good + 1) * _GROWTH**power for power in range(64 if sign > 0 else 0))
        far = itertools.takewhile(lambda step: step < farthest, steps)
        yield from sorted(point for point in {*near, *far, farthest} if good < point <= farthest)

    def _between(self, place: Any, good: int, bad: int, sign: int) -> int:
        """The last one that is taken: the one before `bad`, if that was a size; else it is bisected, but for negative
        numbers, which few jobs give: less than what is taken may be told of these."""
        middle = bad - 1
        while middle > good:
            if self._takes(place, sign * middle) is False:
                bad = middle
            else:
                good = middle
            middle = good if sign < 0 < good else (good + bad) // 2
        return good


def _lowest(array: Array) -> int:
    return int(np.iinfo(array.dtype).min)


def _greatest(array: Array) -> int:
    return int(np.iinfo(array.dtype).max)
