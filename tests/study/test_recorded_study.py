"""A study that was recorded still opens, shows, exports and resumes.

`recorded/` is what `tune` on the `fake` framework left, with its `show --json` and its export, without names of a
machine. Studies of earlier schemas are in `older/` (see `test_older_studies.py`). When the schema counts up, this one
goes there, and another is recorded:

    RECORD=1 .venv/bin/pytest tests/study/test_recorded_study.py -k record_it
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
import yaml

from autotune.answer.export import export
from autotune.answer.result import StudyResult
from autotune.environment import boot_id, describe, hostname
from autotune.render.json import document
from autotune.study.folder import FolderStudies
from tests.conftest import REPOSITORY

RECORDED = Path(__file__).with_name("recorded")
STUDY = "earlier"
PROJECT = "/home/user/project"
"""Where it was recorded."""
TOOL = "/home/user/autotune"
"""Where the tool was."""


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
    machine = here.model_dump(include={"processor", "vector_instructions", "num_cores", "inherited"})
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


def test_it_shows_what_it_showed(study):
    """The JSON document of then."""
    then = json.loads((RECORDED / "show.json").read_text())
    now = json.loads(json.dumps(document(StudyResult(study))))
    assert now == then


def test_it_exports_what_it_exported(study, tmp_path):
    """The YAML file of then, to the last key."""
    then = yaml.safe_load((RECORDED / "best.yaml").read_text())
    export(study, tmp_path / "now.yaml")
    now = yaml.safe_load((tmp_path / "now.yaml").read_text())
    assert now == then


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


@pytest.mark.skipif("RECORD" not in os.environ, reason="formats are as they were recorded")
def test_record_it(cli, tmp_path, budget_file):
    """Tune, show and export in an empty folder; then no path and no name of this machine is left."""
    for name in ("tiny_model.py", "fake_space.yaml"):
        shutil.copy(RECORDED / name, tmp_path)
    asked = ("--model", "tiny_model.py:tiny", "--framework", "fake", "--device", "cpu", "--space", "fake_space.yaml")
    assert cli("tune", *asked, "--study", STUDY, "--trials", "3", "--budget", str(budget_file)).returncode == 0
    (tmp_path / "show.json").write_text(json.dumps(json.loads(cli("show", STUDY, "--json").stdout), indent=2) + "\n")
    assert cli("export", STUDY, "-o", "best.yaml").returncode == 0
    names = {str(tmp_path): PROJECT, hostname(): "host", boot_id(): "00000000-0000-0000-0000-000000000000"}
    shutil.rmtree(RECORDED / "studies")
    kept = ("manifest.json", "reference.npz", "outcome.json", "request.json", "stderr.txt")
    for path in (tmp_path / "studies" / STUDY).rglob("*"):
        if path.name in kept and path.stat().st_size and path.relative_to(tmp_path).parts[2] in ("trials", path.name):
            place = RECORDED / path.relative_to(tmp_path)
            place.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes().replace(str(tmp_path).encode(), PROJECT.encode())
            place.write_bytes(content.replace(str(REPOSITORY).encode(), TOOL.encode()))
    for name in ("show.json", "best.yaml"):
        (RECORDED / name).write_text((tmp_path / name).read_text().replace(str(tmp_path), PROJECT))
    with sqlite3.connect(tmp_path / "studies" / STUDY / "study.db") as database:
        for table in ("study_user_attributes", "trial_user_attributes"):
            for pair in names.items():
                database.execute(f"update {table} set value_json = replace(value_json, ?, ?)", pair)
    database.execute("vacuum into ?", (str(RECORDED / "studies" / STUDY / "study.db"),))
    database.close()
