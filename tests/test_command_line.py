"""How the tool was called is how it says to call it."""

from __future__ import annotations

import shutil
import sys

import pytest

from autotune.command_line import called_as, command
from tests.conftest import REPOSITORY


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A console script `autotune` in a folder on the PATH."""
    script = tmp_path / "bin" / "autotune"
    script.parent.mkdir()
    script.write_text("")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    return script


def test_the_checkouts_script_is_called_from_where_the_user_stands(monkeypatch, tmp_path):
    """`cli.py` with the path that was typed; a user's own file of that name is another program."""
    monkeypatch.chdir(REPOSITORY)
    assert called_as("cli.py") == "python cli.py"
    assert called_as(str(REPOSITORY / "cli.py")) == f"python {REPOSITORY / 'cli.py'}"
    (tmp_path / "cli.py").write_text("")
    assert called_as(str(tmp_path / "cli.py")) == "python -m autotune"


def test_the_console_script_is_called_by_its_name_where_the_path_finds_it(installed, tmp_path):
    """A script that is not on the PATH is called by its place, quoted for a shell."""
    assert called_as(str(installed)) == "autotune"
    elsewhere = tmp_path / "my tools" / "autotune"
    elsewhere.parent.mkdir()
    shutil.copy(installed, elsewhere)
    assert called_as(str(elsewhere)) == f"'{elsewhere}'"


@pytest.mark.parametrize("program", ["", "-c", "train.py", "ipykernel_launcher.py", str(REPOSITORY / "autotune")])
def test_any_other_program_is_told_the_module(program):
    """A job, a notebook, and `python -m autotune` itself, of which `__main__.py` is the program."""
    assert called_as(program) == "python -m autotune"


def test_words_are_quoted(monkeypatch):
    """A command can be pasted into a shell as it is printed."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert command("show", "s", "--studies-dir", "my studies") == "python -m autotune show s --studies-dir 'my studies'"
