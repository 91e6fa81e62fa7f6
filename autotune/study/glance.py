"""`glance`: what a list tells of a study, without opening it where its records are a file of this machine.

Optuna checks, opens and reads a file in 48 ms of CPU time, and a folder may hold hundreds. A few statements of SQL take
one. Where a file is not what they expect, `Studies.open` reads it, which has a sentence for what is wrong.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.study import sqlite
from autotune.study.earlier import STUDY
from autotune.study.folder import FolderStudies
from autotune.study.manifest import Manifest, read_manifest
from autotune.study.records import Confirmation
from autotune.study.stored_trials import RESULT
from autotune.study.study import Studies, Study

_ID = "SELECT study_id FROM studies WHERE study_name = ?"
_TRIALS = (
    "SELECT state, EXISTS (SELECT 1 FROM trial_user_attributes AS told WHERE told.trial_id = trials.trial_id "
    "AND told.key = ?) FROM trials WHERE study_id = ?"
)
_ATTRIBUTES = "SELECT key, value_json FROM study_user_attributes WHERE study_id = ?"
_NO_JSON = "SELECT EXISTS (SELECT 1 FROM {table} WHERE NOT coalesce(json_valid({column}), 0))"
_JSON = {
    "study_user_attributes": "value_json",
    "trial_user_attributes": "value_json",
    "trial_system_attributes": "value_json",
    "trial_params": "distribution_json",
}
_FINISHED, _UNFINISHED = {"COMPLETE", "FAIL"}, {"RUNNING", "WAITING"}


@dataclass(frozen=True)
class Glance:
    """A study's question, and what became of it."""

    manifest: Manifest
    num_recorded: int
    """See `Study.num_recorded`."""
    attributes: Mapping[str, Any]
    """What is stored with the study, in the keys of the present schema."""
    host: str | None = None
    """Where its trials run, if that is known of a study whose records are elsewhere."""

    def read_attribute(self, name: str) -> Any:
        """See `Readable`."""
        return self.attributes.get(name)

    @property
    def confirmation(self) -> Confirmation | None:
        """The verdict. Raises StoreError where it cannot be read."""
        return Study.confirmation.read(self)


def glance(studies: Studies, name: str) -> Glance:
    """What is quickly read of a study. Raises InputError for an unknown name, StoreError for a broken one."""
    studies.require(name)
    if isinstance(studies, FolderStudies):
        folder = studies.own_folder(name)
        manifest = read_manifest(folder / "manifest.json")
        with suppress(sqlite3.Error, ValueError, TypeError):
            return _read(folder / "study.db", manifest)
    with closing(studies.open(name)) as study:
        home = study.database.home
        return Glance(
            study.manifest, study.num_recorded(), study.read_attributes(), None if home is None else home.host
        )


def _read(file: Path, manifest: Manifest) -> Glance:
    """Raises ValueError, TypeError or sqlite3.Error where Optuna has to read the file."""
    with sqlite.reading(file) as connection:
        (study_id,) = connection.execute(_ID, (manifest.name,)).fetchone()
        trials = connection.execute(_TRIALS, (RESULT, study_id)).fetchall()
        stored = dict(connection.execute(_ATTRIBUTES, (study_id,)).fetchall())
        odd = [connection.execute(_NO_JSON.format(table=at, column=key)).fetchone()[0] for at, key in _JSON.items()]
        if any(odd) or not sqlite.is_of_this_release(connection):
            raise ValueError("it is not as Optuna writes it")
    if any(state not in _FINISHED and (state not in _UNFINISHED or told) for state, told in trials):
        raise ValueError("a trial has ended, and nobody recorded it")
    num_recorded = sum(state == "COMPLETE" and bool(told) for state, told in trials)
    attributes = {key: json.loads(text) for key, text in stored.items()}
    return Glance(manifest, num_recorded, STUDY.current(attributes, manifest.schema_))
