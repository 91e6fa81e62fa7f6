"""The loop: baseline, search, confirmation, verdict; on real child processes of the fake framework."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.answer.export import tuned_config
from autotune.answer.result import StudyResult
from autotune.bench.local import LocalBench
from autotune.errors import AutotuneError, InputError, NoUsableTrialError, SetupError
from autotune.job.load import Loaded
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.statistics import Verdict, spread_of_pairs
from autotune.study.records import Confirmation
from autotune.tuning.checks import require_untuned_works
from autotune.tuning.events import (
    DriftChecked,
    StageEntered,
    TrialEnded,
    TrialStarted,
)
from autotune.tuning.loop import Tuner
from tests.asking import ask
from tests.conftest import QUICK_BUDGET, fake_space, reopened, summary_of

pytestmark = pytest.mark.usefixtures("in_memory")

EXHAUSTIVE = QUICK_BUDGET.model_copy(update={"num_trials": 100})


def tune(study, budget=EXHAUSTIVE, notify=lambda _: None):
    with LocalBench(study.manifest.variables, preload=True, log=study.folder / "supervisor.log") as runner:
        return Tuner(study, budget.but(num_jobs=1), runner, notify).run()


EXECUTION = "  execution: {doc: 'https://e.org/x', values: [eager, compile], untuned: eager, default: compile}\n"


def test_a_faster_config_is_found_confirmed_and_exported(make_study):
    """The fastest right config wins, over fresh processes; failures are recorded and never win."""
    study = make_study()
    confirmation = tune(study)
    answer = StudyResult(study)
    assert confirmation.verdict is answer.verdict is Verdict.FASTER
    assert answer.best.config["latency_ms"] == 2
    assert answer.best.config.get("behaviour", "right") in ("right", "breaks")
    assert len(confirmation.blocks) <= 6, "a gain of 4x needs one or two"
    assert answer.speedup.low > 1.5
    assert answer.break_even_calls is not None
    assert {each.outcome.reason for each in answer.records if each.state == "failed"} == {
        "wrong_result",
        "compile_error",
    }
    assert tuned_config(study).config == answer.best.config


def test_when_nothing_is_faster_the_untuned_model_is_kept(make_study):
    """A study whose configs are all slower says `keep_untuned`, and the export is the untuned model."""
    knobs = EXECUTION + (
        "  latency_ms: {doc: 'https://e.org/x', when: {execution: compile}, values: [6, 8], default: 6}\n"
    )
    study = make_study(space=fake_space(knobs))  # Untuned, a call takes 1 ms.
    confirmation = tune(study)
    assert confirmation.verdict is Verdict.KEEP_UNTUNED
    assert confirmation.pairs == ()
    tuned = tuned_config(study)
    assert tuned.config == study.manifest.space.untuned()
    assert tuned.is_untuned
    model = object()
    assert Loaded("best.yaml", tuned).apply(model) is model


def test_the_untuned_model_must_work(make_study, model_file):
    """A model that fails untuned stops the study at once, with the child's own error first."""
    model_file.write_text("import numpy as np\ndef tiny():\n    return (lambda x: 1 / 0), np.ones((2, 2))\n")
    study = make_study()
    with pytest.raises(NoUsableTrialError, match="ZeroDivisionError: division by zero"):
        tune(study)
    assert len(study.records()) == 1


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (Reason.OUT_OF_MEMORY, "give it smaller inputs"),
        (Reason.TIMEOUT, "give it more time with compile_timeout or trial_timeout"),
        (Reason.CRASH, "find the cause of the crash"),
        (Reason.RUN_ERROR, "mend that"),
        (Reason.SETUP, "mend that"),
    ],
)
def test_the_tip_goes_by_the_cause(reason, remedy):
    """Not every failure of the untuned model is in the model."""
    failure = Failure(reason=reason, stage=Stage.COMPILE, error="so it says", evidence="the.log")
    study = SimpleNamespace(untuned_record=lambda: SimpleNamespace(outcome=failure))
    with pytest.raises(AutotuneError, match="so it says") as caught:
        require_untuned_works(study)
    assert caught.value.tip.startswith(remedy)
    assert caught.value.tip.endswith(", then run the same command again; full log: the.log")


def test_a_broken_model_file_is_not_retried(make_study, model_file):
    """A model function that raises is the operator's mistake: one trial, one sentence, exit status 2."""
    model_file.write_text("def tiny():\n    raise RuntimeError('no weights')\n")
    study = make_study()
    with pytest.raises(SetupError, match="RuntimeError: no weights") as caught:
        tune(study)
    assert caught.value.exit_code == 2
    assert len(study.records()) == 1


def test_setup_failures_in_a_row_stop_the_study(make_study, model_file):
    """When trials cannot be run any more, the loop says so instead of burning through the space."""
    study = make_study()

    def break_the_model(event):
        if isinstance(event, TrialStarted) and event.number == 2:
            model_file.write_text("raise OSError('the disk is gone')\n")

    with pytest.raises(SetupError, match="the disk is gone"):
        tune(study, notify=break_the_model)
    assert study.num_recorded() == 2
    assert len(study.records()) == 4
    assert study.confirmation.verdict is Verdict.FASTER, "what was proven before stands"


def test_a_lone_slower_candidate_is_the_answer_where_the_untuned_model_is_out_of_the_question(make_study):
    """Though nobody would take it otherwise; the sentence says by how much it is slower, and what untuned breaks."""
    knobs = EXECUTION + (
        "  behaviour: {doc: 'https://e.org/x', values: [breaks, right], untuned: breaks, default: right}\n"
        "  latency_ms: {doc: 'https://e.org/x', when: {execution: compile}, values: [8], default: 8}\n"
    )
    space = fake_space(knobs + "forbid:\n  - {if: {execution: eager, behaviour: right}, because: never}\n")
    study = make_study(space=space, constraints=("graph_breaks == 0",))
    confirmation = tune(study)
    assert confirmation.verdict is Verdict.FEASIBLE
    assert confirmation.speedup.high < 1
    text = summary_of(study)
    assert "keeps every constraint, the untuned model does not; 0." in text
    assert "untuned     breaks a constraint: graph_breaks 1 instead of 0" in text


@pytest.mark.slow
def test_a_model_that_computes_something_else_now_is_refused(make_study, model_file):
    """What the model imports is no part of its file: a changed model is found before any config is blamed."""
    (model_file.parent / "sibling.py").write_text("SCALE = 1.0\n")
    model_file.write_text(
        "import numpy as np, sibling\ndef tiny():\n    return (lambda x: x * sibling.SCALE), np.ones((2, 2))\n"
    )
    study = make_study()
    tune(study, QUICK_BUDGET.model_copy(update={"num_trials": 2}))
    (model_file.parent / "sibling.py").write_text("SCALE = 2.0\n")
    with pytest.raises(SetupError, match="does not give what it gave"):
        tune(study, QUICK_BUDGET)
    assert study.num_recorded() == 2


def test_events_tell_what_the_child_does(make_study):
    """Stages of each trial arrive in order, between its start and its end."""
    events = []
    tune(make_study(), QUICK_BUDGET.model_copy(update={"num_trials": 1}), events.append)
    kinds = [type(each) for each in events]
    start = kinds.index(TrialStarted)
    stages = [each.stage for each in events[start + 1 : start + 5]]
    assert stages == [Stage.BUILD, Stage.COMPILE, Stage.CHECK, Stage.RUN]
    assert isinstance(events[start], TrialStarted)
    assert isinstance(events[start + 5], TrialEnded)
    assert isinstance(events[start + 1], StageEntered)


@pytest.mark.slow
def test_caches_and_scratch_are_gone_and_the_evidence_stays(make_study):
    """A study does not grow by compile caches; request, outcome and output of each trial stay."""
    study = make_study()
    tune(study, QUICK_BUDGET)
    for record in study.records():
        names = {path.name for path in study.trial_folder(record.number).path.iterdir()}
        assert names == {"request.json", "outcome.json", "stage", "stdout.txt", "stderr.txt"}
    assert not (study.folder / "confirm" / "cache").exists()


def test_an_unconfirmed_study_cannot_be_exported(make_study):
    """Nothing is exported that was not confirmed, unless its trial is named."""
    with pytest.raises(InputError, match="no verdict yet"):
        tuned_config(make_study())


def test_a_study_of_the_untuned_model_alone_offers_no_trial(make_study, measurement):
    """Its only trial would be refused."""
    study = make_study()
    with study.writing():
        study.tell(ask(study), measurement)
    with pytest.raises(InputError, match="no verdict yet") as refused:
        tuned_config(study)
    assert "unproven" not in refused.value.tip
    assert "resume" in refused.value.tip
    with study.writing():
        running = ask(study)
    with pytest.raises(InputError, match="no verdict yet") as refused:
        tuned_config(study)
    assert refused.value.tip == "wait: a process is tuning it"  # What `resume` would say, too.
    assert "next: wait: a process is tuning it" in summary_of(study)
    with study.writing():
        study.abandon(running)
    study.confirmation = Confirmation(verdict=Verdict.UNDECIDED, candidate=0, contestants=(0,), num_trials=1)
    with pytest.raises(InputError, match="trial 0 is the untuned model") as refused:
        tuned_config(study, 0)
    assert refused.value.tip == "leave the trial out: then the answer is exported"


def kinds(events, *wanted):
    return [type(each) for each in events if isinstance(each, wanted)]


class TestTheMachineIsWatched:
    """By a process of the untuned model that stays beside the trials, and in blocks."""

    @pytest.mark.slow
    def test_the_noise_floor_is_that_of_the_blocks(self, make_study):
        """What the process beside the trials differs by from the untuned model in each block; on record for good."""
        study = make_study()
        tune(study, QUICK_BUDGET.model_copy(update={"num_trials": 2}))
        floor = study.noise_floor
        assert floor.pairs == tuple((row.values[0], row.control) for row in study.blocks) != ()
        assert all(0.007 <= each < 1 for pair in floor.pairs for each in pair)
        assert floor.spread == pytest.approx(spread_of_pairs(floor.pairs))
        assert floor.relative_error == 0
        assert not (study.folder / "noise_floor").exists(), "no process was started for it"
        again = reopened(study)
        tune(again, QUICK_BUDGET.model_copy(update={"num_trials": 3}))
        assert again.noise_floor.pairs[: len(floor.pairs)] == floor.pairs
        assert StudyResult(again).noise_floor == again.noise_floor
        assert f"differ by {100 * again.noise_floor.spread:.1f} %" in summary_of(again)
        assert tuned_config(again).evidence.noise_floor == again.noise_floor.spread

    def test_a_model_that_differs_from_process_to_process_is_refused(self, make_study, model_file):
        """Its outputs repeat within a process and not in the next one: no config is blamed for that."""
        model_file.write_text(
            "import os, numpy as np\ndef tiny():\n"
            "    own = np.random.default_rng(int.from_bytes(os.urandom(8), 'big')).normal(size=(8, 8))\n"
            "    return (lambda x: x @ own), np.ones((2, 8))\n"
        )
        study = make_study()
        with pytest.raises(SetupError, match="another output in another process"):
            tune(study)
        assert study.num_recorded() == 1

    def test_a_model_that_breaks_meanwhile_ends_in_its_own_error(self, make_study, model_file):
        """The untuned model that worked in trial 0 and in no further process stops the study, nothing is lost."""
        study = make_study()

        def break_it(event):
            if isinstance(event, TrialEnded):
                model_file.write_text("raise OSError('the disk is gone')\n")

        with pytest.raises(SetupError, match="against itself could not be run: OSError: the disk is gone"):
            tune(study, notify=break_it)
        assert study.num_recorded() == 1
        assert study.noise_floor is None

    @pytest.mark.slow
    def test_the_untuned_model_is_read_after_trials(self, make_study):
        """In the process that stays beside them, so that a reading is no trial; all are on record."""
        study = make_study()
        events = []
        tune(study, QUICK_BUDGET.model_copy(update={"num_trials": 10}), events.append)
        after = [each.after for each in study.drift_checks]
        assert after == sorted(set(after))
        assert set(after) <= {each.number for each in study.records()} - {0}
        assert all(each.latency_s >= 0.007 for each in study.drift_checks)
        assert [each.sentinel for each in events if isinstance(each, DriftChecked)] == study.drift_checks != []
        assert study.num_recorded() >= 10

    def test_a_machine_that_drifts_is_reported(self, real_clock, make_study, model_file, tmp_path):
        """The untuned model's own latency doubles during the search: measured, said, and no verdict comes from it."""
        slow = tmp_path / "slow"
        model_file.write_text(
            "import os, time, numpy as np\ndef tiny():\n    def model(x):\n"
            f"        time.sleep(0.02 * os.path.exists({str(slow)!r}))\n"
            "        return x + 1\n    return model, np.ones((2, 2))\n"
        )
        study = make_study()

        def slow_down(event):
            if isinstance(event, TrialEnded) and event.record.number == 1:
                slow.touch()

        tune(study, QUICK_BUDGET, slow_down)
        answer = StudyResult(study)
        assert answer.drift > 1
        assert "latency changed by" in summary_of(study)
        untuned_s, tuned_s = answer.confirmation.values
        assert min(untuned_s, tuned_s) > 0.02, "both sides of the comparison were measured on today's machine"
