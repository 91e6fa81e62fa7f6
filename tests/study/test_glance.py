"""What a list tells of a study is what the opened study tells, and takes no opening."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from autotune.errors import StoreError
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.statistics import Verdict
from autotune.study.folder import FolderStudies
from autotune.study.glance import glance
from autotune.study.records import Confirmation
from tests.asking import ask


@pytest.fixture
def study(make_study, measurement):
    """Two trials that count, one that does not, one that runs, and a verdict. Its file was opened before."""
    study = make_study()
    study.tell(ask(study), measurement)
    study.tell(ask(study), Failure(reason=Reason.COMPILE_ERROR, stage=Stage.COMPILE, error="no"))
    study.tell(ask(study), Failure(reason=Reason.SETUP, stage=Stage.START, error="no"))
    ask(study)
    study.confirmation = Confirmation(verdict=Verdict.TIE, num_trials=2)
    study.studies.open(study.name).close()
    return study


def test_it_is_told_without_opening_the_study(study, monkeypatch):
    """Question, number of trials and verdict are those of the opened study."""
    monkeypatch.setattr(FolderStudies, "open", lambda *_: pytest.fail("it was opened"))
    seen = glance(study.studies, study.name)
    assert (seen.manifest, seen.num_recorded, seen.host) == (study.manifest, study.num_recorded(), None)
    assert seen.num_recorded == 2
    assert seen.confirmation == study.confirmation
    assert seen.attributes == study.read_attributes()


def test_what_a_dead_process_measured_counts(study, measurement):
    """Its trial runs, as far as the file says, and has an outcome: the study has to be opened to know."""
    asked = ask(study)
    asked.handle.set_user_attr("result", {"outcome": measurement.model_dump(mode="json")})
    again = study.studies.open(study.name)
    assert glance(study.studies, study.name).num_recorded == again.num_recorded() == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("update studies set study_name = 'else'", "holds no study named 's'"),
        ("update trials set state = 'ODD'", "is damaged: it holds what no study writes"),
        ("update trial_user_attributes set value_json = '{'", "is damaged: it holds what no study writes"),
        ("update alembic_version set version_num = 'v9'", "has the schema of another Optuna release"),
        ("drop table trials", "is no study's database"),
    ],
)
def test_what_is_wrong_has_the_sentence_of_the_opened_study(study, change, sentence):
    """A file that is not as Optuna writes it here is read by Optuna."""
    study.close()
    with closing(sqlite3.connect(study.folder / "study.db")) as database:
        database.execute(change)
        database.commit()
    with pytest.raises(StoreError, match=sentence):
        glance(study.studies, study.name)
