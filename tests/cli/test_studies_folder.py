"""`studies`: the list, and the removal of what the tool made, and of nothing else."""

from __future__ import annotations

import json

import pytest

from autotune.cli import studies_folder
from autotune.study.folder import FolderStudies
from tests.asking import ask
from tests.conftest import with_latency


@pytest.fixture
def folder(make_study, measurement, tmp_path):
    """Two studies: `full` has a measurement, `empty` has none."""
    for name in ("full", "empty"):
        study = make_study(name)
        if name == "full":
            with study.writing():
                study.tell(ask(study, 1), with_latency(measurement, 0.008))
        study.close()
    return tmp_path / "studies"


def test_the_list_has_a_header_date_and_size(folder, cli):
    """As a table for people, as a list for scripts."""
    header, *rows = cli("studies").stdout.splitlines()
    assert header.split() == ["study", "created", "trials", "size", "verdict", "speed-up", "model"]
    assert [row.split()[:3] for row in rows] == [["empty", "2026-01-01", "0"], ["full", "2026-01-01", "1"]]
    listed = json.loads(cli("studies", "--json").stdout)
    assert [each["study"] for each in listed] == ["empty", "full"]
    assert all(each["size_bytes"] > 10_000 and each["speedup"] is None for each in listed)


def test_rm_removes_a_study_and_leaves_what_a_user_put_there(folder, cli):
    """Notes, and links with what they lead to, stay; so does the other study."""
    (folder / "full" / "notes.txt").write_text("mine")
    (folder / "full" / "trials" / "mine.txt").write_text("mine")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "weights.pt").write_text("mine")
    (folder / "full" / "caches").symlink_to(folder / "elsewhere")
    result = cli("studies", "rm", "full", "--yes")
    assert (result.returncode, result.stdout) == (0, "removed full; not removed: caches, notes.txt, trials\n")
    assert sorted(path.name for path in (folder / "full").iterdir()) == ["caches", "notes.txt", "trials"]
    assert (folder / "elsewhere" / "weights.pt").exists()
    assert [each["study"] for each in json.loads(cli("studies", "--json").stdout)] == ["empty"]


def test_nothing_of_a_removed_study_is_left(folder, tune_fake, cli):
    """A study that was run goes with its trials, confirmation and lock; a broken one can be removed as well."""
    assert tune_fake("--trials", "2").returncode == 0
    (folder / "full" / "study.db").write_bytes(b"broken")
    assert cli("studies", "rm", "s", "full", "--yes").returncode == 0
    assert [path.name for path in folder.iterdir()] == ["empty"]


def test_a_person_is_asked_first(folder, cli, monkeypatch):
    """A no removes nothing; where nobody can be asked, nothing is removed without `--yes`."""
    refusal = cli("studies", "rm", "full")
    assert (refusal.returncode, "give --yes" in refusal.stderr) == (2, True)
    monkeypatch.setattr(studies_folder, "_is_agreed", lambda question: question != "remove 1 study?")
    assert cli("studies", "rm", "full").returncode == 1
    assert (folder / "full" / "study.db").exists()


def test_the_folder_may_stand_before_or_after_the_verb(folder, cli, tmp_path):
    """What is removed is never looked for in another folder than the one that was named."""
    folder.rename(tmp_path / "other")
    assert cli("studies", "rm", "full", "--yes").returncode == 2
    assert cli("studies", "--studies-dir", "other", "rm", "full", "--yes").returncode == 0
    assert cli("studies", "rm", "empty", "--yes", "--studies-dir", "other").stdout == "removed empty\n"


@pytest.mark.parametrize("name", ["nobody", "..", "../studies", "full/trials"])
def test_only_a_study_can_be_removed(folder, cli, name):
    """Neither another folder nor what is above; and nothing is removed if one of several names is wrong."""
    assert cli("studies", "rm", "empty", name, "--yes").returncode == 2
    assert (folder / "empty" / "manifest.json").exists()


def test_a_study_in_use_stays(folder, make_study):
    """Another process tunes it."""
    study = make_study("busy")
    with study.writing(), pytest.raises(Exception, match="is being tuned by another process"):
        FolderStudies(folder).remove("busy")
    assert (folder / "busy" / "study.db").exists()
    study.close()
