"""A finalist that is wrong as a job will use it is out of the race, of the records, and of later runs."""

from __future__ import annotations

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import ONE_SHAPE, StudyResult
from autotune.config import Config
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.statistics import Speedup, Verdict
from autotune.study.records import AnswerStep, BlockRow, Confirmation, LongerUse
from autotune.tuning.field import note_use
from tests.conftest import QUICK_BUDGET, fake_space, reopened, summary_of
from tests.tuning.test_loop import tune

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  behaviour: {doc: "https://e.org", when: {execution: compile}, values: [right, saturates], default: right}
  latency_ms: {doc: "https://e.org", values: [8, 4, 2], untuned: 8, default: 4}
forbid:
  - {if: {behaviour: right, latency_ms: 2}, because: what is right takes longer}
  - {if: {behaviour: saturates, latency_ms: [4, 8]}, because: what is wrong is fast}
  - {if: {execution: eager, latency_ms: [2, 4]}, because: the untuned model is slow}
"""
WRONG = Failure(reason=Reason.WRONG_RESULT, stage=Stage.RUN, error="in a longer use, it is wrong")


def test_a_config_that_is_wrong_beyond_the_example_is_not_the_answer(make_study):
    """Its trial passes, and its first block shows it. The next one wins; the record says why, and a later run knows."""
    study = make_study(space=fake_space(SPACE))
    confirmation = tune(study, QUICK_BUDGET.model_copy(update={"num_trials": 4}))
    best = study.record(confirmation.candidate)
    assert (confirmation.verdict, best.config["behaviour"]) == (Verdict.FASTER, "right")
    (refused,) = [record for record in study.records() if record.config.get("behaviour") == "saturates"]
    assert refused.outcome.reason is Reason.WRONG_RESULT
    assert (
        "in a longer use, with inputs four times larger (argument 1), output: relative error" in refused.outcome.error
    )
    assert study.refused == {refused.number}
    assert not any(refused.number in row.values for row in study.blocks)
    again = reopened(study)
    tune(again, QUICK_BUDGET.model_copy(update={"num_trials": 8}))
    assert again.confirmation.candidate == best.number
    assert "in a longer use" in summary_of(again)
    assert tuned_config(again).config == best.config


def test_what_was_proven_of_a_refused_config_is_taken_back(make_study, measurement):
    """Rows, steps of the answer and a verdict that rest on it; and the sampler takes it for a failure."""
    study = make_study(space=fake_space(SPACE))
    configs = [
        {"execution": "eager", "latency_ms": 8},
        {"execution": "compile", "behaviour": "saturates", "latency_ms": 2},
    ]
    with study.writing():
        for settings in configs:
            study.tell(study.ask(Config(settings), 60.0), measurement)
        study.blocks = [BlockRow(number=1, values={0: 8.0, 1: 2.0})]
        speedup = Speedup(median=4.0, low=3.5, high=4.5)
        study.answers = [AnswerStep(after_s=1.0, trial=1, speedup=speedup, num_blocks=1)]
        study.confirmation = Confirmation(
            verdict=Verdict.FASTER,
            candidate=1,
            contestants=(0, 1),
            blocks=((8.0, 2.0),),
            speedups=(speedup,),
            num_trials=2,
        )
        note_use(study, LongerUse(trial=1, not_varied=("argument 1",)))
        assert StudyResult(study).not_varied == ("argument 1", ONE_SHAPE)
        assert study.confirmation is not None
        note_use(study, LongerUse(trial=1, failure=WRONG))
        assert [row.values for row in study.blocks] == [{0: 8.0}]
        assert (study.answers, study.confirmation) == ([], None)
    assert study.record(1).outcome == WRONG
    assert [tried.violations.get("ok", -1) > 0 for tried in study.tried()] == [False, True]
