"""Taking samples, on a clock that moves only when the timed call says so: no test waits, none can be disturbed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable

import pytest

from autotune.measure import sampling
from autotune.measure.measurement import Samples
from autotune.measure.sampling import (
    PreparedCall,
    Reading,
    SamplingPlan,
    relative_half_width,
    take_samples,
    take_turns,
)

NOISY = (1.0, 2.0)
"""Alternating durations never settle, and the median's interval never gets narrow."""


class Script:
    """A call that takes scripted seconds, the last ones over and over, on a clock of its own."""

    def __init__(self, first: Iterable[float], then: tuple[float, ...] = ()) -> None:
        self._durations = itertools.chain(first, itertools.cycle(then))
        self.now = 1000.0
        self.num_calls = 0

    def call(self) -> None:
        self.now += next(self._durations)
        self.num_calls += 1

    def clock(self) -> float:
        return self.now

    def sampled(self, **plan: float) -> Samples:
        return take_samples([self.call], plan_of(plan), clock=self.clock)

    def in_turns(self, num_turns: int, **plan: float) -> Samples:
        turns = iter([True] * num_turns + [False])
        return take_turns([self.call], plan_of(plan), lambda: next(turns), clock=self.clock)


def plan_of(plan: dict[str, float]) -> SamplingPlan:
    """Calls of whole seconds are easy to add up, and not slow unless a test is about that."""
    return SamplingPlan.model_validate({"max_sampling_s": 2.0, "slow_call_s": 1e6, **plan})


def test_warm_up_goes_on_until_calls_settle() -> None:
    """Warm-up ends with the first call that is as fast as the one before, and says that it is steady."""
    samples = Script([10, 5, 2, 1, 1.02], then=(1,)).sampled(max_warmup_s=1000)
    assert samples.warmup_s == pytest.approx([10, 5, 2, 1, 1.02])
    assert samples.steady


def test_what_comes_before_each_call_is_not_timed() -> None:
    """Nor counted as a call's, in the warm-up, in samples and in turns."""
    script = Script([], then=(1.0,))

    def prepare() -> None:
        script.now += 100

    calls, plan = [PreparedCall(prepare, script.call)], plan_of({"max_warmup_s": 1000, "max_sampling_s": 1000})
    samples = take_samples(calls, plan, clock=script.clock)
    assert {*samples.warmup_s, *samples.latency_s} == {1.0}
    turns = iter([True, True, False])
    assert set(take_turns(calls, plan, lambda: next(turns), clock=script.clock).latency_s) == {1.0}


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


@pytest.mark.parametrize(("first", "is_longer"), [([1, 1, 1, 1, 1, 1, 1, 9], False), ([5, 5, 5, 5, 1, 1, 1, 1], True)])
def test_a_slow_window_prolongs_the_warm_up_and_one_slow_call_does_not(first: list[float], is_longer: bool) -> None:
    """The medians of wider windows are compared: one hiccup in the last window is no trend, a slow window is."""
    samples = Script(first, then=(1,)).sampled(min_warmup_calls=8, max_warmup_s=1000)
    assert (len(samples.warmup_s) > 8) is is_longer
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


@pytest.mark.parametrize(
    ("then", "max_samples", "ended_by", "num_samples"), [((1,), 500, "precision", 30), (NOISY, 37, "num_samples", 37)]
)
def test_sampling_ends(then: tuple[float, ...], max_samples: int, ended_by: str, num_samples: int) -> None:
    """Equal calls need no more than the least number; those whose median never gets sure end at the largest."""
    samples = Script([1, 1, 1], then=then).sampled(max_samples=max_samples, max_sampling_s=1e6)
    assert samples.ended_by == ended_by
    assert len(samples.latency_s) == num_samples


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


@pytest.mark.parametrize("max_samples", [100, 500])
def test_a_very_short_call_is_watched_for_a_least_time(max_samples: int) -> None:
    """A call of 10 us is judged by 0.2 s of it, in samples that are spread over that time, however alike they are."""
    script = Script([], then=(1e-5,))
    samples = script.sampled(max_samples=max_samples)
    assert script.now - 1000.0 >= 0.2
    assert 30 <= len(samples.latency_s) <= max_samples
    assert samples.latency_s == pytest.approx([1e-5] * len(samples.latency_s))
    longer = Script([], then=(0.01,))
    samples = longer.sampled()
    assert longer.num_calls == 30 + len(samples.warmup_s), "of calls that take longer in all none is left out"


@pytest.mark.parametrize(("call_s", "num_samples"), [(70.0, 1), (50.0, 2), (30.0, 3)])
def test_a_very_slow_model_fits_its_limit(call_s: float, num_samples: int) -> None:
    """Under a limit of 180 s a call of a minute gets as many samples as fit, and one at least."""
    script = Script([], then=(call_s,))
    samples = script.sampled(longest_s=162)
    assert samples.ended_by == "time"
    assert len(samples.latency_s) == num_samples
    assert script.now - 1000.0 <= 162
    assert Script([], then=(call_s,)).in_turns(2, longest_s=162, slow_call_s=1.0).turns == (1, 1)


def test_a_slow_call_is_sampled_less_often() -> None:
    """One makes it warm and one is a sample; in a turn, where the first call counts, it is the only one."""
    script = Script([], then=(8.0,))
    samples = script.sampled(slow_call_s=1.0)
    assert (len(samples.warmup_s), samples.latency_s) == (1, (8.0,))
    script = Script([8.0, 8.1, 8.2, 8.3])
    samples = script.in_turns(3, slow_call_s=1.0)
    assert (samples.warmup_s, samples.latency_s) == (pytest.approx((8.0,)), pytest.approx((8.1, 8.2, 8.3)))
    assert samples.turns == (1, 1, 1)
    if samples.usage is not None:
        assert len(samples.usage.cpu_s) == 3


def test_a_call_that_was_slow_once_is_not_a_slow_one() -> None:
    """Beside others, or paused, a short call may take long; its turns are those of any short call."""
    samples = Script([8.0, 5.0], then=(0.5,)).in_turns(2, slow_call_s=1.0, turn_s=1.0)
    assert samples.latency_s == pytest.approx((5.0, *[0.5] * 2))
    samples = Script([8.0], then=(0.5,)).in_turns(2, slow_call_s=1.0, turn_s=1.0)
    assert (samples.turns, len(samples.warmup_s)) == ((2, 2), 1)


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
    """A stray slow call among ten equal ones leaves the median as sure as it was; the interval is relative."""
    assert relative_half_width([1.0] * 9 + [1000.0]) == 0
    assert relative_half_width([2e-6, 3e-6, 4e-6]) == pytest.approx(relative_half_width([2.0, 3.0, 4.0]))


class TestTurns:
    """A live process takes a burst of samples at each turn."""

    def test_samples_of_all_turns_stand_in_order(self) -> None:
        """Every call but the first of each turn is a sample; `turns` says how many each turn took."""
        durations = [1.0] * 5 + [float(n) for n in range(10, 100, 10)]
        samples = Script(durations).in_turns(3, turn_s=1.0, fewest_in_turn=2)
        assert samples.warmup_s == pytest.approx([1] * 5)
        # 10, 40 and 70 are the first calls of a turn: others had the processor's caches meanwhile.
        assert samples.latency_s == pytest.approx([20, 30, 50, 60, 80, 90])
        assert samples.turns == (2, 2, 2)
        assert samples.ended_by == "turns"
        assert samples.steady

    @pytest.mark.parametrize(("turn_s", "expected"), [(10.0, 10), (9.5, 10), (1.0, 2), (0.001, 2)])
    def test_a_turn_lasts_its_time_and_takes_the_fewest_at_least(self, turn_s: float, expected: int) -> None:
        """It ends with the first call that reaches its time, but a long call gets `fewest_in_turn` samples."""
        samples = Script([], then=(1.0,)).in_turns(4, turn_s=turn_s, fewest_in_turn=2)
        assert samples.turns == (expected,) * 4
        assert len(samples.latency_s) == 4 * expected

    def test_each_turn_tells_its_median(self) -> None:
        """Of its own samples, before the next turn is asked for."""
        script = Script([1.0] * 5 + [float(n) for n in range(10, 100, 10)])
        told: list[Reading] = []
        told_before: list[int] = []

        def next_turn() -> bool:
            told_before.append(len(told))
            return len(told_before) < 4

        plan = SamplingPlan(turn_s=1.0, fewest_in_turn=2, slow_call_s=1000)
        take_turns([script.call], plan, next_turn, clock=script.clock, tell=told.append)
        assert [reading.latency_s for reading in told] == pytest.approx([25, 55, 85])
        assert told_before == [0, 1, 2, 3]

    def test_no_precision_ends_a_turn_early(self) -> None:
        """All contestants get the same time, however sure a median already is."""
        assert Script([], then=(0.001,)).in_turns(1, turn_s=2.0).turns[0] > 1000

    def test_ended_before_its_first_turn(self) -> None:
        """A process that is let go at once has no samples, and does not make any up."""
        with pytest.raises(RuntimeError, match="before its first turn"):
            Script([], then=(1.0,)).in_turns(0)

    def test_it_settles_in_its_first_turn(self) -> None:
        """What the first calls take, beside whatever goes on, is not judged: here they are alike, and slow."""
        script = Script([9, 9, 9, 5, 2, 1, 1.02], then=(1.0,))
        calls_before: list[int] = []

        def next_turn() -> bool:
            calls_before.append(script.num_calls)
            return len(calls_before) < 3

        plan = SamplingPlan(turn_s=2.0, max_warmup_s=1000, slow_call_s=1000)
        samples = take_turns([script.call], plan, next_turn, clock=script.clock)
        assert samples.warmup_s == pytest.approx([9, 9, 9, 5, 2, 1, 1.02])
        assert samples.steady
        assert calls_before == [3, 3 + 4 + 3, 3 + 4 + 3 + 3]

    def test_a_process_that_was_paused_in_its_first_calls_makes_the_rest_in_its_turn(self) -> None:
        """A pause of a minute ends them; the warm-up has its fewest calls all the same."""
        samples = Script([1, 60, 1, 1, 1], then=(1.0,)).in_turns(1, min_warmup_calls=5, turn_s=2.0)
        assert samples.warmup_s == pytest.approx([1, 60, 1, 1, 1])
        assert samples.steady


TAKEN: list[Callable[[Script], Samples]] = [
    lambda script: script.sampled(min_samples=7, max_samples=7),
    lambda script: script.in_turns(3, turn_s=2.0),
]


@pytest.mark.parametrize("take", TAKEN, ids=["samples", "turns"])
def test_what_the_system_counted_stands_beside_each_sample(take: Callable[[Script], Samples]) -> None:
    """CPU seconds, page faults and lost processors, one entry a sample, the warm-up's left out; where they are told."""
    pytest.importorskip("resource")
    samples = take(Script([], then=(1.0,)))
    usage = samples.usage
    assert len(usage.cpu_s) == len(usage.page_faults) == len(usage.involuntary_switches) == len(samples.latency_s)


def test_page_faults_are_those_of_the_call() -> None:
    """A call that touches fresh memory shows its page faults, one that does nothing next to none."""
    pytest.importorskip("resource")
    calls = itertools.count()

    def call() -> None:
        if next(calls) % 2:  # After one warm-up call: the first sample, the third, the fifth.
            memory = bytearray(64 * 2**20)
            memory[:: 2**12] = b"x" * (len(memory) // 2**12)

    plan = SamplingPlan(min_warmup_calls=1, max_warmup_s=1e-9, min_samples=6, max_samples=6, min_sampling_s=1e-9)
    usage = take_samples([call], plan).usage
    quiet, busy = usage.page_faults[1::2], usage.page_faults[::2]
    assert min(busy) > 10 + max(quiet)


@pytest.mark.parametrize("take", TAKEN, ids=["samples", "turns"])
def test_a_system_that_counts_nothing_gives_none(take: Callable[[Script], Samples], monkeypatch) -> None:
    """Where there is no getrusage the counters are None, and the samples are there all the same."""
    monkeypatch.setattr(sampling, "resource", None)
    samples = take(Script([], then=(1.0,)))
    assert samples.usage is None
    assert samples.latency_s
