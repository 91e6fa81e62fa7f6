"""A config that is known to round and misses the tolerance by little: it is timed all the same, and stays wrong.

Whether a rounding is worth a larger tolerance only the user can say, who has to know for that what it would give.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from autotune.measure.measurement import Checked, Failure, Measurement, NearMiss
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import Gate, WrongResultError, check

MOST = 4.0
"""What passes with so many times the tolerance misses it by little."""


@dataclass(frozen=True)
class Near:
    """How the outputs miss the tolerance, and what the smallest rounded one finds that takes them."""

    wrong: WrongResultError
    tolerance: float
    checked: Checked


class NearMissError(Exception):
    """The trial is wrong by little, and has still to be timed: `take` does that."""

    def __init__(self, near: Near, take: Callable[[], Measurement]) -> None:
        super().__init__(str(near.wrong))
        self.wrong = near.wrong
        self._tolerance, self._take = near.tolerance, take

    def timed(self, failure: Failure, folder: TrialFolder) -> Failure:
        """The failure with what was timed. It is written before: it stands, however the process ends in its calls."""
        folder.write_outcome(failure)
        try:
            near = NearMiss(tolerance=self._tolerance, measurement=self._take())
        except Exception:
            traceback.print_exc()
            return failure
        return failure.model_copy(update={"near": near})


def near_miss(wrong: WrongResultError, request: TrialRequest, seen: Any, tolerance: float, gate: Gate) -> Near | None:
    """None where what a run gave is wrong with `MOST` times the tolerance as well."""
    if _within(request, seen, MOST * tolerance, gate) is None:
        return None
    for larger in _rounded_above(tolerance):
        if (checked := _within(request, seen, larger, gate)) is not None:
            # What it was raised in holds the outputs, which are no part of the memory that calls take.
            wrong.__context__ = None
            return Near(wrong.with_traceback(None), larger, checked)
    return None


def _within(request: TrialRequest, seen: Any, tolerance: float, gate: Gate) -> Checked | None:
    try:
        return check(request, seen, tolerance, gate)
    except WrongResultError:
        return None


def _rounded_above(tolerance: float) -> Iterator[float]:
    """1, 2 and 5 times powers of ten above a tolerance, up to the first that is no less than `MOST` times as large."""
    first = math.floor(math.log10(tolerance))
    for rounded in (float(f"{digit}e{power}") for power in (first, first + 1) for digit in (1, 2, 5)):
        if rounded > tolerance:
            yield rounded
        if rounded >= MOST * tolerance:
            return
