"""`tune --config FILE` and `[tool.autotune]`: flags that a team sets once."""

from __future__ import annotations

import pytest


@pytest.fixture
def lines_of(tune_fake):
    """The lines of a dry run, by their first word."""

    def lines_of(*flags):
        result = tune_fake("--dry-run", *flags)
        assert result.returncode == 0, result.stderr
        return dict(line.split(maxsplit=1) for line in result.stdout.splitlines())

    return lines_of


def test_what_is_typed_counts_most(lines_of, tmp_path, monkeypatch):
    """Flag, then environment variable, then --config, then pyproject.toml; a dry run says where each came from."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.autotune]\ntrials = 3\nstudies-dir = "project"\njobs = 1\nobjective = ["p90"]\n'
    )
    assert lines_of()["configs"].endswith("trials: 3 at most")
    (tmp_path / "tune.yaml").write_text("trials: 4\nstudies_dir: configured\n")
    said = lines_of("--config", "tune.yaml")
    assert said["configs"].endswith("trials: 4 at most")
    assert "--trials from tune.yaml" in said["settings"]
    assert "--objective from pyproject.toml" in said["settings"]
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


def test_a_mistake_in_the_project_names_it_too(tune_fake, tmp_path):
    """The key with its table; with --json it is a document."""
    (tmp_path / "pyproject.toml").write_text("[tool.autotune]\nbudgett = '5m'\n")
    result = tune_fake("--json")
    assert result.returncode == 2
    assert "pyproject.toml: key tool.autotune.budgett: no such flag" in result.stdout
    assert "did you mean budget?" in result.stdout


def test_all_commands_find_the_projects_studies(cli, tmp_path):
    """The folder of studies holds for each command; other flags are those of tune alone."""
    (tmp_path / "pyproject.toml").write_text('[tool.autotune]\nstudies-dir = "elsewhere"\ntrials = 3\n')
    assert "elsewhere" in cli("show", "nothing").stderr


def test_another_tools_project_is_left_alone(cli, tmp_path):
    """A pyproject.toml without the table is not even parsed."""
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nthis is no TOML\n")
    assert cli("studies").returncode == 0
