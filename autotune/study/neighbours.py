"""What a study keeps of its workers: whether those of one machine disturb each other, and the trials lost with them."""

from __future__ import annotations

import math
import statistics

from autotune.measure.statistics import MARGIN
from autotune.schema import Record
from autotune.study.slots import ListSlot


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


NEIGHBOURS = ListSlot("neighbours", Neighbours)
LOST_TRIALS = ListSlot("lost_trials", str)
"""The worker of each trial that was lost."""
