"""`Deadline`: when a run must be over, on a clock that nobody sets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.trial.request import Limits

Clock = Callable[[], float]
SHORTEST_S = 0.1
"""A trial's limit is never below this, however little is left: a limit must be above zero."""


@dataclass(frozen=True)
class Deadline:
    """`ends` is a reading of `clock`; None: there is all the time in the world."""

    ends: float | None = None
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, wall_s: float | None, begun: float | None = None, clock: Clock = time.monotonic) -> Deadline:
        """So many seconds after `begun`, a reading of the clock; None: now."""
        start = clock() if begun is None else begun
        return cls(None if wall_s is None else start + wall_s, clock)

    def left_s(self) -> float:
        """Seconds until then, below 0 when it is over, infinite where there is no end."""
        return math.inf if self.ends is None else self.ends - self.clock()

    def cap(self, limits: Limits, longest_s: float | None = None) -> Limits:
        """The limits of a trial that must be over by then, or after `longest_s` where that is sooner."""
        left_s = self.left_s() if longest_s is None else min(self.left_s(), longest_s)
        return limits.model_copy(update={"total": min(limits.total, max(left_s, SHORTEST_S))})


NEVER = Deadline()
