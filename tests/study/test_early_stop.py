"""A search that ends before its budget: when, why, and that it can be told to go on."""

from __future__ import annotations

import math
import random

import pytest

from autotune.answer.result import StudyResult
from autotune.config import Config
from autotune.measure.measurement import Stage
from autotune.measure.objective import Objective
from autotune.render.json import document
from autotune.space.portfolio import Entry, Portfolio, PortfolioTable
from autotune.space.space import Knob, SearchSpace
from autotune.study.budget import Budget
from autotune.study.early_stop import (
    FEWEST_IDLE,
    FEWEST_MODELS,
    FEWEST_TRIALS,
    IDLE_AFTER_PORTFOLIO,
    IDLE_IF_THOROUGH,
    WORTH_A_TRIAL,
    ExpectedGain,
    StopRule,
)
from autotune.study.records import StopReason
from autotune.tuning.events import SearchEnded, TrialStarted
from autotune.tuning.loop import Tuner
from autotune.tuning.pruning import MOST_EXTRA
from tests.asking import ask, sampler_of
from tests.conftest import ScriptedTrials, reopened, summary_of, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

NAMES = [f"k{number}" for number in range(7)]


def space_of(names):
    """Flags, of which the framework's default sets the first."""
    knobs = tuple(
        Knob(name=name, doc="", values=(False, True), when={}, default=name == "k0", untuned=False) for name in names
    )
    return SearchSpace(framework="fake", knobs=knobs, forbid=())


@pytest.fixture
def study(make_study):
    """A space of 128 configs."""
    return make_study(space=space_of(NAMES))


@pytest.fixture
def tune(measurement):
    """Run a study on scripted trials; `latency_s` says what a config takes. Events are kept in `tune.events`."""

    def tune(study, latency_s, **budget):
        scripted = ScriptedTrials(lambda _name, _block, config: with_latency(measurement, latency_s(config)))
        tune.events = []
        Tuner(study, Budget(**budget), scripted, tune.events.append).run()

    return tune


def flat(config):
    """Nothing matters; figures scatter by half a per cent."""
    return 0.010 * (1 + 0.005 * random.Random(config.canonical()).random())


def mixed(config):
    """Some knobs help, some harm, and two help only together."""
    effects = {"k0": -0.05, "k1": 0.10, "k2": -0.08, "k3": 0.06, "k4": -0.03, "k5": 0.0, "k6": 0.02}
    together = -0.12 if config["k1"] and config["k5"] else 0.0
    return 0.010 * math.exp(together + sum(effects[name] for name, value in config.root.items() if value))


def stops(events):
    return [each for each in events if isinstance(each, SearchEnded) and each.forecast is not None]


def test_a_flat_study_stops_early_and_says_why(study, tune):
    """Where nothing can be gained, trials are left unused, and event, record, summary and document tell it. Resumed it
    stops again at once: no further trial is run, and the verdict stands. What somebody wished to be tried is tried,
    however little it promises."""
    tune(study, flat, num_trials=40)
    assert FEWEST_TRIALS <= study.num_recorded() < 40
    (stop,) = stops(tune.events)
    assert stop.forecast == study.early_stop == StudyResult(study).early_stop
    assert stop.forecast.num_trials == study.num_recorded()
    assert stop.forecast.num_untried == 128 - study.num_recorded()
    assert stop.forecast.expected_gain < WORTH_A_TRIAL
    assert f"stopped after {study.num_recorded()} trials: none of {128 - study.num_recorded()} left" in summary_of(
        study
    )
    assert document(StudyResult(study))["early_stop"]["num_idle"] >= FEWEST_IDLE
    recorded, verdict = study.num_recorded(), study.confirmation
    again = reopened(study)
    tune(again, flat, num_trials=80)
    assert not any(isinstance(each, TrialStarted) for each in tune.events)
    assert len(stops(tune.events)) == 1
    assert (again.num_recorded(), again.confirmation) == (recorded, verdict)
    wished = again.enqueue(list(again.manifest.space.configs())[-3:])
    tune(again, flat, num_trials=40)
    tried = [each.config for each in again.records()[recorded:]]
    assert tried[: len(wished)] == wished


def test_it_does_not_stop_before_the_best_is_found(study, tune):
    """As long as knobs that help were not combined, more is promised; then it stops well before 128 trials."""
    tune(study, mixed, num_trials=100)
    best = min(study.manifest.space.configs(), key=mixed)
    assert mixed(best) < 0.95 * mixed(study.manifest.space.default())
    assert best in [each.config for each in study.records()]
    assert len(stops(tune.events)) == 1
    assert study.num_recorded() < 50


def test_a_used_up_budget_is_no_early_stop(study, tune):
    """A search that ends with its last trial says nothing of the kind. Which config it ends with differs between
    processors, and with it the trials that look for a simpler one."""
    tune(study, mixed, num_trials=FEWEST_TRIALS - 1)
    assert study.stop_reason is StopReason.TRIALS
    assert 0 <= study.num_recorded() - (FEWEST_TRIALS - 1) <= MOST_EXTRA
    assert not stops(tune.events)
    assert study.early_stop is None


def test_a_space_that_the_budget_holds_may_be_left_as_well(make_study, tune):
    """A trial for each config is no reason to run them all; without early stop they are."""
    study = make_study(space=space_of(NAMES[:4]))
    tune(study, flat, num_trials=16)
    assert study.num_recorded() < 16
    assert study.early_stop is not None
    tune(study, flat, num_trials=16, stop_early=False)
    assert study.num_recorded() == 16
    assert study.early_stop is None


@pytest.fixture
def portfolio(monkeypatch):
    """Two configs, beside the untuned and the default one, were best elsewhere."""

    def entry(*names):
        flags = {name: name in names for name in NAMES}
        gains = (1.5, 1.5, 1.5, 1.0, 1.0, 1.0) if "k1" in names else (1.0, 1.0, 1.0, 1.3, 1.3, 1.3)
        return Entry(config=Config(flags), seconds=1.0, gains=gains, best_on=())

    table = PortfolioTable(
        framework="fake", release="0", device="cpu", task="infer", processor="x", num_cores=1, space="none",
        models=tuple("abcdef"), kinds=tuple("abcdef"), process=(), entries=(entry("k1", "k5"), entry("k2")),
    )  # fmt: skip
    monkeypatch.setattr("autotune.space.portfolio.recorded", lambda: (table,))


class TestAfterAPortfolio:
    def test_it_stops_after_three_further_trials_and_later_if_it_is_to_be_thorough(self, make_study, tune, portfolio):
        """Nothing can be gained: three further trials end it whatever is forecast, and five with a bleak forecast."""
        recorded = {}
        for thorough in (False, True):
            study = make_study(f"thorough-{thorough}", space=space_of(NAMES))
            tune(study, flat, num_trials=40, thorough=thorough)
            planned = len(study.portfolio.configs)
            stop, num = study.early_stop, IDLE_IF_THOROUGH if thorough else IDLE_AFTER_PORTFOLIO
            assert stop.num_idle >= num
            assert stop.num_trials >= planned + num
            assert (stop.expected_gain is None) is not thorough
            recorded[thorough] = stop.num_trials - planned
        assert recorded[False] == IDLE_AFTER_PORTFOLIO < recorded[True]

    def test_a_notable_trial_among_the_further_ones_has_three_more_follow(self, make_study, tune, portfolio):
        """The first one is the best by far, which no forecast has to say."""
        study, order = make_study(space=space_of(NAMES)), []

        def latency_s(config):
            if config not in order:
                order.append(config)
            return 0.005 if order.index(config) == len(study.portfolio.configs) else flat(config)

        tune(study, latency_s, num_trials=40)
        assert study.early_stop.num_idle == IDLE_AFTER_PORTFOLIO
        assert study.early_stop.num_trials == len(study.portfolio.configs) + 1 + IDLE_AFTER_PORTFOLIO

    def test_without_it_the_rule_is_the_other_one(self, study, tune, portfolio):
        tune(study, flat, num_trials=40, portfolio=False)
        assert study.num_recorded() >= FEWEST_TRIALS
        assert study.stop_rule == StopRule()

    def test_a_portfolio_of_few_models_changes_no_rule(self, study):
        configs = (study.manifest.space.untuned(), study.manifest.space.default())
        for num_models, is_changed in ((FEWEST_MODELS - 1, False), (FEWEST_MODELS, True)):
            study.portfolio = Portfolio(configs=configs, num_models=num_models)
            assert (study.stop_rule != StopRule()) is is_changed

    def test_a_resumed_study_keeps_both(self, study, tune, portfolio):
        tune(study, flat, num_trials=5, thorough=True)
        again = reopened(study)
        assert again.budget.thorough
        assert again.stop_rule == StopRule.after(len(again.portfolio.configs), is_thorough=True)

    @pytest.mark.parametrize(("calls", "worth"), [(1000, 5.0), (10**6, 0.005), (10**9, WORTH_A_TRIAL)])
    def test_a_job_is_searched_for_as_long_as_it_becomes_shorter_by_more(self, make_study, measurement, calls, worth):
        """A trial takes 5 s, a job of 1,000 calls 10 s, and a tenth of a forecast comes true."""
        objective = Objective(quantity="total", num_calls=calls)
        study = make_study(f"total-{calls}", space=space_of(NAMES), objectives=(objective,))
        space = study.manifest.space
        study.portfolio = Portfolio(configs=(space.untuned(), space.default()), num_models=6)
        quick = {"stage_s": {Stage.COMPILE: 5.0}, "first_call_s": 0.01, "compile_s": 0.0}
        for _ in range(6):
            asked = ask(study)
            study.tell(asked, with_latency(measurement, 0.01).model_copy(update=quick))
        assert sampler_of(study).forecast().rule.worth_a_trial == pytest.approx(worth, rel=0.01)


@pytest.mark.parametrize(
    ("change", "is_negligible"),
    [
        ({}, True),
        ({"num_trials": FEWEST_TRIALS - 1}, False),
        ({"expected_gain": WORTH_A_TRIAL}, False),
        ({"num_idle": FEWEST_IDLE - 1}, False),
        ({"num_untried": None}, True),
    ],
    ids=["all three", "too soon", "a gain to be expected", "a gain lately", "a space too large to count"],
)
def test_three_things_make_a_gain_negligible(change, is_negligible):
    """Enough trials, too little to be expected, and a while without a gain."""
    bleak = {"num_trials": 20, "num_untried": 80, "expected_gain": 0.0001, "num_idle": 10}
    assert ExpectedGain.model_validate({**bleak, **change}).is_negligible is is_negligible
