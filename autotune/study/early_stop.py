"""`ExpectedGain`: what further trials of a search promise, and when that is too little to go on."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autotune.schema import Record

FEWEST_TRIALS = 12
"""Before so many are recorded nothing is concluded."""
WORTH_A_TRIAL = 0.0005
"""Share of the best value that the next trial must be expected to gain."""
FEWEST_IDLE = 8
"""A forecast may be too sure of itself; so many trials in a row must have borne it out."""
NOTABLE = 0.01
"""Share by which a trial must be better than all before it to count: below it no setting is worth its trouble."""


class ExpectedGain(Record):
    """What a search with one objective still promises. Rule and figures: docs/decisions/0011-early-stop.md."""

    num_trials: int
    """Recorded so far."""
    num_untried: int | None
    """Configs that are left; None: too many to count."""
    expected_gain: float
    """Share by which the most promising of them would improve the best value, on average over what it may bring."""
    num_idle: int
    """Trials since the last that was notably better than all before it."""

    @property
    def is_negligible(self) -> bool:
        """Further trials cannot pay."""
        return self.num_trials >= FEWEST_TRIALS and self.expected_gain < WORTH_A_TRIAL and self.num_idle >= FEWEST_IDLE


def count_idle(values: Iterable[float]) -> int:
    """Trials since the last that was notably better than all before it; infinite values are of trials that cannot be
    the best."""
    best, idle = math.inf, 0
    for value in values:
        idle = 0 if value < best - NOTABLE * abs(best) or best == math.inf else idle + 1
        best = min(best, value)
    return idle
