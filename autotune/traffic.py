"""`Traffic`: the shapes that a job will see, each with its share, and streams of calls drawn from it. Pure.

A shape is named by the sizes of its dimensions, `{"batch": 4, "seq": 17}`; a dimension is an argument of the model's
function.
"""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from autotune.measurement import Record

Sizes = dict[str, PositiveInt]
"""Dimension -> size."""


class Load(Record):
    """One shape, and its part of all calls."""

    sizes: Annotated[Sizes, Field(min_length=1)]
    share: PositiveFloat


class Traffic(Record):
    """Shapes with their shares, which add up to 1."""

    loads: Annotated[tuple[Load, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _same_dimensions(self) -> Traffic:
        if any(set(each.sizes) != set(self.loads[0].sizes) for each in self.loads):
            raise ValueError("every shape must name the same dimensions")
        if abs(sum(each.share for each in self.loads) - 1) > 1e-6:
            raise ValueError("the shares must add up to 1")
        return self

    @property
    def dimensions(self) -> tuple[str, ...]:
        """In the order in which they were named."""
        return tuple(self.loads[0].sizes)

    def sizes_of(self, dimension: str) -> dict[int, float]:
        """Each size of one dimension, ascending -> its share of all calls."""
        shares: dict[int, float] = {}
        for load in self.loads:
            size = load.sizes[dimension]
            shares[size] = shares.get(size, 0.0) + load.share
        return dict(sorted(shares.items()))

    def stream(self, num_calls: int, seed: int) -> tuple[int, ...]:
        """Indices into `loads`, one for each call: as many of each shape as its share asks for, in a seeded order.

        Not drawn one by one: of so few calls, rare shapes would be missing or too many, and two streams would differ
        in what they cost. Largest remainders are rounded up.
        """
        exact = [each.share * num_calls for each in self.loads]
        counts = [int(each) for each in exact]
        rest = sorted(range(len(exact)), key=lambda index: counts[index] - exact[index])
        for index in rest[: num_calls - sum(counts)]:
            counts[index] += 1
        calls = [index for index, count in enumerate(counts) for _ in range(count)]
        random.Random(seed).shuffle(calls)
        return tuple(calls)
