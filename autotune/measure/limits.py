"""`InputLimits`: which whole numbers the untuned model takes in one of its inputs.

What lies beyond is for the untuned model to refuse: code that a compiler made of it may end the process instead.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeInt

from autotune.schema import Record


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
