"""`Shapes`: what is known of the shapes of a model's inputs. Shape strategies use it, in a trial and in a job."""

from __future__ import annotations

from autotune.measure.measurement import Axis
from autotune.schema import Record
from autotune.workload.traffic import Traffic

__all__ = ["Axis", "Shapes"]


class Shapes(Record):
    """The traffic, and where its dimensions show in the inputs and outputs of a call."""

    traffic: Traffic
    inputs: tuple[Axis, ...]
    outputs: tuple[Axis, ...]
    """Only for the dimensions that may be padded."""
    padding: dict[str, float] = {}
    """Dimension -> what may be appended along it without changing the results for what was there, as the model's author
    declared. A dimension that is missing here must not be padded."""
