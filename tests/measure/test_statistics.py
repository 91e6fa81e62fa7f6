"""From blocks of latencies to a verdict, on simulated machines whose truth is known. All seeded: no test is chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure import blocks, bootstrap
from autotune.measure.blocks import Blocks
from autotune.measure.looks import RULED_OUT_ERROR, SMALL_GAIN
from autotune.measure.proof import Proof
from autotune.measure.statistics import (
    ERROR,
    MARGIN,
    TOO_WIDE,
    Speedup,
    Verdict,
    break_even_calls,
    margin_above,
    spread_of_pairs,
    verdict_of,
)
from autotune.tuning.confirmation import winner_of

Rows = Sequence[Sequence[float]] | NDArray[np.float64]
LOOKS = (4, 8, 16)
"""Blocks after which a confirmation looks at the answer (`BlockPlan`)."""


def comparison(rows: Rows, **looks: int) -> Proof:
    """From any rows of latencies, the base first."""
    return Proof(Blocks(tuple(tuple(float(each) for each in row) for row in rows)), **looks)


def speedup(rows: Rows, **looks: int) -> Speedup:
    """Of the only config over the base."""
    (found,) = comparison(rows, **looks).look.speedups
    return found


def of_ratios(*ratios: float, **looks: int) -> Speedup:
    """Of a config whose blocks gave these ratios."""
    return speedup([(each, 1.0) for each in ratios], **looks)


def draw(
    generator: np.random.Generator,
    speeds: Sequence[float],
    *,
    num_blocks: int,
    process_sd: float,
    drift_sd: float = 0.0,
    share_hit: float = 0.0,
) -> NDArray[np.float64]:
    """Blocks of configs that truly are so many times as fast as a base of 10 ms; the first speed is the base's.

    Each process has a bias of its own, the machine's speed may wander from block to block, and in a share of the
    blocks somebody else slows one of the processes down, by half on average (exponential).
    """
    logs = generator.normal(0.0, process_sd, (num_blocks, len(speeds)))
    logs += np.cumsum(generator.normal(0.0, drift_sd, num_blocks))[:, None]
    for block in np.flatnonzero(generator.random(num_blocks) < share_hit):
        logs[block, generator.integers(len(speeds))] += math.log1p(generator.exponential(0.5))
    latencies: NDArray[np.float64] = 0.010 * np.exp(logs) / np.array(speeds)
    return latencies


def conclude(latencies: NDArray[np.float64], margin_at: dict[int, float]) -> tuple[Verdict, int]:
    """Verdict and number of blocks as a confirmation finds them: looks until it is clear, then the best is picked."""
    for num_blocks in LOOKS:
        found = comparison(latencies[:num_blocks], num_looks=len(LOOKS))
        if found.is_clear(margin_at[num_blocks]):
            break
    margin = margin_at[num_blocks]
    winner = winner_of(found, margin, [(0, 0.0)] * len(found.look.speedups))
    return found.verdict(winner, margin), num_blocks


def studies(
    speeds: Sequence[float], *, num_studies: int, process_sd: float, seed: int = 1, **noise: float
) -> list[tuple[Verdict, int]]:
    """What so many studies conclude, each with the margin that a noise floor of such processes sets."""
    generator = np.random.default_rng(seed)
    # The floor is the spread of the log ratio of two processes.
    margin_at = {num: margin_above(math.sqrt(2) * process_sd, num) for num in LOOKS}
    return [
        conclude(draw(generator, speeds, num_blocks=max(LOOKS), process_sd=process_sd, **noise), margin_at)
        for _ in range(num_studies)
    ]


def at_most(share: float, num_studies: int) -> float:
    """So many of the studies may show what truly comes in this share of them: three binomial standard errors more."""
    return num_studies * share + 3 * math.sqrt(num_studies * share * (1 - share))


@pytest.fixture
def fewer_resamples(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Hundreds of studies: a tenth of the draws keeps a quantile to 3 %, a twentieth (in the fast cases) to 4 %."""
    is_slow = request.node.get_closest_marker("slow") is not None
    monkeypatch.setattr(bootstrap, "NUM_RESAMPLES", 2000 if is_slow else 1000)


class TestInterval:
    """How wide, where, and with what the interval does not change."""

    @pytest.mark.fast_cases("4-1", "8-2")
    @pytest.mark.parametrize("num_configs", [1, 2, 3])
    @pytest.mark.parametrize("num_blocks", [4, 8, 12])
    def test_it_holds_for_all_configs_at_once(self, fewer_resamples: None, num_configs: int, num_blocks: int) -> None:
        """In at most 2 % of studies does any config's interval miss the truth (by construction; 400 simulated)."""
        generator = np.random.default_rng(num_blocks)
        truth = [1.0, 1.3, 0.9, 1.0][: num_configs + 1]
        num_missed = 0
        for _ in range(400):
            found = comparison(draw(generator, truth, num_blocks=num_blocks, process_sd=0.02)).look.speedups
            num_missed += not all(each.low <= true <= each.high for each, true in zip(found, truth[1:], strict=True))
        assert num_missed <= at_most(ERROR, 400)

    @pytest.mark.parametrize(
        ("ratios", "t_quantile"),
        [((1.2, 1.3, 1.25), 6.9646), ((1.1, 1.2, 1.15, 1.3), 4.5407), ((1.1, 1.2, 1.15, 1.3, 1.12), 3.7469)],
    )
    def test_of_one_config_it_is_student_s_if_blocks_are_independent(
        self, monkeypatch: pytest.MonkeyPatch, ratios: tuple[float, ...], t_quantile: float
    ) -> None:
        """Below six blocks nothing is set aside: exp(mean -+ t s / sqrt(n)), t from the printed table, to a few %; and
        less than three times as wide since blocks may be alike.
        """
        prudent = of_ratios(*ratios, first_look=3)
        monkeypatch.setattr(blocks, "CORRELATIONS", {0.0: 1.0})
        logs = np.log(ratios)
        half = t_quantile * logs.std(ddof=1) / math.sqrt(len(logs))
        found = of_ratios(*ratios, first_look=3)
        assert math.log(found.high / found.low) / 2 == pytest.approx(half, rel=0.05)
        assert math.log(found.high * found.low) / 2 == pytest.approx(logs.mean())
        assert 1.05 < math.log(prudent.high / prudent.low) / math.log(found.high / found.low) < 3

    def test_other_configs_steady_the_deviation_of_few_blocks(self) -> None:
        """Four blocks say little about scatter, those of three configs more: on average intervals are narrower."""
        generator = np.random.default_rng(3)
        drawn = [draw(generator, [1, 1, 1, 1], num_blocks=4, process_sd=0.02) for _ in range(30)]
        alone = [speedup(each[:, :2]) for each in drawn]
        beside = [comparison(each).look.speedups[0] for each in drawn]
        assert np.mean([math.log(each.high / each.low) for each in beside]) < np.mean(
            [math.log(each.high / each.low) for each in alone]
        )

    def test_each_further_look_costs_width_and_each_block_saves_some(self) -> None:
        """Looks share the error, so with more of them each interval is wider. Evidence counts: 16 blocks of the same
        noise give a much narrower one than 4."""
        latencies = draw(np.random.default_rng(4), [1, 1], num_blocks=4, process_sd=0.02)
        widths = [each.high / each.low for each in (speedup(latencies, num_looks=looks) for looks in (1, 2, 3))]
        assert widths[0] < widths[1] < widths[2]
        latencies = draw(np.random.default_rng(5), [1, 1], num_blocks=16, process_sd=0.02)
        few, many = speedup(latencies[:4]), speedup(latencies)
        assert math.log(many.high / many.low) < math.log(few.high / few.low) / 1.5

    def test_speed_up_is_base_over_config(self) -> None:
        """A config that needs half the time is twice as fast, however long the calls of a block were."""
        found = speedup([(2.0, 1.0), (8.0, 4.0), (1e-6, 5e-7)], first_look=3)
        assert (found.median, found.low, found.high) == pytest.approx((2, 2, 2))

    def test_swapping_the_two_sides_inverts_it(self) -> None:
        """Neither side is favoured: compared the other way round, the ratio and its ends are the reciprocals."""
        latencies = draw(np.random.default_rng(6), [1.0, 1.2], num_blocks=8, process_sd=0.03)
        one, other = speedup(latencies), speedup(latencies[:, ::-1])
        assert (other.median, other.low, other.high) == pytest.approx((1 / one.median, 1 / one.high, 1 / one.low))

    def test_what_does_not_matter(self) -> None:
        """The speed of each block, as of a machine that is slower in some, or a unit; the order of blocks, and that of
        columns (to the draws' own noise). The draws are seeded: the same blocks give the same verdict anywhere."""
        latencies = draw(np.random.default_rng(8), [1.0, 1.2, 0.9], num_blocks=8, process_sd=0.02)
        one, other = comparison(latencies).look.speedups
        assert comparison(latencies).look.speedups == (one, other)
        assert_same(comparison(latencies * np.geomspace(1e-6, 1e3, 8)[:, None]).look.speedups, (one, other))
        assert_same(comparison(latencies[::-1]).look.speedups, (one, other))
        assert_same(comparison(latencies[:, [0, 2, 1]]).look.speedups, (other, one), rel=0.01)

    def test_columns_without_any_scatter(self) -> None:
        """Latencies that do not vary at all (a coarse clock) give a point, also beside a config that does vary."""
        assert speedup([(2.0, 1.0)] * 4) == Speedup(median=2, low=2, high=2)
        found = comparison([(2.0, 1.0, 1.0), (2.0, 1.0, 1.1), (2.0, 1.0, 0.9), (2.0, 1.0, 1.0)]).look.speedups
        assert (found[0].low, found[0].median, found[0].high) == pytest.approx((2, 2, 2))
        assert found[1].low < 2 < found[1].high
        assert all(math.isfinite(each.low) and math.isfinite(each.high) for each in found)

    def test_the_same_config_twice(self) -> None:
        """Two columns that agree in every block (perfect correlation) are no trouble, and get the same interval; nearly
        that of one alone, since the second adds no evidence.
        """
        latencies = draw(np.random.default_rng(9), [1.0, 1.2], num_blocks=4, process_sd=0.02)
        one, other = comparison(latencies[:, [0, 1, 1]]).look.speedups
        assert_same((one,), (other,))
        alone = speedup(latencies)
        assert math.log(one.high / one.low) == pytest.approx(math.log(alone.high / alone.low), rel=0.25)

    @pytest.mark.parametrize(
        "ratios",
        [
            (1.0, 1.0, 1.0, 1.0, 1.001, 1.3, 1.3, 1.3, 1.3) * 6 + (1.3,) * 3,
            (0.1,) * 3 + (1.0,) * 2,
            (1.53,) * 4,
            (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 9.0),
        ],
        ids=["high", "low", "equal", "outliers"],
    )
    def test_the_stated_speed_up_lies_inside(self, ratios: tuple[float, ...]) -> None:
        """Whatever the blocks, low <= median <= high: a report never contradicts itself."""
        found = of_ratios(*ratios)
        assert found.low <= found.median <= found.high

    def test_no_block_is_no_evidence(self) -> None:
        """No interval is made up where nothing was measured."""
        with pytest.raises(ValueError, match="no block holds"):
            _ = comparison([]).look.speedups


class TestOutliers:
    """On a shared machine some block is always hit by somebody else."""

    EQUAL = (1.0, 1.002, 0.998, 1.001, 0.999, 1.003, 0.997)
    FASTER = (1.2, 1.21, 1.19, 1.205, 1.195, 1.2, 1.21)

    @pytest.mark.parametrize("disturbed", [0.05, 0.5, 2.0, 20.0])
    @pytest.mark.parametrize(("ratios", "verdict"), [(EQUAL, Verdict.TIE), (FASTER, Verdict.FASTER)])
    def test_one_block_among_eight_does_not_change_the_verdict(
        self, ratios: tuple[float, ...], verdict: Verdict, disturbed: float
    ) -> None:
        """From six blocks on the most extreme one on either side is set aside, whichever side was disturbed."""
        found = of_ratios(*ratios, disturbed, num_looks=3)
        assert verdict_of(found) is verdict
        assert found.high / found.low < TOO_WIDE

    def test_how_many_blocks_are_set_aside(self) -> None:
        """Of twelve two on either side, of four none: the disturbed one widens the interval, the speed-up stays."""
        assert verdict_of(of_ratios(*self.FASTER, *self.FASTER[:3], 0.4, 0.5)) is Verdict.FASTER
        found = of_ratios(1.5, 1.5, 1.5, 9.0)
        assert found.median == pytest.approx(1.5)
        assert found.high > 5


class TestBlocksAlikeInTime:
    """What happens to a block may happen to the next one as well: then they prove less than so many would."""

    @staticmethod
    def alike(
        generator: np.random.Generator,
        correlation: float,
        *,
        num_blocks: int,
        process_sd: float | NDArray[np.float64],
        num_configs: int = 3,
    ) -> NDArray[np.float64]:
        """Equal configs, each with a bias that stays the same from block to block in part (AR(1))."""
        logs = generator.normal(0.0, process_sd, (num_blocks, num_configs + 1))
        for block in range(1, num_blocks):
            logs[block] = correlation * logs[block - 1] + math.sqrt(1 - correlation**2) * logs[block]
        latencies: NDArray[np.float64] = 0.010 * np.exp(logs)
        return latencies

    @pytest.mark.fast_cases("one config")
    @pytest.mark.parametrize(
        ("correlation", "scatters"),
        [(0.8, (1, 1)), (0.8, (1, 1, 1, 1)), (0.8, (1, 1, 1, 3)), (0.5, (1, 1, 1, 3))],
        ids=["one config", "three", "three, one of them wild", "the same, less alike"],
    )
    def test_equal_configs_are_hardly_ever_called_faster(
        self, fewer_resamples: None, correlation: float, scatters: tuple[int, ...]
    ) -> None:
        """In at most 2 % of studies, also with one config alone or one three times as noisy as the others.

        With intervals for independent blocks it was 3 to 25 %.
        """
        generator = np.random.default_rng(1)
        process_sd = 0.06
        margin_at = {num: margin_above(math.sqrt(2) * process_sd, num) for num in LOOKS}
        found = Counter(
            conclude(
                self.alike(
                    generator,
                    correlation,
                    num_blocks=16,
                    process_sd=process_sd * np.array(scatters),
                    num_configs=len(scatters) - 1,
                ),
                margin_at,
            )[0]
            for _ in range(250)
        )
        assert found[Verdict.FASTER] <= 0.02 * 250

    def test_steadier_configs_do_not_narrow_the_interval_of_a_wild_one(self) -> None:
        """What three configs that hardly scatter show says nothing about one that does: alone it is as narrow."""
        generator = np.random.default_rng(3)
        latencies = draw(generator, [1, 1, 1, 1], num_blocks=4, process_sd=0.01)
        latencies[:, 3] *= np.exp(generator.normal(0.0, 0.1, 4))
        beside, alone = comparison(latencies).look.speedups[2], speedup(latencies[:, [0, 3]])
        assert math.log(beside.high / beside.low) > 0.95 * math.log(alone.high / alone.low)

    @pytest.mark.parametrize("num_configs", [1, 3])
    def test_many_blocks_tell_how_alike_they_are(self, num_configs: int) -> None:
        """After 16 blocks the estimate is near the truth; after four it is near what is believed before any block."""
        generator = np.random.default_rng(2)

        def mean_estimate(correlation: float, num_blocks: int) -> float:
            drawn = [
                self.alike(generator, correlation, num_blocks=num_blocks, process_sd=0.02, num_configs=num_configs)
                for _ in range(100)
            ]
            return float(np.mean([comparison(each).look.correlation for each in drawn]))

        assert mean_estimate(0.0, 16) < 0.15
        assert mean_estimate(0.8, 16) > 0.5
        assert mean_estimate(0.0, 4) == pytest.approx(mean_estimate(0.8, 4), abs=0.2)

    def test_blocks_that_rise_steadily_prove_less_than_the_same_ones_shuffled(self) -> None:
        """The very same figures, in an order that shows that each depends on the one before, give a wider interval."""
        ratios = [1.02 + 0.005 * block for block in range(8)]
        shuffled = [ratios[index] for index in (3, 6, 0, 5, 1, 7, 2, 4)]
        rising, mixed = of_ratios(*ratios), of_ratios(*shuffled)
        assert rising.high / rising.low > 1.2 * (mixed.high / mixed.low - 1) + 1
        assert rising.median == mixed.median

    @pytest.mark.parametrize("rows", [[(2.0, 1.0)] * 4, [(2.0, 1.0, 1.0), (2.0, 1.0, 1.1), (2.1, 1.0, 1.0)]])
    def test_the_estimate_is_a_correlation(self, rows: Rows) -> None:
        """Also where blocks are few or show no scatter."""
        assert 0 <= comparison(rows).look.correlation < 1


class TestBetween:
    """Two configs of one comparison against each other."""

    LATENCIES = draw(np.random.default_rng(11), [1.0, 1.3, 1.1], num_blocks=8, process_sd=0.01)

    def test_it_says_how_many_times_as_fast_the_first_is(self) -> None:
        """Column 1 is truly 1.3 / 1.1 times as fast as column 2."""
        found = comparison(self.LATENCIES).between(1, 2)
        assert found.low < 1.3 / 1.1 < found.high
        assert found.low > 1.1

    def test_it_is_antisymmetric(self) -> None:
        """The other way round it is the reciprocal; against itself a column is exactly 1."""
        compared = comparison(self.LATENCIES)
        one, other = compared.between(1, 2), compared.between(2, 1)
        assert (other.median, other.low, other.high) == pytest.approx((1 / one.median, 1 / one.high, 1 / one.low))
        itself = compared.between(1, 1)
        assert (itself.low, itself.median, itself.high) == (1, 1, 1)

    def test_against_the_base_it_is_the_speed_up_of_one(self) -> None:
        """With a single config there is nothing to choose from, and both ways give the same interval."""
        compared = comparison(self.LATENCIES[:, :2], num_looks=2)
        assert_same((compared.between(1, 0),), compared.look.speedups)


class TestUpperLimits:
    """The largest speed-up that a config may have."""

    @pytest.mark.parametrize("num_blocks", [4, 8])
    def test_it_is_too_low_in_one_look_of_twenty(self, fewer_resamples: None, num_blocks: int) -> None:
        """For each config by itself, whichever is faster."""
        generator = np.random.default_rng(num_blocks)
        num_below = np.zeros(2)
        for _ in range(300):
            compared = comparison(draw(generator, [1.0, 1.1, 0.9], num_blocks=num_blocks, process_sd=0.02))
            num_below += np.array(compared.look.upper_limits) < [1.1, 0.9]
        assert (num_below <= at_most(RULED_OUT_ERROR, 300)).all()
        assert (num_below > 0).all()

    def test_it_is_within_the_interval(self) -> None:
        """That holds for all configs and looks at once, and has to be wider; three looks do not move the limit."""
        latencies = draw(np.random.default_rng(3), [1.0, 1.1, 0.9], num_blocks=8, process_sd=0.02)
        once, thrice = comparison(latencies), comparison(latencies, num_looks=3)
        assert once.look.upper_limits == thrice.look.upper_limits
        for found, limit in zip(once.look.speedups, once.look.upper_limits, strict=True):
            assert found.median < limit < found.high


class TestErrorRates:
    """What whole confirmations conclude: three looks, the best of the configs picked after looking."""

    @pytest.mark.fast_cases("drifting and disturbed-0.02")
    @pytest.mark.parametrize("process_sd", [0.01, 0.02, 0.05])
    @pytest.mark.parametrize(
        "noise", [{}, {"drift_sd": 0.02, "share_hit": 0.1}], ids=["quiet", "drifting and disturbed"]
    )
    def test_equal_configs_are_hardly_ever_called_faster(
        self, fewer_resamples: None, process_sd: float, noise: dict[str, float]
    ) -> None:
        """The best of three configs that are the untuned model is `faster` in at most 1 % of studies."""
        num_studies = 400 if bootstrap.NUM_RESAMPLES == 2000 else 200
        found = studies([1, 1, 1, 1], num_studies=num_studies, process_sd=process_sd, **noise)
        assert Counter(verdict for verdict, _ in found)[Verdict.FASTER] <= at_most(0.01, num_studies)

    @pytest.mark.parametrize("noise", [{}, {"drift_sd": 0.02, "share_hit": 0.1}], ids=["quiet", "disturbed"])
    def test_a_small_gain_on_a_quiet_machine_is_found(self, fewer_resamples: None, noise: dict[str, float]) -> None:
        """A true 5 % at 1 % scatter is `faster` within 16 blocks in 93 % of studies; on a disturbed machine in 85 %."""
        found = Counter(v for v, _ in studies([1, 1.05], num_studies=150, process_sd=0.01, **noise))
        assert found[Verdict.FASTER] >= (0.93 if not noise else 0.85) * 150

    def test_a_large_gain_is_found_quickly(self, fewer_resamples: None) -> None:
        """A true 20 % where processes scatter by 2 % is `faster` always, in 85 % of studies by the second look."""
        found = studies([1, 1.2], num_studies=150, process_sd=0.02)
        assert {verdict for verdict, _ in found} == {Verdict.FASTER}
        assert sum(num_blocks > 8 for _, num_blocks in found) <= 0.15 * 150

    def test_a_gain_below_the_margin_is_hardly_ever_sold(self, fewer_resamples: None) -> None:
        """Half the margin is not worth a setting: `faster` in at most 1 % of studies, most of them a tie."""
        found = Counter(v for v, _ in studies([1, 1 + MARGIN / 2], num_studies=200, process_sd=0.01))
        assert found[Verdict.FASTER] <= at_most(0.01, 200)
        assert found[Verdict.TIE] > 0.9 * 200

    def test_a_regression_keeps_the_untuned_model(self, fewer_resamples: None) -> None:
        """A config that truly is 10 % slower is never `faster`, and nearly always `keep_untuned`."""
        found = Counter(v for v, _ in studies([1, 1 / 1.1], num_studies=150, process_sd=0.02))
        assert found[Verdict.FASTER] == 0
        assert found[Verdict.KEEP_UNTUNED] > 0.8 * 150

    def test_where_nothing_is_faster_few_blocks_say_so(self, fewer_resamples: None) -> None:
        """Equal configs at 3 % scatter are a tie in 19 of 20 studies, half of them after eight blocks at most."""
        found = studies([1, 1], num_studies=100, process_sd=0.03)
        assert sum(verdict is Verdict.TIE for verdict, _ in found) >= 95
        assert sum(num_blocks <= 8 for _, num_blocks in found) > 0.5 * 100

    def test_a_gain_of_five_percent_is_seldom_given_up(self, fewer_resamples: None) -> None:
        """At 3 % scatter one in three is proven within 16 blocks; 15 of 16 of the others are still measured then."""
        found = studies([1, 1 + SMALL_GAIN], num_studies=150, process_sd=0.03)
        unproven = [num_blocks for verdict, num_blocks in found if verdict is not Verdict.FASTER]
        assert len(unproven) < 0.75 * 150
        assert sum(num_blocks == 16 for num_blocks in unproven) >= 15 / 16 * len(unproven)

    def test_a_hopeless_machine_is_undecided(self, fewer_resamples: None) -> None:
        """Where processes scatter by 30 %, equal configs are hardly ever `faster`: the machine is named instead."""
        found = Counter(v for v, _ in studies([1, 1], num_studies=100, process_sd=0.3))
        assert found[Verdict.FASTER] <= at_most(0.01, 100)
        assert found[Verdict.UNDECIDED] > 0.8 * 100


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1 + MARGIN + 0.001, 1.5, Verdict.FASTER),
        (1 + MARGIN + 0.001, 9.0, Verdict.FASTER),
        (1 + MARGIN, 1.1, Verdict.TIE),
        (0.9, 0.9 * TOO_WIDE, Verdict.TIE),
        (0.9, 0.9 * TOO_WIDE + 0.001, Verdict.UNDECIDED),
        (1.0, 9.0, Verdict.UNDECIDED),
        (0.5, 1.1, Verdict.UNDECIDED),
        (0.5, 1 + MARGIN, Verdict.TIE),
        (0.5, 1.0, Verdict.TIE),
        (1.0, 1.0, Verdict.TIE),
        (0.5, 0.999, Verdict.KEEP_UNTUNED),
        (0.1, 0.999, Verdict.KEEP_UNTUNED),
    ],
)
def test_verdict_needs_the_whole_interval(low: float, high: float, expected: Verdict) -> None:
    """`faster` needs the whole interval beyond the margin, `keep_untuned` all of it below 1; the rest is a tie.

    Unless it is wide and leaves a gain possible: then it is `undecided`.
    """
    assert verdict_of(interval(low, high)) is expected


def test_the_margin_can_be_chosen() -> None:
    """A larger margin asks for a larger gain, and makes a wide interval below it a tie."""
    found = interval(1.05, 1.2)
    assert verdict_of(found, margin=0.04) is Verdict.FASTER
    assert verdict_of(found, margin=0.06) is Verdict.TIE
    assert verdict_of(interval(0.9, 1.2), margin=0.1) is Verdict.UNDECIDED
    assert verdict_of(interval(0.9, 1.2), margin=0.2) is Verdict.TIE


CLEAR = [
    ([(1.05, 1.2)], True, "proven"),
    ([(0.8, 0.9), (1.05, 1.2)], True, "one of two is proven"),
    ([(0.8, 0.9), (0.7, 1.0)], True, "none can win"),
    ([(0.99, 1.01)], True, "narrow, and does not even look faster"),
    ([(0.99, 1.06)], False, "looks faster, unproven"),
    ([(0.8, 1.1)], False, "too wide"),
    ([(0.99, 1.01), (0.99, 1.06)], False, "one of two looks faster"),
]


@pytest.mark.parametrize(("ends", "expected", "why"), CLEAR, ids=[why for _, _, why in CLEAR])
def test_when_more_blocks_would_not_change_the_verdict(
    ends: list[tuple[float, float]], expected: bool, why: str
) -> None:
    """It is clear when one is proven faster, or when none can win or even looks it on a quiet machine."""
    assert judged([interval(low, high) for low, high in ends]).is_clear(MARGIN) is expected


LIMITED = [
    ([(0.8, 1.2)], [1.05], True, Verdict.TIE, "wide, does not look faster, and 5 % are ruled out"),
    ([(0.8, 1.2)], [1.051], False, Verdict.UNDECIDED, "5 % are possible"),
    ([(0.83, 1.2)], [1.04], False, Verdict.UNDECIDED, "looks faster"),
    ([(0.83, 1.19)], [1.04], True, Verdict.TIE, "looks faster by no more than the margin"),
    ([(0.8, 1.2), (0.7, 1.0)], [1.04, 1.06], True, Verdict.TIE, "the other one cannot win"),
    ([(0.8, 1.2), (0.7, 1.2)], [1.04, 1.06], False, Verdict.TIE, "5 % are possible for the other one"),
    ([(0.8, 0.9)], [0.85], True, Verdict.KEEP_UNTUNED, "slower"),
    ([(0.8, 1.1)], [0.99], True, Verdict.KEEP_UNTUNED, "wide, and any gain is ruled out"),
]


@pytest.mark.parametrize(("ends", "limits", "is_clear", "verdict", "why"), LIMITED, ids=[why for *_, why in LIMITED])
def test_a_gain_that_is_ruled_out_needs_no_more_blocks(
    ends: list[tuple[float, float]], limits: list[float], is_clear: bool, verdict: Verdict, why: str
) -> None:
    """A wide interval is a tie, and clear, where no config looks faster and none may be by 5 %.

    Where it may not be faster at all the untuned model is kept.
    """
    compared = judged([interval(low, high) for low, high in ends], limits)
    assert compared.is_clear(MARGIN) is is_clear
    assert compared.verdict(0, MARGIN) is verdict


@pytest.mark.parametrize(
    ("noise_floor", "num_blocks", "expected"),
    [(0.0, 4, MARGIN), (MARGIN, 4, MARGIN), (2 * MARGIN, 4, MARGIN), (0.06, 4, 0.03), (0.06, 9, 0.02), (0.5, 1, 0.5)],
)
def test_the_margin_is_what_noise_alone_would_show(noise_floor: float, num_blocks: int, expected: float) -> None:
    """The larger of the fixed margin and the noise floor of a mean over so many blocks."""
    assert margin_above(noise_floor, num_blocks) == pytest.approx(expected)


def test_the_noise_floor_is_the_spread_of_the_log_ratio() -> None:
    """Root mean square of the log ratios; it does not matter which of the two was the slower."""
    assert spread_of_pairs([(1.0, 1.0), (3.0, 3.0)]) == 0
    assert spread_of_pairs([(1.05, 1.0)]) == pytest.approx(math.log(1.05))
    assert spread_of_pairs([(1.0, 1.05)]) == pytest.approx(math.log(1.05))
    assert spread_of_pairs([(1.03, 1.0), (1.0, 1.04)]) == pytest.approx(
        math.sqrt((math.log(1.03) ** 2 + math.log(1.04) ** 2) / 2)
    )
    assert spread_of_pairs([(1e-3, 1.1e-3)]) == pytest.approx(spread_of_pairs([(1e3, 1.1e3)]))


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


def interval(low: float, high: float) -> Speedup:
    return Speedup(median=(low + high) / 2, low=low, high=high)


def judged(speedups: Sequence[Speedup], limits: Sequence[float] | None = None) -> Proof:
    """A comparison that gave these intervals, with their ends as limits if none are given."""
    compared = Proof(Blocks((), searched=(None,) * len(speedups)))
    vars(compared.look).update(
        configs=tuple(range(len(speedups))),
        intervals=dict(enumerate(speedups)),
        upper_limits=limits or [each.high for each in speedups],
    )
    vars(compared).update(
        is_proven=lambda config, margin, **_: verdict_of(speedups[config], margin) is Verdict.FASTER,
    )
    return compared


def assert_same(found: Sequence[Speedup], expected: Sequence[Speedup], rel: float = 1e-9) -> None:
    """The same intervals, their half-widths to `rel`."""
    as_logs: Any = [np.log([[s.low, s.median, s.high] for s in each]) for each in (found, expected)]
    assert as_logs[0] == pytest.approx(as_logs[1], rel=rel, abs=max(rel * 0.1, 1e-12))
