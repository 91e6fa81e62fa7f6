"""`tune --config FILE`: flags that a team sets once."""

from __future__ import annotations

import pytest
import typer.main

from autotune.cli import app, team_defaults


@pytest.fixture
def lines_of(tune_fake):
    """The lines of a dry run, by their first word."""

    def lines_of(*flags):
        result = tune_fake("--dry-run", *flags)
        assert result.returncode == 0, result.stderr
        return dict(line.split(maxsplit=1) for line in result.stdout.splitlines())

    return lines_of


def test_what_is_typed_counts_most(lines_of, tmp_path, monkeypatch):
    """Flag, then environment variable, then --config; a dry run says where each came from."""
    (tmp_path / "tune.yaml").write_text("trials: 4\nstudies_dir: configured\njobs: 2\nobjective: p90\n")
    said = lines_of("--config", "tune.yaml")
    assert said["configs"].endswith("trials: 4 at most")
    assert "--trials from tune.yaml" in said["settings"]
    assert "--objective from tune.yaml" in said["settings"]
    monkeypatch.setenv("AUTOTUNE_JOBS", "1")
    said = lines_of("--config", "tune.yaml", "--trials", "5")
    assert said["configs"].endswith("trials: 5 at most")
    assert "--jobs from AUTOTUNE_JOBS" in said["settings"]
    assert "--trials" not in said["settings"]


@pytest.mark.parametrize(
    ("text", "words", "tip"),
    [
        ("trails: 4", "tune.yaml: key trails: no such flag", "did you mean trials?"),
        ("trials: many", "tune.yaml: key trials: ", None),
        ("trials: 0", "tune.yaml: key trials: ", None),
        ("trials: true", "tune.yaml: key trials: takes text or a number", None),
        ("trials: [1, 2]", "tune.yaml: key trials: takes one value", None),
        ("quiet: 7", "tune.yaml: key quiet: takes true or false", None),
        ("json: true", "tune.yaml: key json: no such flag", None),
        ("storage: postgresql://me@127.0.0.1/x", "tune.yaml: key storage: no file names a server", "give --storage"),
        ("'on': ray", "tune.yaml: key on: no file names a server", "give --on yourself"),
        ("trials: 0x" + "f" * 50, "tune.yaml: key trials: the number is too large", None),
        ('study: "a\\u0000"', "null characters", None),
        ("- trials", "tune.yaml: ", None),
    ],
)
def test_a_mistake_names_file_and_key(tune_fake, tmp_path, text, words, tip):
    """One sentence, exit status 2, and nothing is made."""
    (tmp_path / "tune.yaml").write_text(text + "\n")
    result = tune_fake("--config", "tune.yaml")
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    assert words in result.stderr
    assert tip is None or tip in result.stderr
    assert not (tmp_path / "studies").exists()


def test_a_mistake_is_a_document_too(tune_fake, tmp_path):
    """With --json."""
    (tmp_path / "tune.yaml").write_text("budgett: 5m\n")
    result = tune_fake("--json", "--config", "tune.yaml")
    assert result.returncode == 2
    assert "tune.yaml: key budgett: no such flag" in result.stdout
    assert "did you mean budget?" in result.stdout


def test_a_folder_decides_nothing(lines_of, cli, tmp_path):
    """A file that nobody named is not read: no server is called that it names, and no flag is taken from it."""
    (tmp_path / "pyproject.toml").write_text('[tool.autotune]\nstorage = "postgresql://me@127.0.0.1:1/x"\ntrials = 3\n')
    assert not lines_of()["configs"].endswith("trials: 3 at most")
    assert cli("studies").returncode == 0


def test_every_flag_is_decided_on():
    """A new flag of `tune` may stand in a file unless it is a server, or is about this one call."""
    parameters = typer.main.get_command(app).commands["tune"].params
    flags = {max(each.opts, key=len).lstrip("-") for each in parameters if each.param_type_name == "option"}
    assert {"storage", "on"} == team_defaults._SERVERS
    assert flags - {"help-all", "config", "dry-run", "json"} == team_defaults._FIELDS.keys() | team_defaults._SERVERS
