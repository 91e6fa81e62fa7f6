"""What a study says of a config that rounds and misses the tolerance by little: scripted processes."""

from __future__ import annotations

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.config import Config
from autotune.errors import InputError, worded
from autotune.measure.measurement import Failure, NearMiss, Reason, Stage
from autotune.measure.statistics import Verdict
from autotune.render.json import document
from autotune.study.records import BlockRow, DriftCheck
from autotune.tuning.loop import Tuner
from autotune.tuning.session import trial_request
from tests.conftest import QUICK_BUDGET, ScriptedTrials, fake_space, reopened, summary_of, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  precision:
    doc: https://e.org
    when: {execution: compile}
    values: [full, {value: half, error: 1.0e-4, because: it rounds}]
    default: full
"""
WRONG = Failure(
    reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="on input 1 of 3, output: relative error 0.0014", evidence="e"
)


def tuned(study, measurement, near_s, compiled_s=0.005):
    """The study of a model of 10 ms, whose rounding config takes so long and is wrong."""
    requests = {}

    def outcome_of(name, block, config):
        if config.get("precision") != "half":
            return with_latency(measurement, 0.010 if config["execution"] == "eager" else compiled_s)
        near = NearMiss(tolerance=2e-3, measurement=with_latency(measurement, near_s, relative_error=1.4e-3))
        requests[name] = block
        return WRONG.model_copy(update={"near": near})

    Tuner(study, QUICK_BUDGET, ScriptedTrials(outcome_of), lambda _: None).run()
    assert set(requests.values()) == {0}, "it is in no block"
    return next(record.number for record in study.records() if record.state == "failed")


def test_what_rounds_is_shown_with_its_tolerance_and_never_chosen(make_study, measurement):
    """Four times as fast as the model and twice as fast as the answer; the answer, its export and the counts of
    failures are as without it, also when the study is opened again."""
    study = make_study(space=fake_space(SPACE))
    number = tuned(study, measurement, 0.0025)
    study = reopened(study)
    answer = StudyResult(study)
    assert (answer.verdict, answer.best.config["precision"]) == (Verdict.FASTER, "full")
    assert answer.objective.value(answer.best.measurement) == pytest.approx(0.005)
    said = f"trial {number}: 4.00x with tolerance=0.002 (unproven: one process; precision=half rounds by 1.4e-03)"
    assert f"rounded     {said}" in summary_of(study)
    told = document(answer)
    assert told["failures"] == {"wrong_result": 1}
    assert told["near_misses"] == [
        {
            "trial": number,
            "ratio": pytest.approx(4),
            "tolerance": 2e-3,
            "relative_error": 1.4e-3,
            "settings": {"precision": "half"},
        }
    ]
    assert tuned_config(study).config["precision"] == "full"
    with pytest.raises(InputError, match=r"misses this study's tolerance: on input 1") as refused:
        tuned_config(study, number)
    assert "tune with tolerance=0.002 under another name" in worded(refused.value.with_tip())


@pytest.mark.parametrize(
    ("near_s", "constraints"), [(0.0049, ()), (0.0025, ("peak_memory <= 1B",))], ids=["no gain", "a constraint"]
)
def test_what_would_not_be_the_answer_is_not_told(make_study, measurement, near_s, constraints):
    """It is hardly faster than the answer, or breaks what the study asks for."""
    study = make_study(space=fake_space(SPACE), constraints=constraints)
    tuned(study, measurement, near_s)
    assert document(StudyResult(study))["near_misses"] == []
    assert "rounded" not in summary_of(study)


@pytest.mark.parametrize("again", ["blocks", "drift_checks"])
def test_a_disturbed_trial_of_the_untuned_model_makes_no_gain(make_study, measurement, again):
    """Its other processes took a third of the time: the gain that is told is over these."""
    study = make_study(space=fake_space(SPACE))
    near = NearMiss(tolerance=2e-3, measurement=with_latency(measurement, 0.0025))
    found = {"blocks": BlockRow(number=1, values={0: 0.010}), "drift_checks": DriftCheck(after=0, latency_s=0.010)}
    with study.writing():
        study.tell(study.ask(Config({"execution": "eager"}), 60.0), with_latency(measurement, 0.030))
        half = Config({"execution": "compile", "precision": "half"})
        study.tell(study.ask(half, 60.0), WRONG.model_copy(update={"near": near}))
        setattr(study, again, [found[again]])
    (told,) = document(StudyResult(study))["near_misses"]
    assert told["ratio"] == pytest.approx(4)


@pytest.mark.parametrize(("task", "asked"), [("infer", [True, False, False]), ("train", [False] * 3)])
def test_only_calls_that_an_entry_says_round_are_timed(make_study, workload, task, asked):
    """In a trial of the search; not of training steps, nor of what rounds as the untuned model does."""
    study = make_study(space=fake_space(SPACE), workload=workload.model_copy(update={"task": task}))
    half, full = (Config({"execution": "compile", "precision": each}) for each in ("half", "full"))
    folder, configs = study.trial_folder(1), [half, full, study.manifest.space.untuned()]
    assert [trial_request(study, 1, config, folder, QUICK_BUDGET).rounds for config in configs] == asked
