"""`Deadline`: when a run must be over, on the monotonic clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.trial.request import Limits

Clock = Callable[[], float]
LimitsNow = Callable[[], Limits]
"""The limits of a process that is started now: less than usual where little of a run's time is left."""
SHORTEST_S = 0.1
"""Lower bound of a trial's limit, which must be above zero."""


@dataclass(frozen=True)
class Deadline:
    """`ends` is a reading of `clock`; None: no deadline."""

    ends: float | None = None
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, wall_s: float | None, begun: float | None = None, clock: Clock = time.monotonic) -> Deadline:
        """`wall_s` seconds after `begun`, a reading of the clock; None: now."""
        start = clock() if begun is None else begun
        return cls(None if wall_s is None else start + wall_s, clock)

    def left_s(self) -> float:
        """Seconds left: negative after the deadline, infinite without one."""
        return math.inf if self.ends is None else self.ends - self.clock()

    def cap(self, limits: Limits, longest_s: float | None = None) -> Limits:
        """The limits of a trial that must end by the deadline, or after `longest_s` at work if that is sooner."""
        left_s = max(self.left_s(), SHORTEST_S)
        total = min(limits.total, left_s if longest_s is None else max(min(left_s, longest_s), SHORTEST_S))
        return limits.model_copy(update={"total": total, "wall": None if math.isinf(left_s) else left_s})


NEVER = Deadline()
