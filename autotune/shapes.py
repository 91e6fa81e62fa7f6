"""`Shapes`: what is known of the shapes that a model sees. A shape strategy goes by it, in a trial and in a job."""

from __future__ import annotations

from pydantic import NonNegativeInt

from autotune.measurement import Record
from autotune.traffic import Traffic


class Axis(Record):
    """An axis of a tensor whose size is that of a dimension of the traffic."""

    dimension: str
    leaf: NonNegativeInt
    """Which argument of the call (`Arguments.leaves`), or which output tensor (`backends.output_arrays`)."""
    axis: NonNegativeInt


class Shapes(Record):
    """The traffic, and where its dimensions show in the inputs and outputs of a call."""

    traffic: Traffic
    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    padding: dict[str, float] = {}
    """Dimension -> what may be appended along it without changing the results for what was there, as the model's author
    declared. A dimension that is missing here must not be padded."""
