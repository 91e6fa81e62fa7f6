"""A trial whose process crashed is run once more: what is recorded, what is kept, and who gets no second process."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.measure.measurement import Failure, Measurement
from autotune.study.records import StopReason
from autotune.trial.deadline import Deadline
from autotune.tuning.loop import Tuner
from tests.conftest import QUICK_BUDGET, ScriptedTrials, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

CRASH = Failure(reason="crash", stage="compile", error="killed by SIGSEGV; last line of stderr: 1")


class Crashing(ScriptedTrials):
    """The first processes of each trial end in the failures given, all later ones work."""

    def __init__(self, measurement, *failures, on_crash=lambda: None):
        self.tried, self.on_crash = {}, on_crash
        self.failures, self.works = failures, with_latency(measurement, 0.01)
        super().__init__(lambda _name, _block, _config: self.works)

    def run(self, folder, request, **_):
        tried = self.tried[request.number] = self.tried.get(request.number, 0) + 1
        if request.untuned or tried > len(self.failures):
            return self.works
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.stderr.write_text(f"process {tried}")
        self.on_crash()
        return self.failures[tried - 1]


@pytest.fixture
def tune(make_study):
    """Search with scripted processes; the study."""

    def tune(trials, num_trials=2, deadline=None, name="s"):
        study = make_study(name)
        budget = QUICK_BUDGET.model_copy(update={"num_trials": num_trials})
        Tuner(study, budget, trials, deadline=deadline).run()
        return study

    return tune


def test_a_crash_by_chance_is_not_the_configs(tune, measurement):
    """The second process works: that is the trial's outcome, one record, and what the first one said is kept."""
    trials = Crashing(measurement, CRASH)
    study = tune(trials)
    outcome = study.record(1).outcome
    assert isinstance(outcome, Measurement)
    assert (Path(outcome.first_crash) / "stderr.txt").read_text() == "process 1"
    assert trials.tried[1] == 2
    assert len(study.records()) == 2
    assert study.record(0).outcome.first_crash is None


def test_a_config_that_crashes_twice_has_crashed(tune, measurement):
    """Recorded as the second process ended, with a word that it is the second; there is no third. Another failure, such
    as a compiler's error, repeats itself, and is believed at once."""
    trials = Crashing(measurement, CRASH, CRASH, CRASH)
    outcome = tune(trials).record(1).outcome
    assert outcome.reason == "crash"
    assert outcome.first_crash is not None
    assert trials.tried[1] == 2
    other = Crashing(measurement, Failure(reason="compile_error", stage="compile", error="no"))
    assert tune(other, name="other").record(1).outcome.first_crash is None
    assert other.tried[1] == 1


def test_a_second_process_that_the_time_cut_off_blames_nobody(tune, measurement):
    """The first one crashed and there is no time for another: the trial counts for nothing and is tried again later."""
    now = [0.0]
    late = Failure(reason="timeout", stage="compile", error="stopped")
    deadline = Deadline(ends=1000.0, clock=lambda: now[0])
    study = tune(Crashing(measurement, CRASH, late, on_crash=lambda: now.append(now.pop() + 500)), deadline=deadline)
    assert study.stop_reason is StopReason.TIME
    assert study.num_recorded() == 1
    assert study.record(1).was_cut_off
