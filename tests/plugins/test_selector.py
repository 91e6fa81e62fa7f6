"""Which tier a call takes: by promises, by what was seen, and for a while after a miss."""

from __future__ import annotations

import itertools
import threading

import pytest

from autotune.plugins.serving.selector import FEWEST_SEEN, LONGEST_WAIT, SHORTEST_WAIT, WINDOW, TierSelector

FULL, HALF, SMALL = range(3)
PROMISES = [("full", 0.040), ("half", 0.020), ("small", 0.010)]


@pytest.fixture
def selector() -> TierSelector:
    return TierSelector(PROMISES)


def call(selector: TierSelector, budget_s: float, seconds: float = 0.001) -> int:
    """One call that takes so long, and the tier that it took."""
    choice = selector.choose(budget_s)
    selector.record(choice, seconds)
    return choice.tier


def stats(selector: TierSelector):
    return selector.stats([None] * 3)


class TestBudgets:
    @pytest.mark.parametrize(
        ("budget_s", "tier"), [(1.0, FULL), (0.040, FULL), (0.039, HALF), (0.020, HALF), (0.010, SMALL)]
    )
    def test_the_best_that_fits(self, selector, budget_s, tier):
        """A promise that is no longer than the budget keeps it; of those, the best tier is taken."""
        assert call(selector, budget_s) == tier
        assert stats(selector).num_hopeless == stats(selector).num_degraded == 0

    @pytest.mark.parametrize("budget_s", [0.009, 0.0, -1.0, float("nan")])
    def test_hopeless(self, selector, budget_s):
        """Where no tier fits, the fastest is taken and the call counted; that it missed raises no expectation."""
        assert call(selector, budget_s, seconds=0.01) == SMALL
        assert stats(selector).num_hopeless == 1
        assert stats(selector).tiers[SMALL].expected_s == 0.010

    def test_the_fastest_need_not_be_the_last(self):
        """Tiers are in the order of their quality, which need not be that of their latencies."""
        selector = TierSelector([("full", 0.040), ("odd", 0.010), ("worst", 0.020)])
        assert call(selector, 0.005) == 1
        assert call(selector, 0.030) == 1

    def test_without_promises(self):
        """A tier of which nothing is known is tried; once all have missed, the least is taken."""
        selector = TierSelector([("full", None), ("half", None), ("small", None)])
        assert [call(selector, 0.01, seconds=0.02) for _ in range(4)] == [FULL, HALF, SMALL, SMALL]


class TestMisses:
    def test_a_miss_degrades(self, selector):
        """The tier is expected to take as long again, for the next calls; a larger budget is still good for it."""
        assert call(selector, 0.050, seconds=0.060) == FULL
        assert [call(selector, 0.050) for _ in range(SHORTEST_WAIT)] == [HALF] * SHORTEST_WAIT
        found = stats(selector)
        assert (found.num_misses, found.num_degraded) == (1, SHORTEST_WAIT)
        assert found.tiers[FULL].expected_s == 0.060
        assert call(selector, 0.050) == FULL

    def test_the_raised_expectation_is_a_latency(self, selector):
        """A call whose budget holds what the missed one took may have the tier at once."""
        call(selector, 0.050, seconds=0.060)
        assert call(selector, 0.060) == FULL

    def test_misses_in_a_row_are_tried_less_and_less(self, selector):
        """Each miss doubles the wait, up to a bound: a tier that never keeps its promise costs few calls."""
        tiers = []
        for _ in range(20 * LONGEST_WAIT):
            choice = selector.choose(0.050)
            selector.record(choice, 0.060 if choice.tier == FULL else 0.015)
            tiers.append(choice.tier)
        tried = [number for number, tier in enumerate(tiers) if tier == FULL]
        waits = [after - before - 1 for before, after in itertools.pairwise(tried)]
        assert waits[:4] == [SHORTEST_WAIT, 2 * SHORTEST_WAIT, 4 * SHORTEST_WAIT, 8 * SHORTEST_WAIT]
        assert max(waits) == LONGEST_WAIT
        assert stats(selector).num_misses == len(tried)

    def test_calls_that_keep_their_budget_halve_the_wait(self, selector):
        """After a bad time a tier is trusted again step by step."""
        for wait in (SHORTEST_WAIT, 2 * SHORTEST_WAIT, 4 * SHORTEST_WAIT):
            assert call(selector, 0.050, seconds=0.060) == FULL
            assert [call(selector, 0.050) for _ in range(wait)] == [HALF] * wait
        for _ in range(3):
            assert call(selector, 0.050, seconds=0.030) == FULL
        call(selector, 0.050, seconds=0.060)
        assert [call(selector, 0.050) for _ in range(SHORTEST_WAIT + 1)] == [HALF] * SHORTEST_WAIT + [FULL]

    def test_the_last_tier_has_nowhere_to_go(self, selector):
        """Its miss makes the next calls hopeless, not those of a slower tier."""
        assert call(selector, 0.015, seconds=0.050) == SMALL
        assert [call(selector, 0.015, seconds=0.005) for _ in range(SHORTEST_WAIT)] == [SMALL] * SHORTEST_WAIT
        assert stats(selector).num_hopeless == SHORTEST_WAIT


class TestWhatIsSeen:
    def test_counts_when_there_is_enough(self, selector):
        """The 99th percentile of a tier's latest calls counts where it is above the promise, from 100 calls on."""
        for number in range(FEWEST_SEEN):
            assert call(selector, 1.0, seconds=0.055 if number % 20 == 0 else 0.030) == FULL
        assert stats(selector).tiers[FULL].expected_s == 0.055
        assert call(selector, 0.050) == HALF
        assert call(selector, 0.055) == FULL

    def test_one_outlier_is_no_percentile(self, selector):
        """One slow call in a hundred, within its own budget, changes nothing."""
        for number in range(FEWEST_SEEN):
            call(selector, 1.0, seconds=0.9 if number == 50 else 0.030)
        assert stats(selector).tiers[FULL].expected_s == 0.040

    def test_never_lowers_a_promise(self, selector):
        """Quick calls do not make a tier quicker than it was confirmed to be."""
        for _ in range(2 * FEWEST_SEEN):
            call(selector, 1.0, seconds=0.001)
        assert call(selector, 0.039) == HALF

    def test_is_forgotten(self, selector):
        """After so many calls of the whole model the tier has another chance."""
        for _ in range(FEWEST_SEEN):
            call(selector, 1.0, seconds=0.055)
        tiers = [call(selector, 0.050) for _ in range(WINDOW)]
        assert tiers[0] == HALF
        assert tiers[-1] == FULL
        assert len(stats(selector).tiers) == 3


def test_statistics(selector):
    """Calls and misses of each tier, the promise beside what was seen, and the states that were handed in."""
    for seconds in (0.030, 0.032, 0.050):
        call(selector, 0.045, seconds)
    call(selector, 0.045, 0.018)
    found = selector.stats(["tuned", "untuned", None])
    full, half, small = found.tiers
    assert (found.num_calls, found.num_misses, found.num_degraded, found.num_hopeless) == (4, 1, 1, 0)
    assert (full.name, full.state, full.num_calls, full.num_misses, full.promised_s) == ("full", "tuned", 3, 1, 0.040)
    assert full.latency_s is not None
    assert full.latency_s.p50 == 0.032
    assert (half.state, half.num_calls, half.num_misses) == ("untuned", 1, 0)
    assert (small.num_calls, small.latency_s) == (0, None)


def test_threads(selector):
    """Calls of several threads are all counted, and what was seen stays in order."""

    def calls() -> None:
        for number in range(2000):
            call(selector, 0.050, seconds=0.060 if number % 50 == 0 else 0.001)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stats(selector)
    assert found.num_calls == sum(each.num_calls for each in found.tiers) == 8000
    assert found.num_misses == 4 * 2000 / 50
