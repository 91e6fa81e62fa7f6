"""The models of a job's process that are called tuned and untuned in turns, and the document of them in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.measure.measurement import Latency
from autotune.plugins.watch.document import Document
from autotune.plugins.watch.stretches import TUNED, UNTUNED, Sides

SCHEMA = 1
_EVERY_S = 1.0
"""Seconds after which the document is written anew: what a job that is killed has lost at most."""


@dataclass
class ModelInTurns:
    """One model that a file was applied to, or that stays untuned for a reason in its notes."""

    file: str
    name: str
    unit: Literal["call", "step", "text"]
    num_settling: int
    """Calls in which the guard settles, at least."""
    centre: Callable[[list[float]], float]
    """What a call took, from those of a stretch."""
    notes: Callable[[], Sequence[str]] = list

    def __post_init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """There was no call yet."""
        self.sides = Sides(self.centre)

    def content(self) -> Mapping[str, Any]:
        """What the document says of it."""
        sides = self.sides
        pairs, latest_s = sides.counted()
        return {
            "file": self.file,
            "name": self.name,
            "unit": self.unit,
            "num": sides.num,
            "num_first": sides.num_first,
            "num_left_out": sides.num_left_out,
            "num_needed": sides.num_needed(self.num_settling),
            "pairs": [[each.centre_s for each in pair] for pair in pairs],
            "notes": list(self.notes()),
            **{
                name: _described(latest_s[side], [pair[side] for pair in pairs])
                for name, side in (("untuned", UNTUNED), ("tuned", TUNED))
            },
        }


def _described(latest_s: list[float], stretches: list[Any]) -> Mapping[str, Any] | None:
    """One side: percentiles of the latest calls, and what a call took of all whole stretches. None: there are none."""
    num, seconds = sum(each.num for each in stretches), sum(each.seconds for each in stretches)
    if not num:
        return None
    latency = Latency.of(tuple(latest_s))
    return {"num": num, "mean_s": seconds / num, "p50_s": latency.p50, "p99_s": latency.p99}


class Trying(Document):
    """All models of this process that a file names."""

    def __init__(self, folder: str) -> None:
        self.models: list[ModelInTurns] = []
        super().__init__(folder)

    def size(self) -> int:
        """Number of models, and of their calls."""
        return len(self.models) + sum(model.sides.num for model in self.models)

    def content(self) -> Mapping[str, Any]:
        """All models."""
        return {"schema": SCHEMA, "models": [model.content() for model in self.models]}

    def forget(self) -> None:
        """Models stay, with no call."""
        for model in self.models:
            model.begin_anew()

    def note(self, model: ModelInTurns) -> None:
        """A call of the model is over: the document is written where it is time to."""
        if self.is_due(model.sides.num, time.perf_counter_ns(), _EVERY_S):
            self.write()
