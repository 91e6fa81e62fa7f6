"""Blocks with gaps, what few of them prove, and what is left to gain. All seeded: no test is chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.measure import bootstrap
from autotune.measure.blocks import CORRELATIONS_OF_CHOSEN, Blocks
from autotune.measure.early_look import PRIOR_SCALE, Posterior, is_proven_early
from autotune.measure.proof import Proof
from autotune.measure.statistics import ERROR, MARGIN, Verdict

INDEPENDENT = {0.0: 1.0}
T_4, T_6 = 3.7469, 3.1427
"""0.99 quantiles of Student's distribution with 4 and 6 degrees of freedom, from the printed table."""


def raced(
    *ratios: Sequence[float | None],
    searched: Sequence[float | None] = (),
    controls: Sequence[float | None] = (),
    num_looks: int = 3,
) -> Proof:
    """Blocks in which each config was so many times as fast as the base: one sequence a block."""
    rows = tuple((1.0, *(None if ratio is None else 1 / ratio for ratio in row)) for row in ratios)
    return Proof(Blocks(rows, tuple(searched), tuple(controls)), num_looks)


def alone(*ratios: float, searched: float | None = None, controls: Sequence[float | None] = ()) -> Proof:
    """Blocks of one config."""
    return raced(*([ratio] for ratio in ratios), searched=[searched], controls=controls)


class TestPosterior:
    """What few blocks say of a config."""

    def test_one_block_has_the_usual_scatter(self) -> None:
        """Nothing else is known of it: Student's interval with 4 degrees of freedom, 5 % wide."""
        posterior = Posterior(np.array([0.3]), INDEPENDENT)
        assert posterior.quantile(0.99) == pytest.approx(0.3 + T_4 * PRIOR_SCALE, rel=1e-3)
        assert posterior.above(0.3) == pytest.approx(0.5)
        assert posterior.above(posterior.quantile(0.2)) == pytest.approx(0.8)

    def test_more_blocks_bring_their_own(self) -> None:
        """Three blocks add two degrees of freedom, and their squares."""
        logs = np.array([0.2, 0.3, 0.4])
        scale = math.sqrt((4 * PRIOR_SCALE**2 + 0.02) / 6 / 3)
        assert Posterior(logs, INDEPENDENT).quantile(0.99) == pytest.approx(0.3 + T_6 * scale, rel=1e-3)

    def test_blocks_that_may_be_alike_say_less(self) -> None:
        """With a correlation of 0.9 three blocks are hardly more than one."""
        logs = np.array([0.3, 0.3, 0.3])
        widths = [
            Posterior(logs, correlations).quantile(0.99) - 0.3
            for correlations in (INDEPENDENT, {0.0: 0.85, 0.9: 0.15}, {0.9: 1.0})
        ]
        assert widths[0] < widths[1] < widths[2]

    def test_it_is_the_interval_of_a_config_with_few_blocks(self) -> None:
        """98 %, about the middle block; from the first look on the interval is the one of today's rule."""
        (found,) = alone(1.5).look.speedups
        assert found.median == pytest.approx(1.5)
        assert math.log(found.high / found.low) / 2 == pytest.approx(T_4 * PRIOR_SCALE, rel=1e-3)
        three, four = alone(1.5, 1.5, 1.5).look.speedups[0], alone(1.5, 1.5, 1.5, 1.5).look.speedups[0]
        assert three.low < 1.45
        assert (four.low, four.high) == pytest.approx((1.5, 1.5))

    def test_confidence(self) -> None:
        """Probability of a gain beyond the margin; there is none before the first block."""
        assert raced([1.5, None]).blocks.confidence(1, MARGIN) is None
        equal = alone(1.0 + MARGIN).blocks.confidence(0, MARGIN)
        assert equal == pytest.approx(0.5)
        few, more = alone(1.1).blocks.confidence(0, MARGIN), alone(1.1, 1.1, 1.1).blocks.confidence(0, MARGIN)
        assert few is not None
        assert more is not None
        assert 0.5 < few < more < 1


EARLY = {
    "three blocks and the search": (alone(1.4, 1.38, 1.42, searched=1.4), True),
    "no figure of the search": (alone(1.4, 1.38, 1.42), False),
    "the search says less": (alone(1.4, 1.38, 1.42, searched=1.2), False),
    "the blocks say less": (alone(1.25, 1.25, 1.25, searched=1.4), False),
    "two blocks need more": (alone(1.4, 1.4, searched=1.4), False),
    "two blocks of 1.6x": (alone(1.6, 1.62, searched=1.6), True),
    "two blocks of 1.6x, less in the search": (alone(1.6, 1.62, searched=1.45), False),
    "one block": (alone(2.5, searched=2.5), False),
    "one block of 4x": (alone(4.0, searched=4.0), True),
    "one block of 4x, less in the search": (alone(4.0, searched=2.5), False),
    "blocks that differ widely": (alone(1.02, 2.2, searched=1.6), False),
    "the control is as fast as the config": (alone(1.6, 1.6, 1.6, searched=1.6, controls=[0.62, 0.62, 0.62]), False),
    "the control agrees": (alone(1.6, 1.6, 1.6, searched=1.6, controls=[1.01, 0.99, 1.0]), True),
    "a control that differs by 15 %": (alone(1.5, 1.5, 1.5, searched=1.5, controls=[1.15, 1.15, 1.15]), False),
    "an unsteady config beside it": (raced([1.5, 0.7], [1.5, 1.3], [1.5, 0.9], searched=[1.5, 1.0]), False),
    "a steady config beside it": (raced([1.5, 1.0], [1.5, 1.0], [1.5, 1.0], searched=[1.5, 1.0]), True),
}


@pytest.mark.parametrize(("compared", "is_proven"), EARLY.values(), ids=EARLY)
def test_what_an_early_look_asks_for(compared: Proof, is_proven: bool) -> None:
    """Gain and certainty in the blocks, gain in the search, against both processes of the base, for the noise seen."""
    assert compared.is_proven(0) is is_proven
    assert (compared.verdict(0) is Verdict.FASTER) is is_proven
    assert compared.is_clear() is is_proven


class TestStated:
    """The interval that goes with a verdict."""

    def test_what_was_proven_exceeds_the_margin(self) -> None:
        """Three blocks prove a gain; a fourth, noisy one widens the interval, and does not take the proof back."""
        found = alone(1.4, 1.38, 1.42, 0.8, searched=1.4)
        present, stated = found.look.speedups[0], found.stated(0)
        assert found.verdict(0) is Verdict.FASTER
        assert present.low < 1
        assert stated is not None
        assert 1 + MARGIN <= stated.low < stated.median < stated.high < present.high

    def test_more_blocks_do_not_widen_it(self) -> None:
        """Where processes scatter as is usual, each look narrows what the one that proved the gain has stated."""
        ratios = (2.41, 2.35, 2.5, 2.52, 2.58, 2.6, 2.4, 2.55)
        found = [alone(*ratios[:num], searched=2.4).stated(0) for num in range(2, len(ratios) + 1)]
        widths = [stated.high / stated.low for stated in found if stated is not None]
        assert len(widths) == len(found)
        assert widths == sorted(widths, reverse=True)
        assert widths[0] < 1.5

    def test_later_blocks_take_nothing_back(self) -> None:
        """The intervals of all looks hold together, so what remains is what they have in common."""
        ratios = (1.1, 1.15, 1.05, 1.12, 0.5, 3.0, 0.9, 1.4)
        found = alone(*ratios)
        first, present, stated = alone(*ratios[:4]).look.speedup_of(0), found.look.speedup_of(0), found.stated(0)
        assert first is not None
        assert present is not None
        assert stated is not None
        assert present.low < first.low < first.high < present.high
        assert (stated.low, stated.high) == (first.low, first.high)
        assert stated.low <= stated.median <= stated.high

    def test_looks_that_contradict_each_other_leave_the_present(self) -> None:
        """Something changed on the machine: no gain lies in both intervals."""
        ratios = (1.1, 1.1, 1.1, 1.1, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0)
        found = alone(*ratios)
        assert found.stated(0) == found.look.speedup_of(0)

    @pytest.mark.parametrize("spread", [0.02, 0.1, 0.15, 0.3, 0.65])
    @pytest.mark.parametrize("ratios", [(2.65, 2.38), (2.65, 2.38, 2.5), (2.65,), (1.1, 1.12, 1.09, 1.11)])
    def test_it_clears_its_bar_where_it_is_proven_and_nowhere_else(
        self, ratios: tuple[float, ...], spread: float
    ) -> None:
        """However much processes of the base differ: the interval that is printed is the one that decides."""
        controls = [math.exp(spread if block % 2 else -spread) for block in range(len(ratios))]
        found = replace(alone(*ratios, searched=2.63, controls=controls), is_final=True)
        stated = found.stated(0)
        assert stated is not None
        assert (stated.low > 1 + found.margin_of(0)) is found.is_proven(0, is_last=True)

    def test_the_bar_is_that_of_a_config_s_own_blocks(self) -> None:
        """A block in which the base and its control differed widely, and another config took part, raises nothing."""
        rows: list[list[float | None]] = [[1.6, None], [1.61, None], [1.6, None], [None, 1.3]]
        controls = [1.0, 1.01, 1.0, 3.0]
        beside = raced(*rows, searched=[1.6, 1.3], controls=controls)
        assert beside.margin_of(0) == alone(1.6, 1.61, 1.6, searched=1.6, controls=controls[:3]).margin_of(0)
        assert beside.margin_of(1) > 1

    def test_a_config_without_a_block_has_none(self) -> None:
        """As has its speed-up."""
        assert raced([1.5, None]).stated(1) is None


LAST = {
    "half of it in the search": (alone(1.64, 1.59, 1.5, searched=1.21), True),
    "less in the search": (alone(1.64, 1.59, 1.5, searched=1.1), False),
    "a control that was slow once": (alone(1.6, 1.7, 1.63, searched=1.6, controls=[1.02, 1.24, 1.0]), True),
    "blocks that say less": (alone(1.25, 1.25, 1.25, searched=1.4), False),
    "two blocks": (alone(1.64, 1.59, searched=1.21), False),
    "a fourth block that agrees less": (alone(1.64, 1.59, 1.5, 1.35, searched=1.21), True),
}


@pytest.mark.parametrize(("compared", "is_proven"), LAST.values(), ids=LAST)
def test_three_blocks_ask_for_less_where_the_clock_ends_the_run(compared: Proof, is_proven: bool) -> None:
    """No later look can find a false winner then. While the run goes on none of these is proven."""
    assert replace(compared, is_final=True).is_proven(0, is_last=True) is is_proven
    assert not compared.is_proven(0, is_last=True)


@pytest.mark.parametrize(("drift", "is_proven"), [(1.2, True), (1.4, False), (0.5, True)])
def test_a_slow_hour_of_the_base_proves_nothing_early(drift: float, is_proven: bool) -> None:
    """A process of the base that became slow is what the search was read against, and the control of the block: so the
    search's figure has to be as large without it. A base that was slow before counts for nothing either way."""
    compared = Proof(replace(alone(4.0, searched=4.0, controls=[1.0]).blocks, drifts=(drift,)), 3)
    assert compared.is_proven(0) is is_proven


class TestLooks:
    """When what is looked at."""

    STEADY = (1.1, 1.11, 1.09, 1.1, 1.1, 1.11, 1.09, 1.1)

    def test_a_proof_stays(self) -> None:
        """The look that proved it was paid for: later blocks do not undo it, whatever they show."""
        assert alone(1.6, 1.62, *[1.0] * 6, searched=1.6).is_proven(0)
        assert alone(*self.STEADY[:4], 0.7, 1.5, 0.7, 0.9).is_proven(0)

    def test_a_proof_stays_when_controls_get_noisy(self) -> None:
        """Each look has the margin of what was seen by then, and that of the proof is the one that is told."""
        rows, controls = self.STEADY[:4], [1.0, 1.01, 0.99, 1.0]
        assert alone(*rows, controls=controls).is_proven(0)
        later = alone(*rows, 1.1, 1.1, controls=[*controls, 0.5, 0.5])
        assert later.is_proven(0)
        stated = later.stated(0)
        assert stated is not None
        assert stated.low > 1 + later.margin_of(0)
        assert later.margin_of(0) == alone(*rows, controls=controls).margin_of(0) < 0.1

    def test_blocks_prove_in_their_order(self) -> None:
        """The very same blocks, the unsteady ones first, prove nothing at any look."""
        assert not alone(*[1.0] * 6, 1.6, 1.62, searched=1.6).is_proven(0)

    @pytest.mark.parametrize("num_blocks", range(4, 9))
    def test_blocks_between_two_looks_count_at_the_end(self, num_blocks: int) -> None:
        """One process was hit in the second block, so that four do not prove it: the next look is at eight, or at the
        last block of the study."""
        compared = alone(self.STEADY[0], 0.9, *self.STEADY[2:num_blocks])
        assert compared.is_proven(0) is (num_blocks == 8)
        assert compared.is_proven(0, is_last=True) is (num_blocks >= 6)
        assert (compared.verdict(0) is Verdict.FASTER) is (num_blocks >= 6)

    @pytest.mark.parametrize(("num_blocks", "share"), [(4, 3), (5, 2), (8, 2), (9, 1), (16, 1)])
    def test_the_last_look_of_a_run_that_its_clock_ends_spends_what_is_left(self, num_blocks: int, share: int) -> None:
        """So many thirds of the error: the looks after 4 and 8 blocks had one each."""
        rows = [[ratio] for ratio in (*self.STEADY, *self.STEADY)[:num_blocks]]
        ended = replace(raced(*rows), is_final=True)
        (found,), (third,), (whole,) = (each.look.speedups for each in (ended, raced(*rows), raced(*rows, num_looks=1)))
        assert (found.low > third.low, found.low < whole.low) == (share > 1, share < 3)

    def test_what_the_last_look_proves(self) -> None:
        """A gain that the third of the error does not: where the run goes on, it is not proven yet."""
        rows = [1.12, 0.98, 1.14, 1.09, 1.1, 1.11]
        assert not alone(*rows).is_proven(0, is_last=True)
        ended = replace(alone(*rows), is_final=True)
        assert ended.is_proven(0, is_last=True)
        assert (ended.verdict(0), ended.inverse.is_final) == (Verdict.FASTER, True)

    def test_configs_that_a_trial_chose_need_more(self) -> None:
        """What made them look fast there may last into their blocks: the interval is wider."""
        plain, chosen = (alone(*self.STEADY, searched=searched).look.speedups[0] for searched in (None, 1.1))
        untold = raced(*([ratio] for ratio in self.STEADY)).look.speedups[0]
        assert plain == chosen
        assert chosen.low < untold.low < untold.high < chosen.high

    def test_controls_tell_how_alike_blocks_are(self) -> None:
        """Ratios of the base's processes to one and the same process: those that rise from block to block make the
        interval wider than the very same ones shuffled. That is asked only where trials chose the configs."""
        rising = [1 - 0.01 * block for block in range(8)]
        shuffled = [rising[index] for index in (3, 6, 0, 5, 1, 7, 2, 4)]
        one, other = (alone(*self.STEADY, searched=1.1, controls=controls) for controls in (rising, shuffled))
        assert (one.look.correlation > 0.5, other.look.correlation < 0.2) == (True, True)
        assert one.look.speedups[0].low < other.look.speedups[0].low
        untold = raced(*([ratio] for ratio in self.STEADY), controls=rising)
        assert untold.look.correlation == raced(*([ratio] for ratio in self.STEADY)).look.correlation

    def test_a_hit_does_not_hide_that_blocks_are_alike(self) -> None:
        """Ratios rise steadily but for one block, in which a process was hit."""
        ratios = [1.02 + 0.005 * block for block in range(8)]
        ratios[3] = 0.7
        hidden, seen = raced(*([ratio] for ratio in ratios)), alone(*ratios, searched=1.1)
        assert (hidden.look.correlation < 0.2, seen.look.correlation > 0.5) == (True, True)

    def test_the_margin_rises_with_what_controls_show(self) -> None:
        """A gain of 10 % is no more than what the base gains over itself."""
        noisy = [0.8, 1.2, 0.8, 1.2]
        assert alone(*self.STEADY[:4], controls=[1.0] * 4).is_proven(0)
        compared = alone(*self.STEADY[:4], controls=noisy)
        assert not compared.is_proven(0)
        assert compared.margin_of(0) == pytest.approx(0.204 / 2, abs=1e-3)
        assert alone(1.1).margin_of(0) == MARGIN

    def test_fewer_blocks_than_the_first_look_rule_nothing_out(self) -> None:
        """A config that looks slower after three blocks has no limit yet."""
        compared = alone(0.9, 0.9, 0.9)
        assert compared.look.upper_limits == (math.inf,)
        assert not compared.look.rules_out(0)
        assert not compared.is_clear()
        assert alone(0.9, 0.9, 0.9, 0.9).look.rules_out(0)


class TestGaps:
    """Configs that take part in some blocks only."""

    def test_each_has_its_own_looks(self) -> None:
        """A config that joins in the fifth block is proven by its own first three."""
        rows: list[list[float | None]] = [[1.1, None]] * 4 + [[1.1, 1.5], [None, 1.52], [1.1, 1.5]]
        compared = raced(*rows, searched=[1.1, 1.5])
        assert (compared.blocks.num_blocks(0), compared.blocks.num_blocks(1)) == (6, 3)
        assert compared.is_proven(1)
        assert not raced(*rows[:-1], searched=[1.1, 1.45]).is_proven(1)

    def test_who_has_few_blocks_does_not_widen_the_others(self) -> None:
        """The interval holds for all that are looked at, and those are not yet."""
        ratios = (1.2, 1.25, 1.18, 1.22, 1.21)
        beside = raced(*([ratio, 1.3] for ratio in ratios[:3]), *([ratio, None] for ratio in ratios[3:]))
        assert beside.look.speedups[0] == raced(*([ratio] for ratio in ratios)).look.speedups[0]

    def test_a_block_of_others_changes_nothing(self) -> None:
        """Rows in which none of the configs that are looked at took part say nothing about them."""
        rows = [
            [ratio, other, None] for ratio, other in zip((1.2, 1.25, 1.18, 1.22), (1.1, 1.12, 1.1, 1.09), strict=True)
        ]
        compared = raced(*rows[:2], [None, None, 1.3], *rows[2:])
        assert compared.look.speedups[:2] == raced(*(row[:2] for row in rows)).look.speedups
        assert compared.look.correlation == raced(*(row[:2] for row in rows)).look.correlation

    @pytest.mark.parametrize("scatter", [0.02, 0.1])
    def test_intervals_hold_for_all_at_once(self, monkeypatch: pytest.MonkeyPatch, scatter: float) -> None:
        """In at most 2 % of studies, by 300 of them: two configs that met in four blocks of eight."""
        monkeypatch.setattr(bootstrap, "NUM_RESAMPLES", 1000)
        generator = np.random.default_rng(2)
        truth, num_missed = (1.3, 0.9), 0
        for _ in range(300):
            noise = np.exp(generator.normal(0.0, scatter, (8, 3)))
            rows = tuple(
                (one, two / 1.3 if block < 6 else None, three / 0.9 if block >= 2 else None)
                for block, (one, two, three) in enumerate(noise.tolist())
            )
            found = Proof(Blocks(rows)).look.speedups
            num_missed += not all(each.low <= true <= each.high for each, true in zip(found, truth, strict=True))
        assert num_missed <= 300 * ERROR + 3 * math.sqrt(300 * ERROR)

    def test_two_configs_are_compared_where_they_met(self) -> None:
        """And not at all where they never did."""
        compared = raced([1.5, 1.2], [1.5, None], [None, 1.0], [1.5, 1.2])
        assert compared.between(1, 2).median == pytest.approx(1.25)
        with pytest.raises(ValueError, match="no block holds both 1 and 2"):
            raced([1.5, None], [None, 1.2]).between(1, 2)

    def test_a_config_without_a_block_has_no_speedup(self) -> None:
        """Though it has a figure of the search."""
        compared = raced([1.5, None], searched=[1.5, 1.6])
        assert compared.look.speedup_of(1) is None
        assert not compared.is_proven(1)
        assert compared.verdict(1) is Verdict.UNDECIDED
        with pytest.raises(ValueError, match=r"\[1\]"):
            _ = compared.look.speedups


class TestRegret:
    """Who is the best so far, and what it would be worth to know for sure."""

    def test_blocks_and_the_search_say_together_who_is_the_best(self) -> None:
        """With one row each their figures weigh the same; a row with a gap counts for what it holds."""
        compared = raced([1.6, 1.5, None], searched=[1.6, 1.8, 1.4])
        assert compared.blocks.expected_speedups == pytest.approx((1.6, math.sqrt(1.5 * 1.8), 1.4), rel=0.05)
        assert raced([1.6, 1.5], searched=[1.6, 1.8]).blocks.expected_speedups[1] == pytest.approx(math.sqrt(1.5 * 1.8))
        assert raced([1.6, None]).blocks.expected_speedups == pytest.approx((1.6, None))

    def test_a_config_is_held_against_those_that_it_met(self) -> None:
        """The base was disturbed in the block of the second: what its neighbour did there tells."""
        rows = [(1.0, 1 / 1.5, None)] * 3 + [(2.0, 1 / 1.5, 1 / 1.2)]
        assert Blocks(tuple(rows)).expected_speedups[1] == pytest.approx(1.2 * 2**0.625, rel=1e-6)

    def test_of_two_that_look_equal_it_is_that_of_a_normal_difference(self) -> None:
        """0.4 standard deviations: one row each, both processes scatter by 5 % / sqrt(2)."""
        compared = raced([1.3, 1.3])
        expected = PRIOR_SCALE / math.sqrt(2 * math.pi)
        assert compared.blocks.expected_regret(0) == pytest.approx(expected, rel=0.05)
        assert compared.blocks.expected_gains(0) == pytest.approx((0, expected), rel=0.05)

    def test_blocks_and_the_search_s_trial_lower_it(self) -> None:
        """Each is one more look at the difference."""
        found = [
            raced(*rows, searched=searched).blocks.expected_regret(0)
            for rows, searched in (
                ([[1.5, 1.45]], ()),
                ([[1.5, 1.45]], (1.5, 1.45)),
                ([[1.5, 1.45], [1.5, 1.45]], (1.5, 1.45)),
                ([[1.5, 1.45], [1.5, 1.45], [1.5, 1.45]], (1.5, 1.45)),
            )
        ]
        assert found == sorted(found, reverse=True)
        assert found[-1] < found[0] / 3

    def test_a_config_without_any_figure_has_none(self) -> None:
        """And one with the search's alone counts as one that was seen once."""
        assert raced([1.5, None]).blocks.expected_regret(0) == 0
        assert raced([1.5, None], searched=[1.5, None]).blocks.expected_gains(0) == (0, 0)
        assert raced([1.5, None], searched=[1.5, 1.5]).blocks.expected_regret(0) > 0.01

    def test_of_the_base_it_is_the_whole_gain(self) -> None:
        """Nothing of it is known for the base: it stays as it is."""
        assert raced([1.5, 0.8]).blocks.expected_regret(None) == pytest.approx(math.log(1.5), rel=0.02)


class TestErrorRates:
    """What early looks prove where nothing is faster, and where something is; 400 studies of three configs."""

    @staticmethod
    def share_proven(gain: float, sd: float, share_hit: float = 0.0, num_blocks: int = 3) -> float:
        """Of 400 studies the share in which some config is proven within so many blocks."""
        generator = np.random.default_rng(1)
        num_proven = 0
        for _ in range(400):
            logs = generator.normal(0.0, sd, (num_blocks + 1, 5))
            logs += math.log(1.5) * (generator.random(logs.shape) < share_hit)
            logs[:, 2] -= math.log(gain)
            logs[1:, 0] = logs[
                0, 0
            ]  # The control is one process, and the one that the search's trials were held against.
            control, *others = np.exp(logs).T
            rows = np.array(others).T
            blocks = Blocks(
                tuple(map(tuple, rows[1:].tolist())),
                searched=tuple((control[0] / rows[0, 1:]).tolist()),
                controls=tuple(control[1:].tolist()),
            )
            compared = Proof(blocks, num_looks=3)
            num_proven += any(compared.is_proven(config) for config in range(3))
        return num_proven / 400

    @pytest.mark.parametrize(("sd", "share_hit"), [(0.03, 0.0), (0.06, 0.0), (0.18, 0.0), (0.03, 0.1), (0.06, 0.1)])
    def test_equal_configs_are_not_proven(self, sd: float, share_hit: float) -> None:
        """At most one study in 400 (13,000 of each kind show less than 0.1 %, decision 60)."""
        assert self.share_proven(1.0, sd, share_hit) <= 1 / 400

    @pytest.mark.parametrize(
        ("gain", "sd", "num_blocks"), [(6, 0.03, 1), (1.7, 0.015, 2), (2, 0.03, 2), (1.4, 0.015, 3)]
    )
    def test_large_gains_are(self, gain: float, sd: float, num_blocks: int) -> None:
        """Nearly always, after so few blocks."""
        assert self.share_proven(gain, sd, num_blocks=num_blocks) > 0.95


class TestFarBeyondTheNoise:
    """Where one untuned process is twice as slow as its control, a gain must be far beyond that, and no farther."""

    NOISE = 0.29

    @pytest.mark.parametrize(
        ("ratios", "is_proven"), [((64.0, 116.0), True), ((90.0,), True), ((5.0, 6.0), False), ((20.0,), False)]
    )
    def test_a_gain_that_no_noise_fakes(self, ratios: tuple[float, ...], is_proven: bool) -> None:
        """Twelve scales of this noise are 32x."""
        posterior = Posterior(np.log(ratios), CORRELATIONS_OF_CHOSEN)
        found = is_proven_early(posterior, math.log(min(ratios)), self.NOISE, math.log(1.01), num_configs=1)
        assert found is is_proven

    def test_little_noise_asks_for_no_more_than_before(self) -> None:
        posterior = Posterior(np.log([1.6, 1.6]), CORRELATIONS_OF_CHOSEN)
        assert is_proven_early(posterior, math.log(1.6), 0.03, math.log(1.01), num_configs=1)
