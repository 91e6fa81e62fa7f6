"""Taking samples, on a clock that moves only when the timed call says so: no test waits, none can be disturbed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from autotune.measurement import Samples
from autotune.timing import SamplingPlan, relative_half_width, take_samples

NOISY = (1.0, 2.0)
"""Alternating durations never settle, and the median's interval never gets narrow."""


class Script:
    """A call that takes scripted seconds, the last ones over and over, on a clock of its own."""

    def __init__(self, first: Iterable[float], then: tuple[float, ...]) -> None:
        self._durations = itertools.chain(first, itertools.cycle(then))
        self.now = 1000.0
        self.num_calls = 0

    def call(self) -> None:
        self.now += next(self._durations)
        self.num_calls += 1

    def clock(self) -> float:
        return self.now

    def sampled(self, **plan: float) -> Samples:
        return take_samples(self.call, SamplingPlan.model_validate(plan), clock=self.clock)


def test_the_plan_is_the_documented_one() -> None:
    """Without other words a median is known to 0.5 % or sampled for 4 s, as docs/measurement.md says."""
    assert SamplingPlan() == SamplingPlan(
        min_warmup_calls=3, max_warmup_s=5.0, settled_spread=0.05,
        min_samples=30, max_samples=500, max_sampling_s=4.0, precision=0.005, fewest_samples=3,
    )  # fmt: skip


def test_warm_up_goes_on_until_calls_settle() -> None:
    """Warm-up ends with the first call that is as fast as the one before, and says that it is steady."""
    samples = Script([10, 5, 2, 1, 1.02], then=(1,)).sampled(max_warmup_s=1000)
    assert samples.warmup_s == pytest.approx([10, 5, 2, 1, 1.02])
    assert samples.steady


@pytest.mark.parametrize(("last", "settled"), [(1.049, True), (0.951, True), (1.06, False), (0.94, False)])
def test_settled_means_within_the_spread_up_or_down(last: float, settled: bool) -> None:
    """Two windows that differ by less than 5 % have settled, in either direction; by more they have not."""
    samples = Script([9, 3, 3 * last, 20], then=NOISY).sampled(max_warmup_s=100)
    assert (len(samples.warmup_s) == 3) is settled


@pytest.mark.parametrize("least", [1, 2, 3, 6, 9])
def test_warm_up_makes_at_least_the_calls_that_the_runtime_needs(least: int) -> None:
    """Even a steady model is called `min_warmup_calls` times first (two at least: one call shows no trend)."""
    samples = Script([], then=(1,)).sampled(min_warmup_calls=least, max_warmup_s=1000)
    assert len(samples.warmup_s) == max(least, 2)
    assert samples.steady


def test_one_slow_call_does_not_prolong_a_long_warm_up() -> None:
    """With wider windows the medians are compared, so one hiccup in the last window is no trend."""
    samples = Script([1, 1, 1, 1, 1, 1, 1, 9], then=(1,)).sampled(min_warmup_calls=8, max_warmup_s=1000)
    assert len(samples.warmup_s) == 8
    assert samples.steady


def test_a_slow_window_prolongs_the_warm_up() -> None:
    """A whole window that is slower than the next one is a trend: the warm-up goes on until it has passed."""
    samples = Script([5, 5, 5, 5, 1, 1, 1, 1], then=(1,)).sampled(min_warmup_calls=8, max_warmup_s=1000)
    assert len(samples.warmup_s) > 8
    assert samples.steady


def test_warm_up_is_capped_and_says_so() -> None:
    """Calls that never settle end the warm-up with the first call beyond its time, and the samples are not steady."""
    samples = Script([], then=NOISY).sampled(max_warmup_s=10)
    assert not samples.steady
    assert sum(samples.warmup_s) >= 10
    assert sum(samples.warmup_s[:-1]) < 10


def test_calls_that_settle_with_the_last_warm_up_call_are_steady() -> None:
    """Settling is looked at before the time, so that a slow but steady model is not called unsteady."""
    samples = Script([6, 2, 2], then=(2,)).sampled(max_warmup_s=10)
    assert len(samples.warmup_s) == 3
    assert samples.steady


def test_warm_up_calls_are_no_samples() -> None:
    """Samples are the calls after the warm-up, in the order taken; no call is lost and none counted twice."""
    script = Script([9, 1, 1, 1.001, 1.002, 1.003], then=(1,))
    samples = script.sampled(max_warmup_s=1000, min_samples=5, max_sampling_s=1000)
    assert samples.warmup_s == pytest.approx([9, 1, 1])
    assert samples.latency_s == pytest.approx([1.001, 1.002, 1.003, 1, 1])
    assert script.num_calls == len(samples.warmup_s) + len(samples.latency_s)


def test_sampling_ends_when_the_median_is_known() -> None:
    """Equal calls need no more than the least number of samples."""
    samples = Script([], then=(1,)).sampled(max_sampling_s=1000)
    assert samples.ended_by == "precision"
    assert len(samples.latency_s) == 30


def test_sampling_goes_on_exactly_until_the_median_is_known() -> None:
    """With noise sampling goes on past the least number, and ends with the first sample that is enough."""
    noise = random.Random(1)
    script = Script([1, 1, 1, *(noise.gauss(1, 0.02) for _ in range(500))], then=(1,))
    samples = script.sampled(max_sampling_s=1000, min_samples=10)
    latency = list(samples.latency_s)
    assert samples.ended_by == "precision"
    assert len(latency) > 10
    assert relative_half_width(latency) <= 0.005
    assert all(relative_half_width(latency[:count]) > 0.005 for count in range(10, len(latency)))


def test_sampling_ends_at_the_largest_number() -> None:
    """Calls whose median never gets sure end at `max_samples`."""
    samples = Script([1, 1, 1], then=NOISY).sampled(max_samples=37, max_sampling_s=1e6)
    assert samples.ended_by == "num_samples"
    assert len(samples.latency_s) == 37


def test_sampling_ends_when_its_time_is_used_up() -> None:
    """Sampling stops with the first sample beyond its time; the warm-up's time does not count."""
    samples = Script([40, 1, 1], then=NOISY).sampled(max_warmup_s=1000, max_sampling_s=20)
    assert samples.ended_by == "time"
    assert sum(samples.latency_s) >= 20
    assert sum(samples.latency_s[:-1]) < 20


@pytest.mark.parametrize("fewest", [1, 3, 5])
def test_a_slow_model_still_gets_the_fewest_samples(fewest: int) -> None:
    """A call longer than the whole sampling time is sampled `fewest_samples` times, after one warm-up call."""
    samples = Script([], then=(60.0,)).sampled(fewest_samples=fewest)
    assert len(samples.warmup_s) == 1
    assert not samples.steady
    assert samples.latency_s == pytest.approx([60] * fewest)
    assert samples.ended_by == "time"


def test_a_call_below_the_clock_s_resolution_is_not_zero() -> None:
    """A call that the clock cannot see gets a tiny positive time: nothing is infinitely fast."""
    samples = Script([], then=(0.0,)).sampled(max_samples=20)
    assert all(0 < each <= 1e-9 for each in (*samples.warmup_s, *samples.latency_s))


@pytest.mark.parametrize(
    ("num_samples", "low", "high"),
    [(1, 1, 1), (3, 1, 3), (5, 1, 5), (10, 2, 9), (25, 8, 18), (100, 41, 60)],
)
def test_interval_of_the_median_by_ranks(num_samples: int, low: int, high: int) -> None:
    """The interval's ends are the order statistics of Conover's rule; with few samples it is their whole range."""
    samples = list(range(1, num_samples + 1))
    random.Random(0).shuffle(samples)
    expected = (high - low) / 2 / ((num_samples + 1) / 2)
    assert relative_half_width([float(each) for each in samples]) == pytest.approx(expected)


def test_one_outlier_does_not_widen_the_interval() -> None:
    """A stray slow call among ten equal ones leaves the median as sure as it was."""
    assert relative_half_width([1.0] * 9 + [1000.0]) == 0


def test_the_interval_is_relative() -> None:
    """The same spread in microseconds and in seconds is the same precision."""
    assert relative_half_width([2e-6, 3e-6, 4e-6]) == pytest.approx(relative_half_width([2.0, 3.0, 4.0]))
