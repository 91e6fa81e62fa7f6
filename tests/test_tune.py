"""The loop: baseline, search, confirmation, verdict; on real child processes of the fake framework."""

from __future__ import annotations

import pytest

from autotune.answer import answer_of, tuned_config
from autotune.errors import HarnessError, InputError, NoUsableTrialError
from autotune.events import BlockMeasured, StageEntered, TrialEnded, TrialStarted
from autotune.measurement import Stage
from autotune.runner import Runner
from autotune.space import load_space
from autotune.statistics import Verdict
from autotune.tune import Tuner
from tests.conftest import QUICK_BUDGET

EXHAUSTIVE = QUICK_BUDGET.model_copy(update={"num_trials": 100})


def tune(study, budget=EXHAUSTIVE, notify=lambda _: None):
    with Runner("fake", study.manifest.variables, preload=True, log=study.folder / "supervisor.log") as runner:
        return Tuner(study, budget, runner, notify).run()


def space_of(tmp_path, knobs: str):
    path = tmp_path / "own.yaml"
    path.write_text(f"schema: 1\nframework: fake\nknobs:\n{knobs}")
    return load_space(path, framework="fake", version="0", device="cpu")


EXECUTION = "  execution: {doc: 'https://e.org/x', values: [eager, compile], untuned: eager, default: compile}\n"


def test_a_faster_config_is_found_confirmed_and_exported(make_study):
    """The fastest right config wins, over fresh pairs; failures are recorded and never win."""
    study = make_study()
    confirmation = tune(study)
    answer = answer_of(study)
    assert confirmation.verdict is answer.verdict is Verdict.FASTER
    assert answer.best.config["latency_ms"] == 2
    assert answer.best.config.get("behaviour", "right") in ("right", "breaks")
    assert len(confirmation.blocks_s) == QUICK_BUDGET.confirmation.blocks_per_look
    assert answer.speedup.low > 1.5
    assert answer.break_even_calls is not None
    assert {each.outcome.reason for each in answer.records if each.state == "failed"} == {
        "wrong_result",
        "compile_error",
    }
    assert tuned_config(study).config == answer.best.config


def test_when_nothing_is_faster_the_untuned_model_is_kept(make_study, tmp_path):
    """A study whose configs are all slower says `keep_untuned`, and the export is the untuned model."""
    knobs = EXECUTION + (
        "  latency_ms: {doc: 'https://e.org/x', when: {execution: compile}, values: [6, 8], default: 6}\n"
    )
    study = make_study(space=space_of(tmp_path, knobs))  # Untuned, a call takes 1 ms.
    confirmation = tune(study)
    assert confirmation.verdict is Verdict.KEEP_UNTUNED
    assert confirmation.pairs == ()
    tuned = tuned_config(study)
    assert tuned.config == study.manifest.space.untuned()
    assert tuned.is_untuned
    model = object()
    assert tuned.apply(model) is model


def test_equal_configs_are_a_tie_or_keep_untuned_and_never_faster(make_study, tmp_path):
    """The very same work under two names is never sold as a speed-up."""
    knobs = EXECUTION + "  latency_ms: {doc: 'https://e.org/x', values: [5], default: 5}\n"
    study = make_study(space=space_of(tmp_path, knobs))
    assert tune(study).verdict is not Verdict.FASTER
    assert tuned_config(study).is_untuned


def test_among_equals_the_simplest_is_confirmed(make_study, tmp_path):
    """A config that is not faster than the default does not replace it."""
    knobs = (
        EXECUTION
        + "  latency_ms: {doc: 'https://e.org/x', values: [20, 4], untuned: 20, default: 4}\n"
        + "  idle: {doc: 'https://e.org/x', when: {execution: compile}, values: [b, a, c], default: a}\n"
    )
    study = make_study(space=space_of(tmp_path, knobs))
    tune(study)
    best = answer_of(study).best
    # Sleeping processes differ by less than the 2 % that count as equal here.
    assert best.config.get("idle", "a") == "a"


def test_the_untuned_model_must_work(make_study, model_file):
    """A model that fails untuned stops the study at once, with the child's own error first."""
    model_file.write_text("import numpy as np\ndef tiny():\n    return (lambda x: 1 / 0), np.ones((2, 2))\n")
    study = make_study()
    with pytest.raises(NoUsableTrialError, match="ZeroDivisionError: division by zero"):
        tune(study)
    assert len(study.records()) == 1


def test_a_broken_model_file_is_not_retried(make_study, model_file):
    """A model function that raises is the operator's mistake: one trial, one sentence, exit status 2."""
    model_file.write_text("def tiny():\n    raise RuntimeError('no weights')\n")
    study = make_study()
    with pytest.raises(HarnessError, match="RuntimeError: no weights") as caught:
        tune(study)
    assert caught.value.exit_code == 2
    assert len(study.records()) == 1


def test_harness_failures_in_a_row_stop_the_study(make_study, tmp_path, model_file):
    """When trials cannot be run any more, the loop says so instead of burning through the space."""
    study = make_study()

    def break_the_model(event):
        if isinstance(event, TrialEnded) and event.record.number == 1:
            model_file.write_text("raise OSError('the disk is gone')\n")

    with pytest.raises(HarnessError, match="the disk is gone"):
        tune(study, notify=break_the_model)
    assert study.num_recorded() == 2
    assert len(study.records()) == 4


def test_no_feasible_config_is_a_verdict_with_the_closest_miss(make_study):
    """Constraints that nothing keeps: `infeasible`, how close the best came, nothing to export."""
    study = make_study(constraints=("latency <= 1ms",))
    confirmation = tune(study, QUICK_BUDGET)
    assert confirmation.verdict is Verdict.INFEASIBLE
    assert "latency <= 1ms (missed by 0.00" in confirmation.note
    assert answer_of(study).best is None
    with pytest.raises(InputError, match="infeasible"):
        tuned_config(study)


def test_an_untuned_model_that_breaks_a_constraint_is_not_recommended(make_study, tmp_path):
    """Nothing faster, and the untuned model breaks the constraint: `infeasible`, with both said; nothing to export."""
    knobs = EXECUTION + (
        "  behaviour: {doc: 'https://e.org/x', values: [breaks, right], untuned: breaks, default: right}\n"
        "  latency_ms: {doc: 'https://e.org/x', when: {execution: compile}, values: [8], default: 8}\n"
    )
    study = make_study(space=space_of(tmp_path, knobs), constraints=("graph_breaks == 0",))
    confirmation = tune(study)
    assert confirmation.verdict in (Verdict.INFEASIBLE, Verdict.FASTER)
    best = answer_of(study).best
    assert best is None or not best.violations


def test_a_lone_slower_candidate_leaves_an_infeasible_untuned_model_infeasible(make_study, tmp_path):
    """The sentence names the constraint that the untuned model breaks."""
    knobs = EXECUTION.replace("[eager, compile]", "[eager, compile]") + (
        "  behaviour: {doc: 'https://e.org/x', values: [breaks, right], untuned: breaks, default: right}\n"
        "  latency_ms: {doc: 'https://e.org/x', when: {execution: compile}, values: [8], default: 8}\n"
    )
    space = space_of(tmp_path, knobs + "forbid:\n  - {if: {execution: eager, behaviour: right}, because: never}\n")
    study = make_study(space=space, constraints=("graph_breaks == 0",))
    confirmation = tune(study)
    assert confirmation.verdict is Verdict.INFEASIBLE
    assert "the untuned model breaks graph_breaks == 0" in confirmation.note
    assert answer_of(study).best is None


def test_a_model_that_computes_something_else_now_is_refused(make_study, model_file):
    """What the model imports is no part of its file: a changed model is found before any config is blamed."""
    (model_file.parent / "sibling.py").write_text("SCALE = 1.0\n")
    model_file.write_text(
        "import numpy as np, sibling\ndef tiny():\n    return (lambda x: x * sibling.SCALE), np.ones((2, 2))\n"
    )
    study = make_study()
    tune(study, QUICK_BUDGET.model_copy(update={"num_trials": 2}))
    (model_file.parent / "sibling.py").write_text("SCALE = 2.0\n")
    with pytest.raises(HarnessError, match="does not give what it gave"):
        tune(study, QUICK_BUDGET)
    assert study.num_recorded() == 2


def test_a_model_that_draws_random_numbers_is_named(make_study, model_file):
    """Another output for the same input is the model's doing, and no config is blamed for it."""
    model_file.write_text(
        "import numpy as np\ndef tiny():\n    return (lambda x: x + np.random.rand(*x.shape)), np.ones((2, 2))\n"
    )
    with pytest.raises(HarnessError, match="another output when called again") as caught:
        tune(make_study())
    assert "dropout" in str(caught.value)


def test_a_model_that_writes_into_its_inputs_is_named(make_study, model_file):
    """Each call would time and check other numbers: refused, with what it may be."""
    model_file.write_text(
        "import numpy as np\ndef tiny():\n    def model(x):\n        x *= 0.5\n        return x + 1\n"
        "    return model, np.ones((2, 2))\n"
    )
    with pytest.raises(HarnessError, match="does it write into its input"):
        tune(make_study())


def test_when_no_other_config_was_measured_it_says_so(make_study):
    """One trial is a verdict about nothing, and the note says it."""
    confirmation = tune(make_study(), QUICK_BUDGET.model_copy(update={"num_trials": 1}))
    assert confirmation.verdict is Verdict.KEEP_UNTUNED
    assert confirmation.note == "no other config gave a measurement"


def test_a_constraint_keeps_the_fastest_out(make_study):
    """The winner keeps every constraint even if another config is faster."""
    study = make_study(constraints=("graph_breaks == 0",))
    tune(study)
    answer = answer_of(study)
    assert answer.best.outcome.diagnosis.num_graph_breaks == 0
    assert any(each.state == "infeasible" for each in answer.records)


def test_a_study_goes_on_up_to_the_new_number_and_confirms_again(make_study):
    """More trials make the old verdict outdated; the same number of trials changes nothing."""
    study = make_study()
    first = tune(study, QUICK_BUDGET)
    assert first.num_trials == 6
    events = []
    assert tune(study, QUICK_BUDGET, events.append) == first
    assert not any(isinstance(each, (TrialStarted, BlockMeasured)) for each in events)
    second = tune(study, QUICK_BUDGET.model_copy(update={"num_trials": 8}))
    assert second.num_trials == 8
    assert study.num_recorded() == 8


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


def test_caches_and_scratch_are_gone_and_the_evidence_stays(make_study):
    """A study does not grow by compile caches; request, outcome and output of each trial stay."""
    study = make_study()
    tune(study, QUICK_BUDGET)
    for record in study.records():
        names = {path.name for path in study.trial_folder(record.number).path.iterdir()}
        assert names == {"request.json", "outcome.json", "stage", "stdout.txt", "stderr.txt"}
    assert not (study.folder / "confirm" / "cache").exists()


def test_an_unconfirmed_study_cannot_be_exported(make_study):
    """Nothing is exported that was not confirmed."""
    with pytest.raises(InputError, match="no verdict yet"):
        tuned_config(make_study())
