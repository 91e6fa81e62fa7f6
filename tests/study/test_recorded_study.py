"""A study that an earlier version made still opens, shows, exports and resumes.

`recorded/` is what the flat package of autotune 0.1.0 (commit 389d0f5) left of `tune` on the `fake` framework, with its
`show --json` and its export. Only what names a machine was replaced, and the reference was written anew, in the form
that has names and forms of outputs and for the inputs that are made up since. A change that this test refuses would
break the studies that users have.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml

from autotune.answer.export import export
from autotune.answer.result import StudyResult
from autotune.environment import describe
from autotune.render.json import document
from autotune.study.folder import FolderStudies
from autotune.study.records import StopReason

RECORDED = Path(__file__).with_name("recorded")
STUDY = "earlier"
PROJECT = "/home/user/project"
"""Where it was recorded."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder of studies of a copy."""
    shutil.copytree(RECORDED, tmp_path, dirs_exist_ok=True)
    return tmp_path / "studies"


@pytest.fixture
def moved(copied: Path, tmp_path: Path) -> Path:
    """The same as if it had been recorded in the test's folder on this machine, so that trials can be run."""
    folder = copied / STUDY
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(PROJECT, str(tmp_path)))
    here = describe(device="fake", variables={})
    machine = {"processor": here.processor, "num_cores": here.num_cores, "inherited": here.inherited}
    with sqlite3.connect(folder / "study.db") as database:
        rows = "select trial_user_attribute_id, value_json from trial_user_attributes where key = 'result'"
        for row, text in database.execute(rows).fetchall():
            content = json.loads(text.replace(PROJECT, str(tmp_path)))
            content["outcome"].get("environment", {}).update(machine)
            change = "update trial_user_attributes set value_json = ? where trial_user_attribute_id = ?"
            database.execute(change, (json.dumps(content), row))
    database.close()
    return copied


@pytest.fixture
def study(copied):
    opened = FolderStudies(copied).open(STUDY)
    yield opened
    opened.close()


def test_every_stored_part_is_read(study):
    """What a study keeps beside its trials has the same names and the same form as then."""
    assert study.budget.num_trials == len(study.records())
    assert study.stop_reason is StopReason.TRIALS
    assert study.noise_floor.spread > 0
    assert study.confirmation.verdict == "faster"
    assert study.early_stop is None


def test_it_shows_what_it_showed(study):
    """Each key of the JSON document of then has the value of then; further keys may have come since."""
    then = json.loads((RECORDED / "show.json").read_text())
    now = json.loads(json.dumps(document(study.manifest, StudyResult(study))))
    assert reduced_to(then, now) == then


def reduced_to(then, now):
    """`now` without the keys that came since."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {key: reduced_to(value, now[key]) for key, value in then.items() if key in now}
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [reduced_to(old, new) for old, new in zip(then, now, strict=True)]
    return now


def test_it_exports_what_it_exported(study, tmp_path):
    """The YAML file of then, to the last key, and those that came since."""
    then = yaml.safe_load((RECORDED / "best.yaml").read_text())
    then["environment"]["vector_instructions"] = None
    then["evidence"] |= {"not_compared": [], "not_varied": []}
    then["workload"]["inputs"] = None
    then["workload"]["signature"] |= {"compare": None, "records_gradients": False}
    export(study, tmp_path / "now.yaml")
    now = yaml.safe_load((tmp_path / "now.yaml").read_text())
    assert now == then


def test_it_is_shown_on_the_command_line(cli, moved):
    """`show` prints its table and its verdict."""
    result = cli("show", STUDY)
    assert result.returncode == 0, result.stderr
    assert "faster: " in result.stdout


@pytest.mark.slow
def test_it_resumes(cli, moved):
    """Further trials are added to those of then, and a new verdict is made."""
    opened = FolderStudies(moved).open(STUDY)
    num_trials = opened.num_recorded()
    opened.close()
    result = cli("resume", STUDY, "--trials", str(num_trials + 1))
    assert result.returncode == 0, result.stderr
    opened = FolderStudies(moved).open(STUDY)
    assert opened.num_recorded() == num_trials + 1
    assert opened.confirmation.num_trials == num_trials + 1
    opened.close()
