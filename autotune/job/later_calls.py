"""`LaterCalls`: compares one of a job's calls now and then with the untuned model, after the first ones have settled.

What a job meets later than a study looked, such as a constant that is known by its address, or code that is another one
from the hundredth call on, shows in later calls alone. Comparing takes no more than a share of the time of all calls
(`Pace`). The others cost a count. What holds for a first call that is compared holds for each of these; and since other
threads may call the model meanwhile, one whose inputs or model were changed says nothing.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from autotune.errors import InputError
from autotune.job.fallback import Fallback
from autotune.job.output_check import MOST_OPEN, MOVED, CheckedCall, OutputCheck
from autotune.job.stats import StatsRecorder

SHARE = 0.01
"""The share of the time of all calls that comparing may take where the job names none."""
MOST_APART = 1_000_000
"""Calls between two that are compared, about."""


def share_of(check: object) -> float:
    """What a job that gives `check` lets comparing take of the time of all calls. Raises InputError."""
    if not isinstance(check, float):
        return SHARE if check else 0.0
    if not 0 < check <= 1:
        raise InputError(f"check={check!r}: is no share of the time", tip="give True, False, or a share such as 0.05")
    return check


class Pace:
    """How many calls there are from one that is compared to the next. None of them is timed: each is taken to be as
    long as the one that was compared last."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._random = random.Random(0)
        self._owed_s = 0.0
        """Seconds of comparing that the share has not paid for yet."""
        self.num_apart = self._some(1 / share)

    def note(self, call_s: float, check_s: float) -> None:
        """A call of `call_s` was compared, which took `check_s` beside it."""
        self._owed_s += check_s - self._share * call_s * self.num_apart
        self.num_apart = self._some(self._owed_s / (self._share * max(call_s, 1e-9)))

    def _some(self, num: float) -> int:
        """By chance somewhat more: what goes wrong at every second call is met too."""
        return math.ceil(min(max(num, 1), MOST_APART) * self._random.uniform(1, 1.5))


class LaterCalls:
    """`call` is what a settled guard's calls go to, in place of `tuned`."""

    def __init__(
        self, check: OutputCheck, share: float, tuned: Callable[..., Any], fallback: Fallback, recorder: StatsRecorder
    ) -> None:
        self._check = check
        self._backend = check.backend
        self._tuned = tuned
        self._fallback = fallback
        self._recorder = recorder
        self._pace = Pace(share)
        self._num_left: float = self._pace.num_apart
        self.number = self._pace.num_apart
        """The place of the next call that is compared among those of the job."""
        self._lock = threading.Lock()
        self._num_vain = 0
        """Calls in a row that were to be compared, and could not be."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """A tuned call, which is compared if it is its turn."""
        self._num_left -= 1
        if self._num_left > 0 or not self._lock.acquire(blocking=False):
            return self._tuned(*args, **kwargs)
        try:
            return self._compared(args, kwargs)
        finally:
            self._lock.release()

    def _compared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._backend.ranks() is not None:  # A call that one rank makes alone may wait for the others for ever.
            self._num_left = math.inf
            return self._tuned(*args, **kwargs)
        begun = time.perf_counter()
        check = self._check.begin(args, kwargs, is_alone=False)
        self._backend.synchronise()
        called = time.perf_counter()
        result = self._tuned(*args, **kwargs)
        self._backend.synchronise()
        call_s = time.perf_counter() - called
        if self._fallback.is_over:
            return result
        finding = check.finding(result, lambda: self._fallback.untuned(*args, **kwargs))
        number = self.number
        self._pace.note(call_s, time.perf_counter() - begun - call_s)
        self._num_left = self._pace.num_apart
        self.number += self._pace.num_apart
        if finding.unchecked is not None or finding.is_open:
            self._note_vain(finding)
        elif finding.wrong is None:
            self._num_vain = 0
        else:
            self._fallback.give_up(f"the outputs of call {number:,} are wrong: {finding.wrong}")
        return finding.result

    def _note_vain(self, finding: CheckedCall) -> None:
        """A call could not be compared. Other threads may be the cause, unless that goes on."""
        self._num_vain += 1
        if self._num_vain > MOST_OPEN:
            self._num_left = math.inf
            self._recorder.note_once("mismatch", f"{finding.unchecked or MOVED}: later outputs cannot be checked")
