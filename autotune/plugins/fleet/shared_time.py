"""`SharedTime`: one time for several models, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autotune.study.budget import Budget


@dataclass
class SharedTime:
    """What was spent of it so far, in seconds. What one model leaves is for all that come after it."""

    spent_s: float = 0.0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Count what is done within."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.spent_s += time.monotonic() - begun

    def share_of(self, budget: Budget, num_left: int) -> Budget | None:
        """The budget, with the time of the next of so many models: as much as each that comes after it would have if
        this one took all of it. None: the time is over."""
        if budget.wall_s is None:
            return budget
        left_s = budget.wall_s - self.spent_s
        return budget.model_copy(update={"wall_s": left_s / num_left}) if left_s > 0 else None
