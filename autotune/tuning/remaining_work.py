"""`RemainingWork`: trials up to the rule that ends the search, and the confirmation, in seconds. Pure.

An estimate for people who wait; nothing is decided by it. How good it is: decision 24.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

LATE_SHARE = 0.25
"""A search that may stop early is expected to stop after this share of the trials between the first at which it still
can and the last. Half of the replays of recorded tables stopped by this share, half later (decision 24)."""
MORE_LOOKS = 0.1
"""How often a confirmation is expected to go on after a look. None of the replays did, three of five real studies
did; to expect it more often makes the mean error larger on both (docs/decisions/0024-time-left.md)."""


@dataclass(frozen=True)
class RemainingWork:
    """What a run knows of what it has still to do."""

    trial_s: tuple[float, ...]
    """What trials took, the untuned model's left out: from the end of one to the end of the next."""
    num_done: int
    """Trials recorded."""
    num_most: int | None
    """Trials that end the search; None: only the time ends it."""
    num_fewest: int | None
    """Trials after which it may stop early; None: it does not."""
    first_look: int
    """Blocks before the first look at the confirmation; each further look doubles them."""
    num_looks: int
    first_block_s: float
    """As expected from the trials, before one was measured."""
    later_block_s: float
    is_searching: bool = True
    block_s: tuple[float, ...] = ()
    """Of the confirmation so far."""
    num_looked: int = 0
    is_clear: bool = False
    limit_s: float | None = None
    """Of the run's time, what is left; None: it has no limit."""

    @property
    def search_s(self) -> float:
        """Of the trials to come; infinite where nothing but the time ends them."""
        if not self.is_searching:
            return 0.0
        most = math.inf if self.num_most is None else self.num_most
        expected = most
        if self.num_fewest is not None:
            latest = most if math.isfinite(most) else 2 * self.num_fewest
            earliest = min(max(self.num_fewest, self.num_done), latest)
            expected = earliest + LATE_SHARE * (latest - earliest)
        return max(expected - self.num_done, 0) * statistics.fmean(self.trial_s)

    @property
    def confirmation_s(self) -> float:
        """Of the blocks to come: up to the next look, and of later ones as often as there are some."""
        if self.is_clear or self.num_looked >= self.num_looks:
            return 0.0
        first_s, later_s = self._block_times_s()
        target = self.first_look << self.num_looked
        num_left = target - len(self.block_s)
        up_to_look_s = num_left * later_s + (first_s - later_s if not self.block_s else 0.0)
        return up_to_look_s + (MORE_LOOKS * target * later_s if self.num_looked < self.num_looks - 1 else 0.0)

    def _block_times_s(self) -> tuple[float, float]:
        if not self.block_s:
            return self.first_block_s, self.later_block_s
        if len(self.block_s) == 1:
            return self.block_s[0], self.block_s[0] * self.later_block_s / self.first_block_s
        return self.block_s[0], statistics.fmean(self.block_s[1:])

    @property
    def left_s(self) -> float:
        """Of both, and no more than there is time for."""
        expected_s = self.search_s + self.confirmation_s
        return expected_s if self.limit_s is None else min(expected_s, max(self.limit_s, 0.0))
