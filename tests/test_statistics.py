"""From process pairs to a verdict, on simulated machines whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.statistics import MARGIN, Speedup, Verdict, break_even_calls, speedup_over_pairs, verdict_of

Pairs = list[tuple[float, float]]
NOISE = 0.02
"""Scatter between processes of one and the same model: what docs/measurement.md reports, 1 to 6 %, at its usual."""


def simulate(speedup: float, *, num_studies: int = 300, num_pairs: int = 4, noise: float = NOISE) -> list[Speedup]:
    """What many studies would find where the tuned model truly is `speedup` times as fast."""
    generator = np.random.default_rng(1234)
    logs = generator.normal(0.0, noise, size=(num_studies, num_pairs, 2))
    latencies = 0.01 * np.exp(logs) / np.array([1.0, speedup])
    return [speedup_over_pairs([(float(u), float(t)) for u, t in pairs]) for pairs in latencies]


def rate(verdict: Verdict, found: list[Speedup]) -> float:
    return sum(verdict_of(each) is verdict for each in found) / len(found)


@pytest.fixture(scope="module")
def equal() -> list[Speedup]:
    return simulate(1.0, num_studies=2000)


def test_equal_models_are_hardly_ever_called_faster(equal: list[Speedup]) -> None:
    """A model compared with itself is `faster` in 0.12 % of studies (non-central t, 3 df); here below 0.4 %."""
    assert rate(Verdict.FASTER, equal) < 0.004


def test_equal_models_are_a_tie(equal: list[Speedup]) -> None:
    """A model compared with itself is a tie, but for the 2.5 % on either side that a 95 % interval misses."""
    assert rate(Verdict.TIE, equal) > 0.95
    assert rate(Verdict.KEEP_UNTUNED, equal) < 0.04


@pytest.mark.parametrize(("truth", "num_pairs"), [(0.8, 2), (1.5, 4), (1.1, 8)])
def test_the_interval_covers_the_truth_19_times_in_20(truth: float, num_pairs: int) -> None:
    """The 95 % interval holds the true ratio in 95 % of studies (3 % is 3.4 standard errors of 600 studies)."""
    found = simulate(truth, num_studies=600, num_pairs=num_pairs)
    coverage = sum(each.low <= truth <= each.high for each in found) / len(found)
    assert coverage == pytest.approx(0.95, abs=0.03)


def test_a_real_gain_is_found() -> None:
    """A true speed-up of 20 % amid 2 % noise is `faster` in nearly every study (theory: all but one in a million)."""
    assert rate(Verdict.FASTER, simulate(1.2)) > 0.995


@pytest.mark.parametrize(("truth", "least"), [(1 / 1.2, 0.995), (1 / 1.1, 0.97)])
def test_a_regression_keeps_the_untuned_model(truth: float, least: float) -> None:
    """A tuned model that is truly slower is never `faster`, and nearly always `keep_untuned`."""
    found = simulate(truth)
    assert rate(Verdict.FASTER, found) == 0
    assert rate(Verdict.KEEP_UNTUNED, found) > least


def test_a_gain_below_the_margin_is_never_worth_it() -> None:
    """A true gain of half the margin, known almost exactly, is a tie."""
    assert rate(Verdict.TIE, simulate(1 + MARGIN / 2, noise=1e-4)) > 0.99


@pytest.mark.parametrize(
    ("ratios", "t_quantile"),
    [((1.5, 1.6), 12.7062), ((1.2, 1.3, 1.25), 4.3027), ((1.1, 1.2, 1.15, 1.3), 3.1824)],
)
def test_the_interval_is_student_s_of_the_log_ratios(ratios: tuple[float, ...], t_quantile: float) -> None:
    """Ends are exp(mean +- t s / sqrt(n)) of the log ratios, with t from the printed table."""
    logs = [math.log(each) for each in ratios]
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((each - mean) ** 2 for each in logs) / (len(logs) - 1) / len(logs))
    found = speedup_over_pairs([(each, 1.0) for each in ratios])
    assert found.low == pytest.approx(math.exp(mean - t_quantile * spread), rel=1e-5)
    assert found.high == pytest.approx(math.exp(mean + t_quantile * spread), rel=1e-5)


def test_another_confidence_gives_another_interval() -> None:
    """More confidence needs a wider interval: at 50 % over two pairs it reaches just from one ratio to the other."""
    pairs = [(1.0, 1.0), (2.0, 1.0)]
    half = speedup_over_pairs(pairs, confidence=0.5)
    assert (half.low, half.high) == pytest.approx((1.0, 2.0))
    assert speedup_over_pairs(pairs, confidence=0.99).high > speedup_over_pairs(pairs).high > half.high


def test_speed_up_is_untuned_over_tuned() -> None:
    """A tuned model that needs half the time is twice as fast, however long the calls of a pair were."""
    found = speedup_over_pairs([(2.0, 1.0), (8.0, 4.0), (1e-6, 5e-7)])
    assert (found.median, found.low, found.high) == pytest.approx((2, 2, 2))


def test_swapping_the_two_models_inverts_the_speed_up() -> None:
    """Neither side is favoured: compared the other way round, the ratio and its ends are the reciprocals."""
    pairs: Pairs = [(1.0, 0.8), (1.1, 0.9), (0.95, 0.85), (1.2, 0.8)]
    one, other = speedup_over_pairs(pairs), speedup_over_pairs([(tuned, untuned) for untuned, tuned in pairs])
    assert (other.median, other.low, other.high) == pytest.approx((1 / one.median, 1 / one.high, 1 / one.low))


def test_one_disturbed_pair_does_not_move_the_median() -> None:
    """A pair that something disturbed widens the interval; the stated speed-up stays with the others."""
    found = speedup_over_pairs([(1.5, 1.0), (1.5, 1.0), (1.5, 1.0), (9.0, 1.0)])
    assert found.median == pytest.approx(1.5)
    assert found.high > 5


@pytest.mark.parametrize(
    "ratios",
    [(1.0, 1.0, 1.0, 1.0, 1.001, 1.3, 1.3, 1.3, 1.3) * 6 + (1.3,) * 3, (0.1,) * 3 + (1.0,) * 2, (1.53,) * 4],
    ids=["high", "low", "equal"],
)
def test_the_stated_speed_up_lies_inside_its_interval(ratios: tuple[float, ...]) -> None:
    """Whatever the pairs, low <= median <= high: a report never contradicts itself."""
    found = speedup_over_pairs([(each, 1.0) for each in ratios])
    assert found.low <= found.median <= found.high


@pytest.mark.parametrize("pairs", [[], [(1.0, 2.0)]], ids=["none", "one"])
def test_one_pair_is_no_evidence(pairs: Pairs) -> None:
    """No interval is made up from fewer than two pairs."""
    with pytest.raises(ValueError, match=f"at least 2 pairs, got {len(pairs)}"):
        speedup_over_pairs(pairs)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1.021, 1.5, Verdict.FASTER),
        (1.02, 1.5, Verdict.TIE),
        (1.01, 9.0, Verdict.TIE),
        (0.9, 1.1, Verdict.TIE),
        (0.5, 1.0, Verdict.TIE),
        (1.0, 1.0, Verdict.TIE),
        (0.5, 0.999, Verdict.KEEP_UNTUNED),
    ],
)
def test_verdict_needs_the_whole_interval(low: float, high: float, expected: Verdict) -> None:
    """`faster` needs the whole interval beyond 1.02, `keep_untuned` all of it below 1; everything else is a tie."""
    assert verdict_of(Speedup(median=(low + high) / 2, low=low, high=high)) is expected


def test_the_margin_can_be_chosen() -> None:
    """A larger margin asks for a larger gain."""
    found = Speedup(median=1.1, low=1.05, high=1.2)
    assert verdict_of(found, margin=0.04) is Verdict.FASTER
    assert verdict_of(found, margin=0.06) is Verdict.TIE


@pytest.mark.parametrize(
    ("compile_s", "untuned_s", "tuned_s", "expected"),
    [
        (10.0, 3.0, 1.0, 5),
        (10.0, 3.0, 0.0, 4),
        (0.0, 2.0, 1.0, 0),
        (-0.5, 2.0, 1.0, 0),
        (0.001, 2.0, 1.0, 1),
        (10.0, 1.0, 1.0, None),
        (10.0, 1.0, 2.0, None),
    ],
)
def test_break_even(compile_s: float, untuned_s: float, tuned_s: float, expected: int | None) -> None:
    """Compile seconds over seconds saved per call, rounded up to whole calls; never, if a call saves nothing."""
    assert break_even_calls(compile_s, untuned_s, tuned_s) == expected
