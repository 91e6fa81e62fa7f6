"""`Traffic`: the shapes that a job will see, each with its share, and streams of calls drawn from it. Pure.

A shape is named by the sizes of its dimensions, `{"batch": 4, "seq": 17}`; a dimension is an argument of the model's
function. Traffic is written as text, `batch=1:60%,4:30%,8:10%` or `seq=16..128`, or logged to a file.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from autotune.errors import InputError, marked
from autotune.files import read_file
from autotune.measure.measurement import Axis
from autotune.schema import Record
from autotune.workload.arguments import Arguments, named, parameter_names

Sizes = dict[str, PositiveInt]
"""Dimension -> size."""

MAX_SHAPES = 10_000
_MOST_ORDERS = 256
"""Orders of arguments that are remembered."""
COUNT = "count"
"""Key in a line of a log for the number of calls of the shape; it is no dimension."""


class Load(Record):
    """One shape, and its part of all calls."""

    sizes: Annotated[Sizes, Field(min_length=1)]
    share: PositiveFloat


class Traffic(Record):
    """Shapes with their shares, which add up to 1."""

    loads: Annotated[tuple[Load, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _same_dimensions(self) -> Traffic:
        if any(set(load.sizes) != set(self.loads[0].sizes) for load in self.loads):
            raise ValueError("every shape must name the same dimensions")
        if abs(sum(load.share for load in self.loads) - 1) > 1e-6:
            raise ValueError("the shares must add up to 1")
        return self

    @property
    def dimensions(self) -> tuple[str, ...]:
        """In the order in which they were named."""
        return tuple(self.loads[0].sizes)

    @property
    def largest(self) -> dict[str, int]:
        """Each dimension at its largest size."""
        return {name: max(self.sizes_of(name)) for name in self.dimensions}

    @property
    def asked(self) -> dict[str, str]:
        """The field of the question that asks for it, and its value: a file if the shapes are too many or not
        independent."""
        text = str(self)
        try:
            is_written = parse_shapes([text]) == self
        except InputError:
            is_written = False
        return {"shapes": text} if is_written else {"traffic": "FILE"}

    def sizes_of(self, dimension: str) -> dict[int, float]:
        """Each size of one dimension, ascending -> its share of all calls."""
        shares: dict[int, float] = {}
        for load in self.loads:
            size = load.sizes[dimension]
            shares[size] = shares.get(size, 0.0) + load.share
        return dict(sorted(shares.items()))

    def stream(self, num_calls: int, seed: int) -> tuple[int, ...]:
        """Indices into `loads`, one for each call: each shape as often as its share requires, in a seeded order.

        They are not drawn independently: with so few calls, rare shapes would be missing or too frequent, and two
        streams would differ in cost. They are taken at equal distances along the shares (systematic sampling): with
        more shapes than calls, the called shapes are spread over all sizes.
        """
        ends = list(itertools.accumulate(load.share for load in self.loads))
        places = ((number + 0.5) / num_calls for number in range(num_calls))
        calls = [min(bisect.bisect(ends, place), len(ends) - 1) for place in places]
        random.Random(seed).shuffle(calls)
        return tuple(calls)

    @property
    def fingerprint(self) -> str:
        """A digest of all shapes with their shares: the words for a long list of them say less."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """As for `--shapes` if the dimensions are independent; shortened if the sizes are many."""
        return "; ".join(f"{name}={_described(self.sizes_of(name))}" for name in self.dimensions)


class Shapes(Record):
    """What is known of the shapes of a model's inputs: the traffic, and where its dimensions show in the inputs and
    outputs of a call. Shape strategies go by it, in a trial and in a job."""

    traffic: Traffic
    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    """Only for the dimensions that may be padded."""
    padding: dict[str, float] = {}
    """Dimension -> what may be appended along it without changing the results for what was there, as the model's author
    declared. A dimension that is missing here must not be padded."""


class CalledAxes:
    """The axes of a stream's inputs in one call after another, which give these by position or by name, in any
    order."""

    def __init__(self, shapes: Shapes, function: Callable[..., Any]) -> None:
        """`function` has the parameters of a call."""
        self._axes = shapes.inputs
        self._names = parameter_names(function)
        self._are_named = all(axis.name is not None for axis in self._axes)
        self._placed = lru_cache(maxsize=_MOST_ORDERS)(self._placed_among)

    def of(self, arguments: Arguments) -> tuple[Axis, ...]:
        """Those of a call. One whose argument is missing has a leaf that the call has not."""
        return self.with_leaves(arguments)[0]

    def with_leaves(self, arguments: Arguments) -> tuple[tuple[Axis, ...], list[Any]]:
        """Those of a call, and its leaves."""
        named_leaves = arguments.named_leaves()
        axes = self._placed(tuple(name for name, _ in named_leaves)) if self._are_named else self._axes
        return axes, [leaf for _, leaf in named_leaves]

    def _placed_among(self, leaves: tuple[str, ...]) -> tuple[Axis, ...]:
        places = {named(name, self._names): number for number, name in enumerate(leaves)}
        return tuple(axis.model_copy(update={"leaf": places.get(axis.name or "", len(leaves))}) for axis in self._axes)


def parse_shapes(texts: Iterable[str]) -> Traffic:
    """From the values of `--shapes`: independent dimensions, separated by `;`. Raises InputError."""
    written = [part.strip() for text in texts for part in text.split(";") if part.strip()]
    dimensions: dict[str, dict[int, float]] = {}
    for text in written:
        name, equals, sizes = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise InputError(f"{marked('shapes', text)}: not understood", tip=_SYNTAX)
        if name in dimensions:
            raise InputError(f"{marked('shapes', text)}: {name} is given twice")
        dimensions[name] = _shares(text, sizes)
    if not dimensions:
        raise InputError(f"{marked('shapes')}: no shape is given", tip=_SYNTAX)
    if math.prod(map(len, dimensions.values())) > MAX_SHAPES:
        raise InputError(
            f"{marked('shapes')} {'; '.join(written)}: more than {MAX_SHAPES:,} shapes",
            tip=f"name fewer sizes, or give the shapes that a server logged with {marked('traffic', 'FILE')}",
        )
    shares: dict[tuple[tuple[str, int], ...], float] = {}
    for choice in itertools.product(*(by_size.items() for by_size in dimensions.values())):
        sizes_of_all, shares_of_all = zip(*choice, strict=True)
        shares[tuple(zip(dimensions, sizes_of_all, strict=True))] = math.prod(shares_of_all)
    return _traffic(shares)


def read_traffic(path: Path) -> Traffic:
    """From a file of lines such as `{"batch": 4, "seq": 17, "count": 120}`; a count is 1 if left out. Raises InputError
    with the number of the line."""
    try:
        lines = read_file(path).decode().splitlines()
    except InputError as error:
        raise error.about(marked("traffic")) from None
    except UnicodeDecodeError:
        raise InputError(f"{marked('traffic', path)}: it is not UTF-8 text", tip="check the path") from None
    counts: Counter[tuple[tuple[str, int], ...]] = Counter()
    dimensions: tuple[str, ...] = ()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{marked('traffic', path)}, line {number}"
        sizes, count = _logged(where, line)
        dimensions = dimensions or tuple(sizes)
        if set(sizes) != set(dimensions):
            raise InputError(f"{where}: it names {', '.join(sizes)}, the lines before {', '.join(dimensions)}")
        counts[tuple((name, sizes[name]) for name in dimensions)] += count
    if not counts:
        raise InputError(f"{marked('traffic', path)}: it holds no shape", tip=f"write lines such as {_LINE}")
    if len(counts) > MAX_SHAPES:
        raise InputError(f"{marked('traffic', path)}: more than {MAX_SHAPES:,} shapes", tip="leave the rare ones out")
    return _traffic({shape: count / counts.total() for shape, count in counts.items()})


_SYNTAX = 'write e.g. "batch=1:60%,4:30%,8:10%", "batch=1,4,8" or "seq=16..128", several dimensions with ; between them'
_LINE = '{"batch": 4, "seq": 17, "count": 120}'
_ITEM = re.compile(r"(\d+)(?:\s*\.\.\s*(\d+))?(?:\s*:\s*(\d+(?:\.\d+)?)\s*%)?")


def _shares(text: str, written: str) -> dict[int, float]:
    """Size -> share, of one dimension. Without shares all sizes are equally likely; a range divides its share."""
    items = [_item(text, item) for item in written.split(",")]
    sizes = [size for sizes, _ in items for size in sizes]
    twice = next((size for size, number in Counter(sizes).items() if number > 1), None)
    if twice is not None:
        raise InputError(f"{marked('shapes', text)}: size {twice} is given twice")
    percents = [percent for _, percent in items if percent is not None]
    if not percents:
        return {size: 1 / len(sizes) for size in sizes}
    if len(percents) < len(items):
        raise InputError(
            f"{marked('shapes', text)}: some sizes have a share and some have none", tip="give one to all or none"
        )
    if abs(sum(percents) - 100) > 1e-6:
        raise InputError(
            f"{marked('shapes', text)}: the shares add up to {sum(percents):g} %", tip="they must add up to 100 %"
        )
    return {size: percent / 100 / len(group) for group, percent in items if percent is not None for size in group}


def _item(text: str, item: str) -> tuple[range, float | None]:
    match = _ITEM.fullmatch(item.strip())
    if match is None:
        raise InputError(f"{marked('shapes', text)}: {item.strip()!r} is not a size", tip=_SYNTAX)
    low, high = int(match[1]), int(match[2] or match[1])
    percent = None if match[3] is None else float(match[3])
    if low < 1 or high < low or percent == 0:
        raise InputError(
            f"{marked('shapes', text)}: {item.strip()} is empty", tip="sizes and shares are above 0, the least first"
        )
    if high - low >= MAX_SHAPES:
        raise InputError(f"{marked('shapes', text)}: more than {MAX_SHAPES:,} shapes", tip="name fewer sizes")
    return range(low, high + 1), percent


def _logged(where: str, line: str) -> tuple[Sizes, int]:
    try:
        content: Any = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, Mapping) or not set(content) - {COUNT}:
        raise InputError(f"{where}: no JSON object with a shape", tip=f"write lines such as {_LINE}")
    for name, value in content.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{where}: {name} is {json.dumps(value)} and not a whole number above 0")
    return {name: value for name, value in content.items() if name != COUNT}, content.get(COUNT, 1)


def _traffic(shares: Mapping[tuple[tuple[str, int], ...], float]) -> Traffic:
    """Sorted by sizes, so that a stream is spread over them."""
    return Traffic(loads=tuple(Load(sizes=dict(shape), share=share) for shape, share in sorted(shares.items())))


_MOST_NAMED = 6


def _described(shares: Mapping[int, float]) -> str:
    sizes = list(shares)
    first, last = sizes[0], sizes[-1]
    is_even = max(shares.values()) - min(shares.values()) < 1e-9
    if is_even and len(sizes) > 2 and sizes == list(range(first, last + 1)):
        return f"{first}..{last}"
    if len(sizes) > _MOST_NAMED:
        return f"{len(sizes)} sizes from {first} to {last}"
    return ",".join(str(size) if is_even else f"{size}:{100 * share:.3g}%" for size, share in shares.items())
