"""The winner is confirmed with the settings that matter alone: whole studies on scripted trials."""

from __future__ import annotations

import random

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.config import Config
from autotune.study.budget import Budget
from autotune.study.records import TrialRecord
from autotune.trial.deadline import Deadline
from autotune.tuning.loop import Tuner
from autotune.tuning.pruning import MOST_EXTRA, NeededSettings, changed_settings
from tests.conftest import ScriptedTrials, fake_space, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [plain, max], default: plain}
  freezing: {doc: "https://e.org", when: {execution: compile}, values: [false, true], default: false}
  matmul: {doc: "https://e.org", values: [null, medium, high], default: null}
  allocator: {doc: "https://e.org", values: [null, keep], default: null}
forbid:
  - {if: {mode: max, freezing: false}, because: "it does nothing"}
"""
FULL = {"execution": "compile", "mode": "plain", "freezing": True, "matmul": "medium", "allocator": "keep"}


@pytest.fixture
def study(make_study):
    return make_study(space=fake_space(SPACE))


@pytest.fixture
def tune(study, measurement):
    """Untuned, default and the winner are tried; each setting of `gains` divides the latency by its factor."""

    def tune(gains, winner=None, program_of=lambda _: None, deadline=None, num_trials=3):
        def outcome(_name, _block, config):
            latency_s = 0.010
            for (knob, value), factor in gains.items():
                latency_s /= factor if config.matches({knob: value}) else 1.0
            return with_latency(measurement, latency_s, program=program_of(config))

        study.enqueue([Config(winner or FULL)])
        Tuner(study, Budget(num_trials=num_trials), ScriptedTrials(outcome), deadline=deadline).run()
        return StudyResult(study)

    return tune


COMPILING = {("execution", "compile"): 1.2}
FREEZING = {**COMPILING, ("freezing", True): 1.5}


def settings(study, config):
    return changed_settings(config, study.manifest.space)


def test_what_does_nothing_is_not_exported(study, tune):
    """Precision and allocator came along by chance: what is confirmed and exported has the setting that matters."""
    answer = tune(FREEZING)
    assert settings(study, answer.best.config) == {"execution": "compile", "freezing": True}
    assert answer.best.number in answer.confirmation.contestants
    assert tuned_config(study).config == answer.best.config
    assert answer.best.config["matmul"] is None
    full = next(each for each in answer.records if each.config == Config(FULL))
    assert study.answers[0].trial == full.number, "it was proven before it was pruned"


@pytest.mark.parametrize(("gain", "best"), [(1.2, "default"), (0.5, "untuned")])
def test_a_winner_that_an_anchor_equals_costs_no_trial(study, tune, gain, best):
    """Nothing but compiling matters, or nothing beats the untuned model: that is recorded, no further trial needed."""
    answer = tune({("execution", "compile"): gain})
    assert answer.best.config == getattr(study.manifest.space, best)()
    assert len(answer.records) == 3


def test_so_many_further_trials_at_the_most(study, tune):
    """Everything matters, which takes trials to find out."""
    answer = tune({**FREEZING, ("matmul", "medium"): 1.1, ("allocator", "keep"): 1.1})
    assert answer.best.config == Config(FULL)
    assert len(answer.records) == 3 + MOST_EXTRA


def test_what_matters_stays(study, tune):
    """Two settings that each gain something are both there in the end; the further trial that tells of the third was
    one of the search."""
    study.enqueue([Config({**FULL, "allocator": None})])
    answer = tune({**FREEZING, ("matmul", "medium"): 1.1}, num_trials=4)
    assert settings(study, answer.best.config) == {"execution": "compile", "freezing": True, "matmul": "medium"}


def test_two_settings_that_the_space_wants_together_go_together(study, tune):
    """`mode: max` is forbidden without `freezing`: neither is put back alone where that gives no config."""
    answer = tune({("execution", "compile"): 1.2, ("mode", "max"): 1.5}, winner={**FULL, "mode": "max"})
    assert settings(study, answer.best.config) == {"execution": "compile", "mode": "max", "freezing": True}
    assert all(study.manifest.space.holds(each.config) for each in answer.records)


def test_recorded_pairs_save_trials(study, tune):
    """Where other trials show that a setting does nothing, it goes at once, with one trial."""
    study.enqueue([Config({**FULL, "freezing": False})])
    study.enqueue([Config({**FULL, "freezing": False, "matmul": None})])
    study.enqueue([Config({**FULL, "freezing": False, "allocator": None})])
    answer = tune(FREEZING, num_trials=6)
    assert settings(study, answer.best.config) == {"execution": "compile", "freezing": True}
    assert len(answer.records) == 7


def test_the_same_program_needs_no_equal_times(study, tune):
    """Configs in which the same program ran are one, whatever their samples say."""
    answer = tune(
        {**FREEZING, ("matmul", "medium"): 1.05},
        program_of=lambda config: f"{config['execution']} {config.get('freezing')}",
    )
    assert settings(study, answer.best.config) == {"execution": "compile", "freezing": True}


def test_nothing_is_tried_without_time(study, tune):
    """The rest of the time belongs to the confirmation."""
    deadline = Deadline(ends=1e6, clock=lambda: 0.0 if study.num_recorded() < 3 else 1e6 - 0.1)
    assert len(tune(FREEZING, deadline=deadline).records) == 3


def test_a_verdict_that_stands_is_not_pruned_again(study, tune):
    """Run again, the study has the same trials and the same verdict."""
    first = tune(FREEZING)
    again = tune(FREEZING)
    assert [each.config for each in again.records] == [each.config for each in first.records]
    assert again.confirmation == first.confirmation


def test_what_was_compared_before_changes_no_answer(study, measurement):
    """Candidates come, go and are told anew: whoever has seen them all along answers as one who sees them at once."""
    space, manifest = study.manifest.space, study.manifest
    draw = random.Random(1)

    def told(number, config):
        outcome = with_latency(measurement, draw.choice([0.010, 0.0101, 0.011, 0.013]), program=draw.choice("abcdefgh"))
        return TrialRecord(number, config, outcome, violations={}, started=None, ended=None, running=False)

    candidates, kept = {}, NeededSettings(manifest, 0.02)
    for number, config in enumerate(draw.sample(sorted(space.configs(), key=Config.canonical), 20)):
        candidates[number] = told(number, config)
        if number % 4 == 3:
            del candidates[number - 2]
            candidates[number - 1] = told(number - 1, candidates[number - 1].config)
        now = [candidates[each] for each in sorted(candidates)]
        needed = kept.among(now)
        assert needed == NeededSettings(manifest, 0.02).among(now)
    assert 0 < len(needed) < len(now)
