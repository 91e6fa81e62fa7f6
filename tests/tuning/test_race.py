"""The race: what is done next is a question to what is known (`Standing`), and whole studies on scripted processes."""

from __future__ import annotations

import itertools

import pytest

from autotune.config import Config
from autotune.measure.objective import Objective
from autotune.study.budget import BlockPlan
from autotune.study.records import BlockRow, DriftCheck, NoiseFloor
from autotune.tuning.evidence import evidence_of
from autotune.tuning.race import Standing
from tests.conftest import fake_space, with_latency

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [m0, m1, m2, m3, m4, m5, m6, m7], default: m0}
"""
UNTUNED = Config({"execution": "eager"})


def compiled(number):
    return Config({"execution": "compile", "mode": f"m{number}"})


@pytest.fixture
def standing(make_study, measurement):
    """What is known after trials of so many ms (the untuned model's first, each of another mode) and rows of blocks in
    ms, by trial; `overrides` by number of the trial."""
    names = itertools.count()

    def standing(trials_ms, rows=(), *, most=None, overrides=None, floor=None, modes=range(8), **question):
        study = make_study(f"s{next(names)}", space=fake_space(SPACE), **question)
        for number, ms in enumerate(trials_ms):
            asked = study.ask(compiled(modes[number]) if number else UNTUNED, 60.0)
            study.tell(asked, with_latency(measurement, ms / 1e3, **(overrides or {}).get(number, {})))
        study.blocks = [
            BlockRow(number=number, values={trial: ms / 1e3 for trial, ms in row.items()})
            for number, row in enumerate(rows, start=1)
        ]
        study.noise_floor = floor
        evidence = evidence_of(study, BlockPlan())
        assert evidence is not None
        standing.study = study
        return Standing(evidence, most)

    return standing


def number_of(record):
    return None if record is None else record.number


class TestProvenAtOnce:
    """Whether the leader gets a block before further configs are tried."""

    def chosen(self, standing, *, has_plans=True):
        return number_of(standing.to_prove_at_once(has_plans=has_plans))

    @pytest.mark.parametrize(("trials_ms", "chosen"), [((10,), None), ((10, 7.9), None), ((10, 9, 7.8), 2)])
    def test_a_large_gain_of_a_trial(self, standing, trials_ms, chosen):
        """1.28x is one: the least that three blocks may prove."""
        assert self.chosen(standing(trials_ms)) == chosen

    def test_the_gain_is_over_the_untuned_model_of_that_minute(self, standing):
        """The machine became slower by a third behind the untuned model's trial."""
        found = standing((10, 9))
        standing.study.drift_checks = [DriftCheck(after=1, latency_s=0.0135)]
        assert self.chosen(found) == 1

    def test_until_it_is_proven_and_for_three_blocks_at_most(self, standing):
        """After that it waits for its turn among the others."""
        row = {0: 10, 1: 5}
        assert self.chosen(standing((10, 5), [row])) == 1
        assert self.chosen(standing((10, 5), [row] * 2)) is None, "two blocks prove 2x"
        wild = [{0: 10, 1: ms} for ms in (4, 9, 6)]
        found = standing((10, 5), wild)
        assert not found.evidence.is_proven(found.evidence.leader)
        assert self.chosen(found) is None
        assert self.chosen(standing((10, 5), wild[:2])) == 1

    @pytest.mark.parametrize(
        ("better_ms", "has_plans", "chosen"),
        [(4, True, None), (4, False, 2), (4.9, False, None)],
        ids=["something is planned", "nothing is", "hardly better"],
    )
    def test_beside_an_answer(self, standing, better_ms, has_plans, chosen):
        """What is planned comes before a better answer, and both before what is hardly better."""
        found = standing((10, 5, better_ms), [{0: 10, 1: 5}] * 2)
        assert number_of(found.answer) == 1
        assert self.chosen(found, has_plans=has_plans) == chosen

    def test_whom_blocks_have_shown_to_be_slow_is_no_leader(self, standing):
        """The trial was lucky: the next one is tried in its place."""
        found = standing((10, 5, 6), [{0: 10, 1: 11}])
        assert number_of(found.evidence.leader) == 2
        assert self.chosen(found) == 2


class TestBlocksNeeded:
    """How many further blocks are expected to prove a config: time is kept for them."""

    @pytest.mark.parametrize(
        ("trial_ms", "num_done", "needed"),
        [(3.3, 0, 1), (6, 0, 2), (7.5, 0, 3), (9, 0, 4), (9, 3, 1), (9, 4, 4), (9, 8, 8), (9, 16, 1), (7.5, 2, 1)],
    )
    def test_up_to_the_next_look(self, standing, trial_ms, num_done, needed):
        """One to three where the trial shows a large gain, else up to four, eight or sixteen."""
        unclear = [{0: 10, 1: ms} for ms in itertools.islice(itertools.cycle([8, 12]), num_done)]
        found = standing((10, trial_ms), unclear)
        assert found.blocks_needed(found.evidence.candidates[0]) == needed

    def test_none_for_what_is_proven(self, standing):
        """It has all the blocks that it needs."""
        found = standing((10, 5), [{0: 10, 1: 5}] * 2)
        assert found.blocks_needed(found.evidence.candidates[0]) == 0


class TestField:
    """Whom a block compares."""

    def numbers(self, found):
        return [record.number for record in found.field]

    def test_the_leader_and_those_that_may_be_as_good(self, standing):
        """Three at most; one where there is no room for more."""
        found = self.numbers(standing((10, 9, 5.05, 5, 5.04, 5.03)))
        assert found[0] == 3
        assert len(found) == 3
        assert 1 not in found
        assert self.numbers(standing((10, 9, 5.05, 5, 5.04, 5.03), most=1)) == [3]

    def test_the_answer_stays_in_it(self, standing):
        """A better one has to be better than that, in the same blocks."""
        assert self.numbers(standing((10, 5, 4), [{0: 10, 1: 5}] * 2)) == [1, 2]

    def test_nothing_that_is_far_slower_than_the_untuned_model(self, standing):
        """Unless two processes of the latter differ by as much."""
        assert not standing((10, 11.5)).field
        assert standing((10, 11.5)).is_decided
        noisy = NoiseFloor(pairs=((1.0, 1.2),), spread=0.2, relative_error=0.0)
        assert self.numbers(standing((10, 11.5), floor=noisy)) == [1]

    def test_an_untuned_model_that_breaks_a_constraint_is_no_bar(self, standing):
        """The best of those that keep it is compared, however slow."""
        overrides = {0: {"peak_memory_bytes": 3 * 2**30}, 1: {"peak_memory_bytes": 2**30}}
        found = standing((10, 30), overrides=overrides, constraints=("peak_memory <= 2GiB",))
        assert found.evidence.untuned.violations
        assert self.numbers(found) == [1]
        assert not found.is_decided

    def test_the_best_in_each_other_objective_as_well(self, standing):
        """It may be what the user takes in the end."""
        small = {number: {"peak_memory_bytes": 10**9 - 10**8 * number} for number in range(4)}
        objectives = (Objective(), Objective.parse("memory"))
        assert self.numbers(standing((10, 5, 8, 9), overrides=small, objectives=objectives)) == [1, 3]


class TestDecided:
    """When no further block is measured."""

    def test_a_proven_answer_that_nobody_may_beat(self, standing):
        """And not before, nor without a block."""
        assert standing((10,)).is_decided
        assert not standing((10, 5)).is_decided
        assert not standing((10, 5), [{0: 10, 1: 5}]).is_decided
        assert standing((10, 5), [{0: 10, 1: 5}] * 2).is_decided

    def test_a_rival_that_may_be_better_keeps_it_open(self, standing):
        """Until it has had its blocks."""
        rows = [{0: 10, 1: 5}] * 2
        assert not standing((10, 5, 4), rows).is_decided
        assert standing((10, 5, 4), [*rows, *[{0: 10, 1: 5, 2: 4}] * 4]).is_decided
        assert standing((10, 5, 4), [*rows, *[{0: 10, 1: 5, 2: 5.5}] * 6]).is_decided

    def test_which_of_several_equal_ones_is_the_best_is_asked_for_eight_blocks(self, standing):
        """What they scatter by leaves one of them better by half a percent, perhaps, for ever."""
        waves = [{0: 10, 1: 5 + shift, 2: 5 - shift} for shift in (0.3, -0.3, 0.2, -0.2)]
        assert not standing((10, 5, 5), waves).is_decided
        assert standing((10, 5, 5), waves * 2).is_decided

    @pytest.mark.parametrize("num_old", [8, 16])
    def test_a_newcomer_gets_blocks_of_its_own(self, standing, num_old):
        """A run that goes on finds a config that looks better than an answer that has all its blocks: one block of it
        decides nothing."""
        old, both = [{0: 10, 1: 9}] * num_old, {0: 10, 1: 9, 2: 8.3}
        assert standing((10, 9), old).is_decided
        assert not standing((10, 9, 8.3), old).is_decided
        assert not standing((10, 9, 8.3), [*old, both]).is_decided
        found = standing((10, 9, 8.3), [*old, *[both] * 4])
        assert found.is_decided
        assert number_of(found.answer) == 2

    def test_a_simpler_one_that_looks_as_good_is_proven_as_well(self, standing):
        """It is the one to export: the default, and a config with another setting."""
        rows = [{0: 10, 2: 5}] * 2
        found = standing((10, 5.05, 5), rows, modes=(None, 0, 1))
        assert number_of(found.answer) == 2
        assert number_of(found.evidence.simplest) == 1
        assert not found.is_decided
        assert standing((10, 5.05, 5), [*rows, *[{0: 10, 1: 5.05, 2: 5}] * 2], modes=(None, 0, 1)).is_decided

    def test_nothing_that_looks_faster(self, standing):
        """At a look: four blocks of the one that had the fewest."""
        rows = [{0: 10, 1: 10}] * 4
        assert [standing((10, 9.5), rows[:num]).is_decided for num in range(5)] == [False] * 4 + [True]

    def test_not_what_sixteen_blocks_do_not_tell(self, standing):
        """The machine is too wild: then it is undecided."""
        wild = [{0: 10, 1: ms} for ms in [4, 16, 7, 30] * 4]
        assert not standing((10, 8), wild[:15]).is_decided
        assert standing((10, 8), wild).is_decided
