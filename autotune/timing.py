"""Taking latency samples: warm up, then sample until the median is known well enough or the time is used up.

Pure but for the clock and the call that it is handed; it knows no framework. One call is one sample: the device is
synchronised before the clock is read, so a sample is the time until the result is there.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from autotune.measurement import Record, Samples

Clock = Callable[[], float]


class SamplingPlan(Record):
    """How long to warm up and how long to sample. Times in seconds, counts in calls."""

    min_warmup_calls: PositiveInt = 3
    max_warmup_s: PositiveFloat = 5.0
    settled_spread: PositiveFloat = 0.05
    """The warm-up has settled when the medians of its last two windows differ by less than this share."""
    min_samples: PositiveInt = 30
    max_samples: PositiveInt = 500
    max_sampling_s: PositiveFloat = 4.0
    precision: PositiveFloat = 0.005
    """Sampling ends when half the 95 % interval of the median is below this share of the median."""
    fewest_samples: PositiveInt = 3
    """Taken even when the time is used up: a model of 10 s a call still gets this many."""


def take_samples(call: Callable[[], None], plan: SamplingPlan, clock: Clock = time.perf_counter) -> Samples:
    """Time `call` (which returns when its result is there) by `plan`. The warm-up's samples are kept apart."""
    warmup, steady = _warm_up(call, plan, clock)
    samples, ended_by = _sample(call, plan, clock)
    return Samples(latency_s=tuple(samples), warmup_s=tuple(warmup), steady=steady, ended_by=ended_by)


def _warm_up(call: Callable[[], None], plan: SamplingPlan, clock: Clock) -> tuple[list[float], bool]:
    taken: list[float] = []
    end = clock() + plan.max_warmup_s
    while True:
        taken.append(_time_once(call, clock))
        if len(taken) >= plan.min_warmup_calls and _settled(taken, plan):
            return taken, True
        if clock() >= end:
            return taken, False


def _settled(taken: list[float], plan: SamplingPlan) -> bool:
    """True when the last window of calls is as fast as the window before it."""
    width = max(1, plan.min_warmup_calls // 2)
    if len(taken) < 2 * width:
        return False
    before, last = statistics.median(taken[-2 * width : -width]), statistics.median(taken[-width:])
    return abs(last - before) <= plan.settled_spread * before


def _sample(
    call: Callable[[], None], plan: SamplingPlan, clock: Clock
) -> tuple[list[float], Literal["precision", "num_samples", "time"]]:
    taken: list[float] = []
    end = clock() + plan.max_sampling_s
    while True:
        taken.append(_time_once(call, clock))
        if len(taken) >= plan.min_samples and relative_half_width(taken) <= plan.precision:
            return taken, "precision"
        if len(taken) >= plan.max_samples:
            return taken, "num_samples"
        if clock() >= end and len(taken) >= plan.fewest_samples:
            return taken, "time"


def relative_half_width(samples: list[float]) -> float:
    """Half the width of the median's 95 % interval, as a share of the median.

    Distribution-free: the interval's ends are order statistics, their ranks from the normal approximation of the
    binomial(n, 1/2) (Conover, Practical Nonparametric Statistics, section 3.2). It speaks of this process only:
    between processes medians differ by more, which is why a verdict rests on fresh processes.
    """
    ordered = sorted(samples)
    num_below = max(math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2), 0)
    low, high = ordered[num_below], ordered[len(ordered) - 1 - num_below]
    return (high - low) / 2 / statistics.median(ordered)


def _time_once(call: Callable[[], None], clock: Clock) -> float:
    start = clock()
    call()
    # A clock's resolution must not turn a very short call into an impossible 0 s.
    return max(clock() - start, 1e-9)
