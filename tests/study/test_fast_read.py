"""Reading trials from the tables gives what Optuna itself reads, however they were told."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.study import fast_read, storage
from autotune.study.fast_read import JsonTexts

DISTRIBUTIONS = {
    "mode": optuna.distributions.CategoricalDistribution(("a", None, 3, 0.5, True)),
    "threads": optuna.distributions.IntDistribution(1, 8),
    "share": optuna.distributions.FloatDistribution(0.0, 1.0),
}


def fields(trials: list[FrozenTrial]) -> list[dict[str, object]]:
    """All of a trial that can be compared."""
    return [{**vars(each), "_user_attrs": dict(each.user_attrs)} for each in trials]


def a_study(path: Path, directions: tuple[str, ...] = ("minimize",)) -> optuna.Study:
    opened = storage.open_storage(path, create=True)
    return optuna.create_study(storage=opened, study_name="s", directions=directions)


def tell_all_kinds(study: optuna.Study) -> None:
    """Every state, every kind of value and attribute, active and inactive parameters."""
    for number in range(4):
        trial = study.ask()
        trial.suggest_categorical("mode", DISTRIBUTIONS["mode"].choices)
        if number % 2:
            trial.suggest_int("threads", 1, 8)
            trial.suggest_float("share", 0.0, 1.0)
        trial.set_user_attr("result", {"outcome": {"samples": [0.1, 0.2], "text": "é"}})
        trial.set_constraint("ok", -1.0)
        study.tell(trial, [1.5 + number] * len(study.directions))
    study.tell(study.ask(), [math.inf] * len(study.directions))
    study.tell(study.ask(), state=TrialState.FAIL)
    study.ask().set_user_attr("lease", {"pid": 1})
    study.enqueue_trial({"mode": "a"})


def both_readings(path: Path) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    url = f"sqlite:///{path}"
    ours = optuna.load_study(study_name="s", storage=storage.open_storage(path, create=False))
    return ours.get_trials(), optuna.load_study(study_name="s", storage=RDBStorage(url)).get_trials()


@pytest.mark.parametrize("directions", [("minimize",), ("minimize", "maximize")], ids=["one", "two"])
def test_a_trial_is_what_optuna_reads(tmp_path, directions):
    """Number, state, values, times, parameters, attributes and constraints agree, for every kind of trial."""
    tell_all_kinds(a_study(tmp_path / "study.db", directions))
    ours, theirs = both_readings(tmp_path / "study.db")
    assert len(ours) == 8
    assert {each.state for each in ours} == set(TrialState) - {TrialState.PRUNED}
    assert fields(ours) == fields(theirs)
    assert [each.constraints for each in ours] == [each.constraints for each in theirs]


def test_intermediate_values_are_read(tmp_path):
    """Also those that are no numbers: another tool may have reported them."""
    study = a_study(tmp_path / "study.db")
    trial = study.ask()
    for step, value in enumerate((0.5, math.inf, -math.inf)):
        trial.report(value, step)
    study.tell(trial, 1.0)
    ours, theirs = both_readings(tmp_path / "study.db")
    assert ours[0].intermediate_values == theirs[0].intermediate_values == {0: 0.5, 1: math.inf, 2: -math.inf}


def test_optuna_reads_through_these_rows(tmp_path, monkeypatch):
    """Optuna's cache calls our reading: a release that does not would be ten times as slow, and nobody would know."""
    tell_all_kinds(a_study(tmp_path / "study.db"))
    calls = []
    monkeypatch.setattr(storage, "read_trials", lambda *given: calls.append(given) or fast_read.read_trials(*given))
    opened = optuna.load_study(study_name="s", storage=storage.open_storage(tmp_path / "study.db", create=False))
    assert len(opened.get_trials()) == 8
    assert calls


def test_what_another_process_wrote_is_seen(tmp_path):
    """A trial that was running when it was read is read again; a new one is added."""
    study = a_study(tmp_path / "study.db")
    running = study.ask()
    other = optuna.load_study(study_name="s", storage=storage.open_storage(tmp_path / "study.db", create=False))
    assert [each.state for each in other.get_trials()] == [TrialState.RUNNING]
    study.tell(running, 1.0)
    study.tell(study.ask(), 2.0)
    assert [each.value for each in other.get_trials()] == [1.0, 2.0]


def test_many_running_trials_are_all_read_again(tmp_path, monkeypatch):
    """More unfinished trials than a statement can name are read all the same."""
    monkeypatch.setattr(fast_read, "_MAX_NAMED", 2)
    study = a_study(tmp_path / "study.db")
    asked = [study.ask() for _ in range(4)]
    study.tell(asked[3], 3.0)
    other = optuna.load_study(study_name="s", storage=storage.open_storage(tmp_path / "study.db", create=False))
    assert len(other.get_trials()) == 4
    for number in (0, 1, 2):
        study.tell(asked[number], float(number))
    assert [each.value for each in other.get_trials()] == [0.0, 1.0, 2.0, 3.0]


def test_two_studies_in_one_file_are_kept_apart(tmp_path):
    """Another tool may have put a second study into the file: its trials are not ours."""
    study = a_study(tmp_path / "study.db")
    study.tell(study.ask(), 1.0)
    other = optuna.create_study(storage=study._storage, study_name="other")
    other.tell(other.ask(), 2.0)
    assert [each.value for each in both_readings(tmp_path / "study.db")[0]] == [1.0]


def test_attributes_are_read_when_asked_for():
    """An attribute's text is parsed on access only; presence and names need no parsing."""
    attributes = JsonTexts()
    attributes.texts.update({"good": "[1]", "broken": "{"})
    assert "broken" in attributes
    assert list(attributes) == ["good", "broken"]
    assert attributes["good"] == [1]
    assert attributes.get("absent") is None
    assert copy.deepcopy(attributes)["good"] == [1]
    with pytest.raises(ValueError, match="Expecting"):
        attributes["broken"]
