"""What earlier commits wrote is read: studies and exports of each schema, through each command that reads them.

`older/COMMIT-FRAMEWORK/` holds the manifest of a study and its database as SQL, and what was exported from it.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autotune.answer.export import export
from autotune.backends.capabilities import require
from autotune.backends.registry import load_backend
from autotune.errors import StoreError
from autotune.measure.statistics import Verdict
from autotune.study.earlier import STUDY
from autotune.study.folder import FolderStudies
from autotune.tuned.tuned_config import load_tuned
from autotune.tuning.priors import read_prior

OLDER = Path(__file__).with_name("older")
STUDIES = sorted(path.parent.name for path in OLDER.glob("*/manifest.json"))
PROVEN = [name for name in STUDIES if (OLDER / name / "best.yaml").exists()]
EXPORTS = sorted(OLDER.glob("*/best.yaml"))


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of studies with the one that the test is about, under its own name."""
    place = OLDER / request.param
    manifest = (place / "manifest.json").read_bytes()
    study = tmp_path / "studies" / json.loads(manifest)["name"]
    study.mkdir(parents=True)
    (study / "manifest.json").write_bytes(manifest)
    with closing(sqlite3.connect(study / "study.db")) as database:
        database.executescript(gzip.decompress((place / "study.sql.gz").read_bytes()).decode())
    return tmp_path / "studies"


@pytest.fixture
def study(folder: Path) -> Iterator[object]:
    studies = FolderStudies(folder)
    opened = studies.open(studies.names()[0])
    yield opened
    opened.close()


@pytest.mark.parametrize("folder", STUDIES, indirect=True)
def test_every_part_is_read(study):
    """Each record of each trial, and each value that is stored with the study."""
    assert [record.number for record in study.records()] == list(range(len(study.records())))
    kept = {name: getattr(study, name) for name in ("budget", "noise_floor", "confirmation", "blocks", "answers")}
    assert kept["budget"] is not None
    assert kept["noise_floor"] is not None
    assert study.untuned_record() is not None


@pytest.mark.fast_cases("d891b8d")
@pytest.mark.parametrize("folder", STUDIES, indirect=True)
@pytest.mark.parametrize("command", ["show", "show --json", "explain", "studies", "export"])
def test_each_command_that_reads_takes_it(folder, cli, command):
    """No command ends in a traceback or in a mistake of its user; what was exported has the verdict of then."""
    verb, *options = command.split()
    (name,) = FolderStudies(folder).names()
    result = cli(verb, *([] if verb == "studies" else [name]), *options)
    assert "Traceback" not in result.stderr
    if verb == "export" and Verdict.FASTER.value not in cli("studies", "--json").stdout:
        return
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("folder", PROVEN, indirect=True)
def test_an_export_says_what_it_said_then(study, request, tmp_path):
    """The same config, verdict and figures, whoever exports it."""
    then = load_tuned(OLDER / request.node.callspec.params["folder"] / "best.yaml")
    now = export(study, tmp_path / "best.yaml")
    assert (now.config, now.verdict, now.evidence.speedup) == (then.config, then.verdict, then.evidence.speedup)
    assert now.evidence.best == then.evidence.best


@pytest.mark.parametrize("folder", PROVEN, indirect=True)
def test_a_study_is_a_prior(folder):
    """Its winner comes first."""
    studies = FolderStudies(folder)
    (name,) = studies.names()
    with closing(studies.open(name)) as study:
        winner = study.record(study.confirmation.candidate).config
    assert read_prior(name, studies).configs[0] == winner


@pytest.mark.parametrize("folder", [name for name in STUDIES if name.startswith("d891b8d")], indirect=True)
@pytest.mark.parametrize("verb", ["resume", "tune"])
def test_a_study_of_an_earlier_schema_does_not_go_on(folder, cli, verb, model_file, space_file):
    """The sentence says by what it was written, and what to do."""
    (name,) = FolderStudies(folder).names()
    asked = ("--model", "tiny_model.py:tiny", "--framework", "fake", "--device", "cpu", "--space", str(space_file))
    result = cli("resume", name) if verb == "resume" else cli("tune", *asked, "--study", name)
    assert result.returncode == 2
    assert f"study {name!r} cannot go on: it was written by autotune 0.1.0 of 2026-11-28, schema 3;" in result.stderr
    assert f"--prior {name}" in result.stderr


@pytest.mark.fast_cases("d891b8d", "cb692359")
@pytest.mark.parametrize("folder", STUDIES, indirect=True)
def test_show_says_by_what_it_was_written(folder, cli, study):
    """Where that is an earlier schema, which cannot be resumed; nothing is said of the present one."""
    told = cli("show", study.name).stdout
    assert ("schema 3; this is" in told) is (study.manifest.schema_ < STUDY.schema)
    assert study.manifest.schema_ == STUDY.schema or f"resume {study.name}" not in told


@pytest.mark.parametrize("folder", ["a3425a6e-fake"], indirect=True)
def test_a_study_of_several_ranks_is_refused_in_a_sentence(folder, cli):
    """Their trials are not comparable with any that can be made now; one rank is what all others are."""
    (path,) = folder.glob("*/manifest.json")
    written = json.loads(path.read_text())
    assert written["workload"]["ranks"] == 1
    path.write_text(json.dumps({**written, "workload": {**written["workload"], "ranks": 2}}))
    result = cli("show", written["name"])
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    assert "key ranks: trials of 2 ranks are not read any more" in result.stderr


@pytest.mark.parametrize("folder", ["a3425a6e-fake"], indirect=True)
def test_a_study_that_a_sampler_of_optuna_began_is_read(folder):
    """What chose its configs is no part of it any more."""
    (path,) = folder.glob("*/manifest.json")
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, "sampler": "TPESampler"}))
    with closing(FolderStudies(folder).open(written["name"])) as opened:
        assert opened.records()


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.parent.name)
def test_an_export_is_read(path, tmp_path):
    """As jobs and commands read it, and as a prior; written again it is read again."""
    tuned = load_tuned(path)
    tuned.write(tmp_path / "again.yaml")
    assert load_tuned(tmp_path / "again.yaml") == tuned
    assert read_prior(str(path), FolderStudies(tmp_path)).configs == (tuned.config,)


@pytest.mark.torch
@pytest.mark.parametrize("path", sorted(OLDER.glob("*/calls.*")), ids=lambda path: path.name)
def test_recorded_calls_are_read(path):
    """Tensors, containers and texts are those of the job."""
    first = require(load_backend("torch").calls_file, "calls").read(path)[0]
    assert first.positional[0].sum() == 15
    assert str(first.keyword["mask"]["keep"][0].dtype) == "torch.bool"


def test_a_study_is_refused_for_one_trial_that_cannot_be_read_with_what_wrote_it(tmp_path):
    """A key that is not known and says something is named; one that is null says nothing."""
    place = OLDER / "a3425a6e-fake"
    study = tmp_path / "fake"
    study.mkdir()
    (study / "manifest.json").write_bytes((place / "manifest.json").read_bytes())
    sql = gzip.decompress((place / "study.sql.gz").read_bytes()).decode()
    for value, is_read in (("null", True), ("3", False)):
        (study / "study.db").unlink(missing_ok=True)
        with closing(sqlite3.connect(study / "study.db")) as database:
            database.executescript(sql.replace('"kind": "measurement"', f'"kind": "measurement", "zeal": {value}'))
        with closing(FolderStudies(tmp_path).open("fake")) as opened:
            if is_read:
                assert opened.records()
            else:
                with pytest.raises(StoreError, match=r"key measurement\.zeal: unknown key \(written by autotune 0"):
                    opened.records()
