"""`--sampler`: another sampler proposes the configs, and all that the tool adds around a search holds as before."""

from __future__ import annotations

import optuna
import pytest

from autotune.errors import InputError, StoreError
from autotune.measure.measurement import Failure
from autotune.plugins.samplers import optuna_sampler
from autotune.plugins.samplers.optuna_sampler import OptunaSampler
from autotune.study.folder import FolderStudies
from tests.asking import ask, sampler_of
from tests.conftest import with_latency

FAILURE = Failure(reason="compile_error", stage="compile", error="no")


@pytest.fixture(autouse=True)
def _few_proposals(monkeypatch):
    """A small space is nearly used up soon; what is rarely proposed then is left to the tool's own sampler."""
    monkeypatch.setattr(optuna_sampler, "MOST_PROPOSALS", 10)


class Stubborn(optuna.samplers.RandomSampler):
    """Proposes the first value of each knob, always, and keeps what it was told."""

    told: list = []

    def sample_independent(self, study, trial, param_name, param_distribution):
        return param_distribution.choices[0]

    def after_trial(self, study, trial, state, values):
        self.told.append((state, values, trial.constraints))


class Broken(optuna.samplers.RandomSampler):
    def sample_independent(self, study, trial, param_name, param_distribution):
        raise RuntimeError("out of ideas")


def ask_all(study, outcome_of, most=100):
    asked = []
    while len(asked) < most and (each := ask(study)) is not None:
        asked.append(each.config)
        study.tell(each, outcome_of(each.config))
    return asked


@pytest.mark.parametrize("name", ["RandomSampler", "TPESampler"])
def test_each_config_is_tried_once_after_the_planned_ones(make_study, measurement, name):
    """Untuned and default come first, nothing is repeated although the sampler repeats, and the space is exhausted."""
    study = make_study(sampler=name)
    space = study.manifest.space
    with study.exclusive():
        sampler_of(study).exclude(lambda config: config.get("latency_ms") == 3)
        asked = ask_all(study, lambda config: with_latency(measurement, 0.001) if len(config.root) < 4 else FAILURE)
    allowed = {each for each in space.configs() if each.get("latency_ms") != 3 or each == space.untuned()}
    assert asked[:2] == [space.untuned(), space.default()]
    assert len(asked) == len(set(asked))
    assert set(asked) == allowed


def test_the_seed_and_the_trials_determine_the_choice(make_study, measurement):
    """Two studies of one seed ask for the same configs."""
    first, second = (make_study(name, sampler="TPESampler") for name in "ab")
    orders = []
    for study in (first, second):
        with study.exclusive():
            orders.append(ask_all(study, lambda _: measurement, most=8))
    assert orders[0] == orders[1]


def test_a_stored_study_goes_on_with_its_sampler(make_study, measurement, tmp_path):
    """The name is in the manifest; another sampler is another question. One of another package is made by name."""
    name = f"{__name__}:Stubborn"
    Stubborn.told.clear()
    with make_study(sampler=name).exclusive() as _:
        pass
    study = FolderStudies(tmp_path / "studies").open("s")
    with study.exclusive():
        asked = ask_all(study, lambda config: FAILURE if len(config.root) > 3 else measurement, most=4)
    assert study.manifest.sampler == name
    assert len(set(asked)) == 4  # It proposes one config alone: the tool's own sampler goes on.
    state, values, constraints = Stubborn.told[0]  # The repeat is answered with what is known of the config.
    assert state is optuna.trial.TrialState.COMPLETE
    assert values
    assert "ok" in constraints
    with pytest.raises(StoreError, match=r"sampler: .* before, none now"):
        study.manifest.require_same(study.manifest.model_copy(update={"sampler": None}))


def test_a_sampler_that_fails_is_named(make_study, measurement):
    """Its own error is a sentence, and what was recorded stays."""
    study = make_study(sampler=f"{__name__}:Broken")
    with study.exclusive(), pytest.raises(InputError, match=r"Broken.: RuntimeError: out of ideas"):
        ask_all(study, lambda _: measurement)
    assert study.num_recorded() == 2


@pytest.mark.parametrize(
    ("given", "name"),
    [("tpe", "TPESampler"), ("TPESampler", "TPESampler"), ("Random", "RandomSampler"), (f"{__name__}:Broken",) * 2],
)
def test_names(given, name):
    """A sampler of Optuna by its class or in short; another by its module."""
    assert OptunaSampler.name_of(given) == name


@pytest.mark.parametrize(
    ("given", "words", "tip"),
    [
        ("tpee", "sampler='tpee': unknown", "did you mean tpe?"),
        ("GridSampler", "sampler='GridSampler': unknown", "tpe, random"),
        ("no_such_package.samplers:Best", "No module named 'no_such_package'", "install no_such_package"),
        ("optuna.samplers:GridSampler", "search_space", "CLASS\\(seed=SEED\\)"),
        ("optuna:Trial", "no class that derives from optuna.samplers.BaseSampler", ""),
        ("optuna.samplers:Best", "has no attribute 'Best'", ""),
    ],
)
def test_what_is_no_sampler_is_a_sentence(given, words, tip):
    """Before a study is made: a wrong name, a missing package, a class that is no sampler or needs more than a seed."""
    with pytest.raises(InputError, match=words) as caught:
        OptunaSampler.name_of(given)
    assert tip.replace("\\", "") in (caught.value.tip or "")
