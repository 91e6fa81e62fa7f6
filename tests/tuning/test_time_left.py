"""How long a run says that it will go on: by figures alone, and of a scripted study on a clock of its own."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from autotune.space.load import Circumstances, load_space
from autotune.study.budget import Budget
from autotune.trial.deadline import Deadline
from autotune.tuning.events import BlockMeasured, ConfirmationLooked, ConfirmationStarted, TimeLeftEstimated
from autotune.tuning.loop import Tuner
from autotune.tuning.remaining_work import LATE_SHARE, MORE_LOOKS, RemainingWork
from tests.tuning.test_time_budget import PLAN, SPACE, Clock, TimedTrials, usual

WORK = RemainingWork(
    trial_s=(8.0, 12.0),
    num_done=3,
    num_most=13,
    num_fewest=None,
    first_look=4,
    num_looks=3,
    first_block_s=10.0,
    later_block_s=5.0,
)


class TestTheFigures:
    """Trials up to the rule that ends the search, and the blocks up to the next look."""

    def test_the_search_is_its_trials_at_the_pace_so_far(self):
        """Ten more of ten seconds."""
        assert WORK.search_s == 100
        assert replace(WORK, is_searching=False).search_s == 0
        assert replace(WORK, num_done=14).search_s == 0

    def test_a_search_that_may_stop_early_is_expected_to(self):
        """Between the first trial at which it can stop and the last one."""
        early = replace(WORK, num_most=24, num_fewest=12)
        assert early.search_s == (12 + LATE_SHARE * 12 - 3) * 10
        assert replace(early, num_fewest=24).search_s == replace(early, num_fewest=30).search_s == 210

    def test_the_confirmation_counts_before_it_begins(self):
        """Its first block is longer; after a look it may go on."""
        assert WORK.confirmation_s == 10 + 3 * 5 + MORE_LOOKS * 4 * 5
        assert WORK.left_s == WORK.search_s + WORK.confirmation_s

    def test_measured_blocks_replace_what_was_expected_of_them(self):
        """One block tells how far the expectation was off; of more the later ones count."""
        one = replace(WORK, block_s=(20.0,))
        assert one.confirmation_s == 3 * 10 + MORE_LOOKS * 4 * 10
        assert replace(WORK, block_s=(20.0, 7.0)).confirmation_s == 2 * 7 + MORE_LOOKS * 4 * 7

    def test_each_look_doubles_the_blocks_until_it_is_clear_or_the_last(self):
        """After the first of three looks four more blocks are to come, after the last none."""
        first = replace(WORK, block_s=(5.0,) * 4, num_looked=1)
        assert first.confirmation_s == 4 * 5 + MORE_LOOKS * 8 * 5
        assert replace(first, is_clear=True).confirmation_s == 0
        assert replace(first, block_s=(5.0,) * 8, num_looked=2).confirmation_s == 8 * 5
        assert replace(first, block_s=(5.0,) * 16, num_looked=3).confirmation_s == 0

    def test_no_run_goes_on_longer_than_its_time(self):
        """A time budget is the upper bound; without a number of trials it is what is left."""
        assert replace(WORK, limit_s=40.0).left_s == 40
        assert replace(WORK, limit_s=-1.0).left_s == 0
        assert replace(WORK, num_most=None, limit_s=70.0).left_s == 70


@pytest.fixture
def run(tmp_path, make_study, measurement):
    """A scripted study from its start to its verdict: (seconds, event) of each estimate, and all events."""

    def run(num_trials=6, wall_s=None):
        path = tmp_path / "modes.yaml"
        path.write_text(SPACE)
        space = load_space(path, framework="fake", circumstances=Circumstances(version="0", device="cpu"))
        clock, told, events = Clock(), [], []

        def note(event):
            events.append(event)
            if isinstance(event, TimeLeftEstimated):
                told.append((clock.now, event))

        budget: Budget = PLAN.model_copy(update={"wall_s": wall_s, "num_trials": num_trials})
        deadline = Deadline.after(wall_s, clock=clock)
        trials = TimedTrials(clock, measurement, usual, warm=1.0)  # Nothing is known of the fake's caches.
        Tuner(make_study(space=space), budget, trials, note, deadline=deadline).run()
        return clock.now, told, events

    return run


def test_the_confirmation_is_in_it_from_the_first_estimate_on(run):
    """On a machine that takes what it is expected to take, each estimate is near the truth, from a third on."""
    total_s, told, events = run()
    late = [(now, each) for now, each in told if total_s / 3 <= now < total_s]
    assert len(late) > 5
    errors = [abs(each.left_s - (total_s - now)) for now, each in late]
    assert fmean(errors) < 0.3 * fmean(total_s - now for now, _ in late)
    assert told[0][1].work.confirmation_s > 20
    assert told[-1][1].left_s == 0
    # A look at the confirmation is told with its intervals, after its blocks.
    (started,) = [each for each in events if isinstance(each, ConfirmationStarted)]
    looks = [each for each in events if isinstance(each, ConfirmationLooked)]
    num_blocks = sum(isinstance(each, BlockMeasured) for each in events)
    assert looks[-1].num_blocks == num_blocks
    assert looks[0].num_blocks == PLAN.confirmation.first_look
    assert set(looks[0].speedups) == {each.number for each in started.contestants}
    assert all(each.low <= each.median <= each.high for each in looks[0].speedups.values())
    assert looks[-1].is_clear


def test_with_a_time_it_is_never_more_than_that(run):
    """The time holds the confirmation as well."""
    _, told, _ = run(num_trials=None, wall_s=200)
    assert told
    assert all(each.left_s <= 200 - now + 1e-6 for now, each in told)
