"""Latency samples: warm up, then sample until the median is precise enough or the time is used up.

Pure except for the clock, the process's own counters and the calls that it is given; it knows no framework. One call
is one sample: the device is synchronised before the clock is read, so a sample is the time until the result is ready.

The unit of sampling is a pass: the calls of a stream of many shapes, or a single call. A pass is never cut: its calls
have different shapes, so half a pass would be different traffic.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from pydantic import PositiveFloat, PositiveInt

from autotune.measure.device_state import COOLING_S, ClockWatch, DeviceWatch, Instruments, without
from autotune.measure.diagnosis import Compilations
from autotune.measure.disturbance import LoadMeter
from autotune.measure.measurement import Samples, Usage
from autotune.schema import Record

try:
    import resource
except ImportError:  # Not on every system.
    resource = None  # type: ignore[assignment]

Clock = Callable[[], float]
Calls = Sequence[Callable[[], None]]
"""A pass: each makes one call and returns when its result is there."""
Beside = Callable[[], AbstractContextManager[LoadMeter | None]]
"""Makes what surrounds each stretch of samples: processes of the trial may be at work within, and then it gives what
watches their cores as well."""

FEWEST_PASSES = 2
"""Fewest passes of a stream, taken even when the time is used up."""
_STRETCH_S = 0.5
"""Seconds of samples between two readings of a device."""
_MOST_BETWEEN_SAMPLES = 1000
"""Most calls between two samples, for calls of less than a microsecond."""


class SamplingPlan(Record):
    """How long to warm up and how long to sample. Times in seconds, counts in calls."""

    min_warmup_calls: PositiveInt = 3
    max_warmup_s: PositiveFloat = 5.0
    settled_spread: PositiveFloat = 0.05
    """The warm-up has settled when the medians of its last two windows differ by less than this share."""
    min_samples: PositiveInt = 30
    max_samples: PositiveInt = 500
    max_sampling_s: PositiveFloat = 0.6
    precision: PositiveFloat = 0.005
    """Sampling ends when half the 95 % interval of the median is below this share of the median."""
    min_sampling_s: PositiveFloat = 0.2
    """Samples of very short calls are spread over this time, with calls in between that are not timed."""
    fewest_samples: PositiveInt = 3
    """Taken even when the time is used up, of a call that is not slow."""
    slow_call_s: PositiveFloat = 0.3
    """A call that takes longer is slow: one makes it warm, one is a turn, and one is taken when the time is used up.
    What it finds in the processor's caches is nothing beside it, and what disturbs a moment is averaged within it. Of a
    stream it is the pass."""
    longest_s: PositiveFloat | None = None
    """Limit of the process. A model of 60 s a call gets one sample, a stream one pass, instead of none."""
    turn_s: PositiveFloat = 0.1
    """A turn of a live process lasts this long, but at least `fewest_in_turn` samples."""
    fewest_in_turn: PositiveInt = 2
    calls_per_sample: PositiveInt = 1
    """More than one: a sample is the mean of so many calls, with one wait for the device at the end, as in a job that
    hands over the next call before the last one is done. For throughput."""
    cold_cache: bool = False
    """Before each sample the accelerator's last-level cache is overwritten, outside of what is timed. False: inputs and
    weights may lie there from the call before."""


class Reading(NamedTuple):
    """What a live process says of its latest turn."""

    latency_s: float
    """Median of its calls."""
    page_faults: float | None = None
    """A call, the median; None where the system does not tell."""


def middle_of(readings: Sequence[Reading]) -> Reading:
    """The medians of several."""
    faults = [reading.page_faults for reading in readings if reading.page_faults is not None]
    return Reading(
        statistics.median(reading.latency_s for reading in readings), statistics.median(faults) if faults else None
    )


def take_samples(
    calls: Calls,
    plan: SamplingPlan,
    clock: Clock = time.perf_counter,
    instruments: Instruments | None = None,
    *,
    beside: Beside = nullcontext,
) -> Samples:
    """Warm up, then time passes by `plan`, with what goes on `beside` them. The warm-up's samples are kept apart."""
    begun = clock()
    warmup, steady = _warm_up(calls, plan, clock, instruments)
    log = SampleLog(plan, instruments, beside)
    with log.watched():
        ended_by = _sample(calls, plan, clock, log, begun=begun)
    return log.samples(warmup, steady, ended_by)


def take_turns(
    calls: Calls,
    plan: SamplingPlan,
    next_turn: Callable[[], bool],
    clock: Clock = time.perf_counter,
    instruments: Instruments | None = None,
    *,
    wait: Callable[[float], object] = time.sleep,
    tell: Callable[[Reading], object] = lambda _: None,
    beside: Beside = nullcontext,
    first: Beside = nullcontext,
) -> Samples:
    """Make the first calls (within `first`), then take one burst of passes each time that `next_turn` (which waits)
    returns True, and give `tell` what it read.

    Before the first turn others are at work, and this process may be paused: how long its calls take there says
    nothing. So the first turn begins with the rest of the warm-up, until calls have settled.

    A turn in which the device was throttled is taken again after a wait, a few times in a process.

    Each turn begins with a call that is not counted, because other processes used the processor's caches between turns;
    a slow one is counted, and is all of the turn.
    Raises RuntimeError if there was no turn at all.
    """
    with first():
        warmup = first_calls(calls, plan, clock)
    steady = False
    log = SampleLog(plan, instruments, beside)
    turns: list[range] = []
    while next_turn():
        begun = clock()
        if not turns and sum(warmup[-len(calls) :]) <= plan.slow_call_s:
            settling, steady = _warm_up(calls, plan, clock, instruments, num_before=len(warmup))
            warmup += settling
        turns.append(_take_turn(calls, plan, clock, log, begun))
        while not _is_out_of_time(log, calls, plan, clock() - begun) and log.device.repeats(turns[-1]):
            wait(COOLING_S)
            turns.append(_take_turn(calls, plan, clock, log, begun))
        tell(log.reading(turns[-1].start))
    if not turns:
        raise RuntimeError("ended before its first turn")
    return log.samples(warmup, steady, "turns", tuple(turns))


def _take_turn(calls: Calls, plan: SamplingPlan, clock: Clock, log: SampleLog, begun: float) -> range:
    """A burst of passes. Returns the numbers of its samples."""
    num_before = len(log.latency_s)
    with log.watched():
        log.time_pass(calls[-1:], clock)
        if len(calls) > 1 or not log.is_slow():
            log.forget_last()
            end = clock() + plan.turn_s
            while clock() < end or len(log.latency_s) - num_before < plan.fewest_in_turn:
                log.time_pass(calls, clock)
                if _is_out_of_time(log, calls, plan, clock() - begun):
                    break
    return range(num_before, len(log.latency_s))


def take_cold_pass(
    calls: Calls, read: Callable[[], Compilations | None], clock: Clock = time.perf_counter
) -> tuple[tuple[float, ...], tuple[Compilations, ...] | None]:
    """Seconds of each call, and what `read` returned after each; None instead if it returned None once."""
    seconds, compilations = [], []
    for call in calls:
        seconds.append(time_once(call, clock))
        compilations.append(read())
    known = tuple(counts for counts in compilations if counts is not None)
    return tuple(seconds), known if len(known) == len(seconds) else None


def relative_half_width(samples: list[float]) -> float:
    """Half the width of the median's 95 % interval, as a share of the median.

    Distribution-free: the interval's ends are order statistics, their ranks from the normal approximation of the
    binomial(n, 1/2) (Conover, Practical Nonparametric Statistics, section 3.2). It holds for this process only:
    medians of different processes differ by more, so a verdict needs fresh processes.
    """
    ordered = sorted(samples)
    num_below = max(math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2), 0)
    low, high = ordered[num_below], ordered[len(ordered) - 1 - num_below]
    return (high - low) / 2 / statistics.median(ordered)


@dataclass
class SampleLog:
    """The samples so far, with the system's counters for each, and what the device did meanwhile."""

    plan: SamplingPlan = field(default_factory=SamplingPlan)
    instruments: Instruments | None = None
    beside: Beside = nullcontext
    latency_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    page_faults: list[int] = field(default_factory=list)
    involuntary_switches: list[int] = field(default_factory=list)
    watched_s: list[float | None] = field(default_factory=list)
    by_others_s: list[float | None] = field(default_factory=list)
    stolen_s: list[float | None] = field(default_factory=list)
    parts_s: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds of the parts of each sample, where calls have parts."""
    _next_look: float = -math.inf

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the CPU time that other processes use while samples are taken inside, without slowing any sample."""
        with self.beside() as of_all:
            meter = of_all or LoadMeter(own_cpu_s)
            self.device.begin(len(self.latency_s))
            yield
            self.device.end(len(self.latency_s))
            self.watched_s.append(meter.wall_s())
            self.by_others_s.append(meter.taken_s())
            self.stolen_s.append(meter.stolen_s())

    @cached_property
    def device(self) -> DeviceWatch:
        """Read before and after each stretch of samples."""
        return DeviceWatch(self.instruments)

    def look_at_device(self, clock: Clock, again: Callable[[], None]) -> None:
        """Between two passes, now and then: so that not all samples are lost if the device was throttled for a while.
        `again` is a call that is not timed, since the device was idle meanwhile."""
        if self.instruments is None or clock() < self._next_look:
            return
        self.device.end(len(self.latency_s))
        self.device.begin(len(self.latency_s))
        again()
        self._next_look = clock() + _STRETCH_S

    def time_pass(self, calls: Calls, clock: Clock) -> None:
        for call in map(_prepared, calls):
            if self.plan.cold_cache and self.instruments is not None:
                self.instruments.flush_cache()
            self._time_once(call, clock)

    def _time_once(self, call: Callable[[], None], clock: Clock) -> None:
        before = used()
        self.latency_s.append(time_once(call, clock) / self.plan.calls_per_sample)
        if isinstance(call, DividedCall):
            self.parts_s.append(call.parts_s())
        if before is None or (after := used()) is None:
            return
        self.cpu_s.append(round(max(after[0] - before[0], 0.0), 6))
        self.page_faults.append(after[1] - before[1])
        self.involuntary_switches.append(after[2] - before[2])

    def is_slow(self) -> bool:
        """The last call was a slow one."""
        return self.latency_s[-1] * self.plan.calls_per_sample > self.plan.slow_call_s

    def forget_last(self) -> None:
        """The last call was no sample."""
        for readings in (self.latency_s, self.cpu_s, self.page_faults, self.involuntary_switches, self.parts_s):
            del readings[-1:]

    def reading(self, start: int) -> Reading:
        """What the samples since that one come to."""
        faults = self.page_faults[start:]
        page_faults = statistics.median(faults) / self.plan.calls_per_sample if faults else None
        return Reading(statistics.median(self.latency_s[start:]), page_faults)

    def samples(
        self,
        warmup: list[float],
        steady: bool,
        ended_by: Literal["precision", "num_samples", "time", "turns"],
        turns: tuple[range, ...] = (),
    ) -> Samples:
        dropped = self.device.dropped(len(self.latency_s))
        usage = None
        if self.cpu_s:
            usage = Usage(
                cpu_s=without(self.cpu_s, dropped),
                page_faults=without(self.page_faults, dropped),
                involuntary_switches=without(self.involuntary_switches, dropped),
                taken_s=_total(self.by_others_s),
                watched_s=_total(self.watched_s),
                stolen_s=_total(self.stolen_s),
            )
        return Samples(
            latency_s=without(self.latency_s, dropped),
            warmup_s=tuple(call_s / self.plan.calls_per_sample for call_s in warmup),
            steady=steady,
            ended_by=ended_by,
            turns=tuple(len(turn) for turn in turns if not dropped.issuperset(turn)),
            usage=usage,
            calls_per_sample=self.plan.calls_per_sample,
            parts_s=tuple(parts for number, parts in enumerate(self.parts_s) if number not in dropped),
            device=self.device.state(len(self.latency_s)),
        )


def _total(seconds: Sequence[float | None]) -> float | None:
    """None where one stretch of samples does not tell."""
    known = [each for each in seconds if each is not None]
    return round(sum(known), 3) if known and len(known) == len(seconds) else None


def first_calls(calls: Calls, plan: SamplingPlan, clock: Clock) -> list[float]:
    """Seconds of each of the fewest calls of a warm-up, in whole passes."""
    seconds: list[float] = []
    end = clock() + plan.max_warmup_s
    while len(seconds) < plan.min_warmup_calls and clock() < end:
        seconds += [time_once(call, clock) for call in calls]
        if sum(seconds[-len(calls) :]) > plan.slow_call_s:
            break
    return seconds


def _warm_up(
    calls: Calls, plan: SamplingPlan, clock: Clock, instruments: Instruments | None, num_before: int = 0
) -> tuple[list[float], bool]:
    """Seconds of each call of the warm-up, and whether the passes settled in time, and the device's clock with them.
    Of the fewest calls so many were made before."""
    fewest = max(plan.min_warmup_calls - num_before, 0)
    device_clock = ClockWatch(instruments)
    warmup: list[float] = []
    passes_s: list[float] = []
    end = clock() + plan.max_warmup_s
    while True:
        seconds = [time_once(call, clock) for call in calls]
        warmup += seconds
        passes_s.append(sum(seconds))
        now = clock()
        is_even = device_clock.has_settled(now)
        if is_even and len(warmup) >= fewest and _settled(passes_s, plan, max(1, fewest // len(calls) // 2)):
            return warmup, True
        if now >= end or (is_even and passes_s[-1] > plan.slow_call_s):
            return warmup, False


def _settled(passes_s: list[float], plan: SamplingPlan, width: int) -> bool:
    """True when the last window of so many passes is as fast as the window before it."""
    if len(passes_s) < 2 * width:
        return False
    before, last = statistics.median(passes_s[-2 * width : -width]), statistics.median(passes_s[-width:])
    return abs(last - before) <= plan.settled_spread * before


def _sample(
    calls: Calls,
    plan: SamplingPlan,
    clock: Clock,
    log: SampleLog,
    *,
    begun: float,
) -> Literal["precision", "num_samples", "time"]:
    # The precision of a stream's median says nothing, since its samples are of different shapes.
    is_stream = len(calls) > 1
    fewest = FEWEST_PASSES * len(calls) if is_stream else min(plan.fewest_samples, plan.max_samples)
    start = clock()
    end = start + plan.max_sampling_s
    while True:
        log.time_pass(calls, clock)
        num_taken = len(log.latency_s)
        is_long_enough = num_taken >= plan.min_samples and clock() >= min(start + plan.min_sampling_s, end)
        if not is_stream and is_long_enough and relative_half_width(log.latency_s) <= plan.precision:
            return "precision"
        fewest = fewest if is_stream or not log.is_slow() else 1
        if num_taken >= fewest and num_taken + len(calls) > plan.max_samples:
            return "num_samples"
        if (num_taken >= fewest and clock() >= end) or _is_out_of_time(log, calls, plan, clock() - begun):
            return "time"
        log.look_at_device(clock, calls[-1])
        if not is_stream:
            _fill_time(calls[0], clock, start + num_taken * plan.min_sampling_s / max(plan.max_samples - 1, 1))


def _is_out_of_time(log: SampleLog, calls: Calls, plan: SamplingPlan, spent_s: float) -> bool:
    """One more pass like the last would be too long."""
    return (
        plan.longest_s is not None
        and spent_s + plan.calls_per_sample * sum(log.latency_s[-len(calls) :]) > plan.longest_s
    )


def _fill_time(call: Callable[[], None], clock: Clock, until: float) -> None:
    """Make further calls: an idle processor lowers its clock and loses its caches."""
    for _ in range(_MOST_BETWEEN_SAMPLES):
        if clock() >= until:
            return
        call()


@dataclass(frozen=True)
class PreparedCall:
    """A call with what is done before it, each time, outside of what is timed."""

    prepare: Callable[[], None]
    call: Callable[[], None]

    def __call__(self) -> None:
        self.prepare()
        self.call()


@dataclass(frozen=True)
class DividedCall:
    """A call that has parts: what they took is asked after each."""

    call: Callable[[], None]
    parts_s: Callable[[], tuple[float, ...]]

    def __call__(self) -> None:
        self.call()


def _prepared(call: Callable[[], None]) -> Callable[[], None]:
    """What is to be timed, after what comes before it was done."""
    if not isinstance(call, PreparedCall):
        return call
    call.prepare()
    return call.call


def time_once(call: Callable[[], None], clock: Clock) -> float:
    """Seconds of one call."""
    call = _prepared(call)
    start = clock()
    call()
    # The clock's resolution must not give 0 s for a very short call.
    return max(clock() - start, 1e-9)


def own_cpu_s() -> float | None:
    """CPU seconds of this process so far; None where the system does not tell."""
    counted = used()
    return None if counted is None else counted[0]


def used() -> tuple[float, int, int] | None:
    """CPU seconds, page faults and involuntary context switches of this process so far; some 2 us a reading."""
    if resource is None:
        return None
    counted = resource.getrusage(resource.RUSAGE_SELF)
    return counted.ru_utime + counted.ru_stime, counted.ru_minflt + counted.ru_majflt, counted.ru_nivcsw
