"""What a bench with several workers tells of them, and what a study keeps: whether those of one machine disturb each
other, and the trials that were lost with them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from autotune.measure.statistics import MARGIN
from autotune.schema import Record
from autotune.study.slots import list_slot


class Neighbours(Record):
    """The untuned model on one device of a machine, alone and while its other devices run it too."""

    host: str
    workers: tuple[str, ...]
    """The first one was timed."""
    pairs: tuple[tuple[float, float], ...]
    """Median seconds of successive turns: alone, and beside the others."""
    noise_floor: float
    """The study's spread when this was decided."""

    @property
    def moved(self) -> float:
        """Share by which the others make it slower; negative: faster. The middle one of all pairs."""
        return math.exp(statistics.median(math.log(beside_s / alone_s) for alone_s, beside_s in self.pairs)) - 1

    @property
    def allowed(self) -> float:
        """Less than this cannot be told from chance, or is not worth a compile setting."""
        return max(self.noise_floor, MARGIN)

    @property
    def disturb(self) -> bool:
        """Their trials must be timed one at a time."""
        return abs(self.moved) > self.allowed


NEIGHBOURS = list_slot("neighbours", Neighbours)
LOST_TRIALS = list_slot("lost_trials", str)
"""The worker of each trial that was lost."""


@dataclass(frozen=True)
class WorkerChanged:
    """A worker of a cluster does something else now; or it is ready, was lost or is left out, which `stays`."""

    worker: str
    what: str
    stays: bool


@dataclass(frozen=True)
class NeighboursStarted:
    """The untuned model is about to be timed alone and beside the other workers of its machine."""


@dataclass(frozen=True)
class NeighboursFound:
    """Whether the workers of a machine disturb each other: measured now, or by an earlier run of the study."""

    found: Neighbours


WorkerEvent = WorkerChanged | NeighboursStarted | NeighboursFound
