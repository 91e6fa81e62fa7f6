"""How long a run says that it will go on, of a scripted study on a clock of its own."""

from __future__ import annotations

import math
import shutil
from contextlib import suppress
from statistics import fmean

import pytest

from autotune.study.budget import Budget
from autotune.trial.deadline import Deadline
from autotune.tuning.estimate import WARM_SHARE
from autotune.tuning.events import BlockMeasured, TimeLeftEstimated
from autotune.tuning.loop import Tuner
from autotune.tuning.time_budget import LATE_SHARE
from tests.conftest import fake_space
from tests.tuning.test_time_budget import PLAN, SPACE, Clock, TimedTrials, usual

pytestmark = pytest.mark.usefixtures("in_memory")


@pytest.fixture
def run(make_study, measurement):
    """A scripted study from its start to its verdict: (seconds, event) of each estimate, and all events."""

    def run(num_trials=6, wall_s=None, *, stop_early=True, num_modes=10, num_told=math.inf):
        space = fake_space(SPACE.replace("m9]", ", ".join(f"m{number}" for number in range(9, num_modes)) + "]"))
        clock, told, events = Clock(), [], []

        def note(event):
            events.append(event)
            if isinstance(event, TimeLeftEstimated):
                told.append((clock.now, event))
                if len(told) == num_told:
                    raise KeyboardInterrupt

        budget: Budget = PLAN.model_copy(update={"wall_s": wall_s, "num_trials": num_trials, "stop_early": stop_early})
        deadline = Deadline.after(wall_s, clock=clock)
        trials = TimedTrials(clock, measurement, usual, warm=WARM_SHARE)
        with suppress(KeyboardInterrupt):
            Tuner(make_study(space=space), budget, trials, note, deadline=deadline).run()
        return clock.now, told, events

    return run


def test_the_blocks_are_in_it_from_the_first_estimate_on(run):
    """On a machine that takes what it is expected to take, each estimate is near the truth, from a third on."""
    total_s, told, events = run()
    late = [(now, each) for now, each in told if total_s / 3 <= now < total_s]
    assert len(late) > 5
    errors = [abs(each.left_s - (total_s - now)) for now, each in late]
    assert fmean(errors) < 0.3 * fmean(total_s - now for now, _ in late)
    assert told[0][1].left_s > 20
    assert told[-1][1].left_s == 0
    assert sum(isinstance(each, BlockMeasured) for each in events) >= PLAN.confirmation.first_look


def test_with_a_time_it_is_never_more_than_that(run):
    """The time holds the confirmation as well."""
    _, told, _ = run(num_trials=None, wall_s=200)
    assert told
    assert all(each.left_s <= 200 - now + 1e-6 for now, each in told)


def test_a_search_that_may_stop_early_is_expected_to(run, tmp_path):
    """A share of the way between the first trial at which it can stop, which is the twelfth, and the last."""

    def first_s(**how):
        shutil.rmtree(tmp_path / "studies", ignore_errors=True)
        (_, estimate), *_ = run(num_modes=20, num_told=1, **how)[1]
        return estimate.left_s

    trial_s = 2 + 20 + 5  # START_S, the compile of `usual`, RUN_S
    all_s = first_s(num_trials=20, stop_early=False)
    assert all_s - first_s(num_trials=20) == pytest.approx(trial_s * (1 - LATE_SHARE) * 8, rel=0.05)
    assert all_s - first_s(num_trials=12) == pytest.approx(trial_s * 8, rel=0.05)
    assert first_s(num_trials=None) == pytest.approx(first_s(num_trials=20), rel=0.1), "all configs are as many"
