"""Timing a stream of calls of many shapes: one cold pass, in which everything is compiled, then whole steady passes.

Pure like `timing`. A pass is never cut: its calls have different shapes, so that half a pass would be other traffic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from autotune.measure.diagnosis import Compilations
from autotune.measure.measurement import Samples
from autotune.measure.sampling import Clock, SamplingPlan, Taken, is_clearly_slower, time_once

FEWEST_PASSES = 2
"""Taken even when the time is used up."""

Calls = Sequence[Callable[[], None]]
"""The stream: what makes each call and returns when its result is there."""


def take_cold_pass(
    calls: Calls, read: Callable[[], Compilations | None], clock: Clock = time.perf_counter
) -> tuple[tuple[float, ...], tuple[Compilations, ...] | None]:
    """Seconds of each call, and what `read` gave after it; None where it gave nothing once."""
    seconds, compilations = [], []
    for call in calls:
        seconds.append(time_once(call, clock))
        compilations.append(read())
    known = tuple(each for each in compilations if each is not None)
    return tuple(seconds), known if len(known) == len(seconds) else None


def take_passes(
    calls: Calls, plan: SamplingPlan, clock: Clock = time.perf_counter, *, incumbent_s: float | None = None
) -> Samples:
    """Warm up, then take passes by `plan`: until there are enough samples or the time is used up, or until they are
    clearly slower than the best config was on the same stream (`incumbent_s`, see `timing.take_samples`)."""
    warmup, steady = _warm_up(calls, plan, clock)
    taken = Taken()
    with taken.watched():
        ended_by = _sample(calls, plan, clock, taken, incumbent_s)
    return taken.samples(warmup, steady, ended_by)


def take_passes_in_turns(
    calls: Calls, plan: SamplingPlan, next_turn: Callable[[], bool], clock: Clock = time.perf_counter
) -> Samples:
    """Warm up, then take passes for `plan.turn_s`, one at least, each time that `next_turn` (which waits) returns True.

    Each turn begins with a call that is not counted. Raises RuntimeError if there was no turn at all.
    """
    warmup, steady = _warm_up(calls, plan, clock)
    taken = Taken()
    turns = []
    while next_turn():
        calls[-1]()
        num_before = len(taken.latency_s)
        end = clock() + plan.turn_s
        with taken.watched():
            while len(taken.latency_s) == num_before or clock() < end:
                _take_pass(calls, taken, clock)
        turns.append(len(taken.latency_s) - num_before)
    if not turns:
        raise RuntimeError("ended before its first turn")
    return taken.samples(warmup, steady, "turns", tuple(turns))


def _take_pass(calls: Calls, taken: Taken, clock: Clock) -> None:
    for call in calls:
        taken.time_once(call, clock)


def _warm_up(calls: Calls, plan: SamplingPlan, clock: Clock) -> tuple[list[float], bool]:
    """Passes until one takes as long as the one before; and whether that came in time."""
    warmup: list[float] = []
    before_s = None
    end = clock() + plan.max_warmup_s
    while True:
        seconds = [time_once(call, clock) for call in calls]
        warmup += seconds
        last_s = sum(seconds)
        is_long_enough = len(warmup) >= plan.min_warmup_calls
        if is_long_enough and before_s is not None and abs(last_s - before_s) <= plan.settled_spread * before_s:
            return warmup, True
        if clock() >= end:
            return warmup, False
        before_s = last_s


def _sample(
    calls: Calls, plan: SamplingPlan, clock: Clock, taken: Taken, incumbent_s: float | None
) -> Literal["num_samples", "time", "slower"]:
    end = clock() + plan.max_sampling_s
    while True:
        _take_pass(calls, taken, clock)
        num_taken = len(taken.latency_s)
        if is_clearly_slower(taken.latency_s, plan, incumbent_s):
            return "slower"
        if num_taken < FEWEST_PASSES * len(calls):
            continue
        if num_taken + len(calls) > plan.max_samples:
            return "num_samples"
        if clock() >= end:
            return "time"
