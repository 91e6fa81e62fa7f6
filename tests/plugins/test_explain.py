"""What `explain` derives from a study's records: importances, the winner's reasons, the losers' groups."""

from __future__ import annotations

import io
import math
import random

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial
from rich.console import Console

from autotune.answer.result import StudyResult
from autotune.config import Config
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.statistics import Speedup, Verdict
from autotune.plugins.explain import importance
from autotune.plugins.explain.explanation import Explanation, explain
from autotune.plugins.explain.importance import FEWEST_TRIALS, importances
from autotune.plugins.explain.lines import explanation
from autotune.study.records import Confirmation, TrialRecord
from tests.asking import ask
from tests.conftest import with_latency

pytestmark = pytest.mark.usefixtures("in_memory")


@pytest.fixture
def told(make_study, measurement):
    """A study whose every config was tried: latency is what `latency_ms` says, breaks cost a fifth, two values fail."""
    study = make_study(constraints=("graph_breaks == 0",))

    def outcome_of(config: Config):
        if config.get("behaviour") in ("wrong", "compile_error"):
            reason = Reason.WRONG_RESULT if config["behaviour"] == "wrong" else Reason.COMPILE_ERROR
            return Failure(reason=reason, stage=Stage.COMPILE, error="no")
        breaks = config.get("behaviour") == "breaks"
        latency_s = float(config["latency_ms"]) * (1.2 if breaks else 1.0) * (0.5 if "behaviour" in config.root else 1)
        graph_breaks = measurement.diagnosis.graph_breaks if not breaks else None
        diagnosis = Diagnosis(compiled=True, num_graphs=1 + breaks, num_kernels=7, graph_breaks=graph_breaks)
        return with_latency(measurement, latency_s / 1e3, diagnosis=diagnosis)

    while (asked := ask(study)) is not None:
        study.tell(asked, outcome_of(asked.config))
    return study


def test_the_fastest_feasible_trial_is_explained(told):
    """Before a verdict the leader is the winner, and it is compared with the untuned model and the default."""
    explanation = explain(StudyResult(told))
    assert explanation.winner.config == Config({"execution": "compile", "behaviour": "right", "latency_ms": 2})
    ratios = {each.name: each.ratio for each in explanation.anchors}
    assert ratios == {"the untuned model": pytest.approx(8.0), "the default compile": pytest.approx(3.0)}


def test_every_other_trial_is_in_one_group(told):
    """No trial is left unexplained and none is explained twice; failures and broken constraints are counted."""
    explanation = explain(StudyResult(told))
    numbers = [number for group in explanation.groups for number in group.trials]
    everyone = {each.number for each in told.records()}
    assert sorted(numbers) == sorted(everyone - {explanation.winner.number})
    failures = [reason for group in explanation.groups for reason, n in group.failures.items() for _ in range(n)]
    assert sorted(failures) == ["compile_error"] * 3 + ["wrong_result"] * 3
    assert sum(n for group in explanation.groups for n in group.violations.values()) == 3


def test_a_group_tells_by_how_much_its_best_trial_lost(told):
    """`latency_ms=6` takes 3 ms where the untuned model takes 8: a speed-up over the untuned model, as everywhere."""
    group = next(g for g in explain(StudyResult(told)).groups if (g.knob, g.value) == ("latency_ms", 6))
    assert group.best_speedup == pytest.approx(8 / 3)


def test_equal_programs_do_not_differ_in_a_call(make_study, measurement):
    """What two processes of one program differ in is noise."""
    study = make_study()
    compiled = {"execution": "compile", "behaviour": "right"}
    study.enqueue([Config({**compiled, "latency_ms": number}) for number in (6, 2)])
    for latency_s in (0.01, 0.02):
        asked = ask(study)
        study.tell(asked, with_latency(measurement, latency_s, program="p"))
    answer = StudyResult(study)
    (anchor,) = Explanation(answer, answer.records[1]).anchors
    assert (anchor.name, anchor.ratio) == ("the untuned model", 1.0)


class TestAMachineThatIsNotQuiet:
    """What the machine's load did is not told as a knob's effect."""

    EAGER, COMPILED = {"execution": "eager", "latency_ms": 8}, {"execution": "compile", "behaviour": "right"}

    @pytest.fixture
    def loaded(self, make_study, measurement):
        """The untuned model takes 8 ms, the default compile 6, and one config met a neighbour: 81 times as slow."""
        study = make_study()
        configs = [self.EAGER, {**self.COMPILED, "latency_ms": 6}, {**self.COMPILED, "latency_ms": 2}]
        study.enqueue([Config(each) for each in configs])
        for latency_s in (0.008, 0.006, 0.490):
            asked = ask(study)
            study.tell(asked, with_latency(measurement, latency_s))
        return study

    def test_a_disturbed_trial_is_no_evidence(self, loaded, monkeypatch):
        """Nor is a group's best; and the explanation says which trials those are."""
        monkeypatch.setattr(
            TrialRecord, "disturbed", property(lambda self: "a neighbour took the core" if self.number == 2 else None)
        )
        found = explain(StudyResult(loaded))
        assert found.disturbed == [2]
        assert next(each for each in found.groups if each.trials == (2,)).best_speedup is None
        assert "busy during trials 2" in text(found)

    def test_what_was_confirmed_is_told_by_its_blocks(self, loaded):
        """The same two trials side by side: there the one is the faster, and that is what counts in all figures."""
        loaded.confirmation = Confirmation(
            verdict=Verdict.FASTER, candidate=2, contestants=(0, 1, 2), num_trials=3,
            blocks=tuple((0.008 * x, 0.006 * x, 0.002 * x) for x in (1.0, 1.01, 0.99, 1.0)),
            speedups=(Speedup(median=4 / 3, low=1.3, high=1.4), Speedup(median=4.0, low=3.9, high=4.1)),
        )  # fmt: skip
        found = explain(StudyResult(loaded))
        assert [(each.ratio, each.confirmed) for each in found.anchors] == [
            (pytest.approx(4), True),
            (pytest.approx(3), True),
        ]
        assert "4.00x as fast as the untuned model (trial 0), side by side" in text(found)

    def test_an_undecided_study_has_no_best_config(self, loaded):
        """The headline says what the verdict says."""
        loaded.confirmation = Confirmation(verdict=Verdict.UNDECIDED, num_trials=3)
        assert text(explain(StudyResult(loaded))).startswith("undecided")
        loaded.confirmation = Confirmation(verdict=Verdict.KEEP_UNTUNED, num_trials=3)
        assert text(explain(StudyResult(loaded))).startswith("nothing is better")


def text(told):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(explanation(told))
    return console.export_text()


def test_the_knob_that_decides_is_the_most_important_one():
    """One knob halves the latency, one does nothing: the first has the larger share, and the shares add up to 1."""
    chance = random.Random(0)
    configs = [Config({"good": chance.random() < 0.5, "inert": chance.choice(["a", "b", "c"])}) for _ in range(40)]
    values = [(0.5 if config["good"] else 1.0) * chance.uniform(0.99, 1.01) for config in configs]
    good, inert = importances(configs, values)
    assert (good.knob, inert.knob) == ("good", "inert")
    assert good.share + inert.share == pytest.approx(1.0)
    assert good.low > inert.high


@pytest.mark.filterwarnings("ignore:Target and region quantiles select the same set")
@pytest.mark.parametrize("seed", range(6))
def test_importances_are_those_of_optuna(seed, monkeypatch):
    """Shares and intervals are what Optuna's own evaluator gives: with ties, levels that few trials have, knobs that
    are inactive in some, and values that cannot be compared."""
    monkeypatch.setattr(importance, "NUM_RESAMPLES", 5)
    chance = random.Random(seed)
    configs = [
        Config(
            {"any": chance.choice([1, True, "x", None]), "same": 0, "rare": chance.random() < 0.1}
            | ({"inner": chance.choice([1.0, 2])} if chance.random() < 0.6 else {})
        )
        for _ in range(chance.choice([9, 20, 33]))
    ]
    values = [chance.choice([1.0, 1.0, chance.random()]) + (each["any"] == "x") for each in configs]
    values[3] = math.inf if seed % 2 else values[3]
    drawn = random.Random(seed)
    every = range(len(configs))
    resamples = [drawn.choices(every, k=len(every)) for _ in range(5)]
    shares, *resampled = (by_optuna(configs, values, rows) for rows in (every, *resamples))
    found = importances(configs, values, seed)
    assert [each.share for each in found] == sorted((each.share for each in found), reverse=True)
    assert {each.knob: each.share for each in found} == pytest.approx(shares)
    for each in found:
        expected = np.quantile([those[each.knob] for those in resampled], [0.05, 0.95])
        assert (each.low, each.high) == pytest.approx(tuple(expected))


def by_optuna(configs, values, rows):
    """Knob -> share, of these rows; a knob has the levels that it has in all of them."""
    levels = {
        knob: [repr(each[knob]) if knob in each.root else "(inactive)" for each in configs]
        for knob in {name for each in configs for name in each.knobs()}
    }
    choices = {knob: CategoricalDistribution(sorted(set(texts))) for knob, texts in levels.items()}
    varying = {knob: each for knob, each in choices.items() if len(each.choices) > 1}
    study = optuna.create_study()
    study.add_trials(
        create_trial(params={knob: levels[knob][row] for knob in varying}, distributions=varying, value=values[row])
        for row in rows
    )
    evaluator = PedAnovaImportanceEvaluator(target_quantile=importance.BEST_SHARE, evaluate_on_local=False)
    return get_param_importances(study, evaluator=evaluator)


def test_too_few_trials_have_no_importances():
    """Two points in the best quarter would be a story, not a finding; so is a knob that never varied."""
    configs = [Config({"a": number % 2}) for number in range(FEWEST_TRIALS)]
    values = [1.0 + number % 2 for number in range(FEWEST_TRIALS)]
    assert importances(configs, values)
    assert not importances(configs[:-1], values[:-1])
    assert not importances([Config({"a": 1})] * 20, [1.0] * 20)


def test_nothing_measured_is_a_sentence(make_study, cli):
    """An empty study is no traceback: it says that there is nothing to explain, and fails."""
    make_study().close()
    shown = cli("explain", "s")
    assert shown.returncode == 1
    assert "nothing to explain" in shown.stderr
