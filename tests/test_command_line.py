"""How the tool was called is how it says to call it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from autotune.command_line import as_flag, called_as, command
from autotune.errors import answering, marked, worded
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


@pytest.mark.parametrize(
    ("field", "value", "flags", "arguments"),
    [
        ("fixed_precision", None, "--fixed-precision", "fixed_precision"),
        ("tolerance", 0.1, "--tolerance 0.1", "tolerance=0.1"),
        ("constraints", "p99 <= 1ms", "--constraint 'p99 <= 1ms'", "constraints='p99 <= 1ms'"),
        ("build", "{x}:f", "--model '{x}:f'", "build='{x}:f'"),
        ("space", Path("a b"), "--space 'a b'", "space='a b'"),
        ("env", {"A": "1", "B": "2"}, "--env A=1 --env B=2", "env={'A': '1', 'B': '2'}"),
        ("prior", ["one", "two"], "--prior one --prior two", "prior=['one', 'two']"),
    ],
)
def test_a_field_is_worded_for_who_is_answered(field, value, flags, arguments):
    """A flag on the command line, an argument in Python; afterwards it is as before. A text keeps what is around it."""
    text = f"give {marked(field, value)}: it is ⟪none⟫"
    assert worded(text) == f"give {arguments}: it is none"
    with answering(as_flag):
        with answering(as_flag):
            assert worded(text).startswith(f"give {flags}:")
        assert worded(text).startswith(f"give {flags}:")
    assert worded(text) == f"give {arguments}: it is none"


def test_flags_of_a_command_are_named_by_fields(monkeypatch):
    """What is not asked has no flag."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    line = command("tune", build="vit", arguments=["a=1", "b=x y"], task=None, profile=True, process_settings=False)
    assert line == "python -m autotune tune --model vit --model-arg a=1 --model-arg 'b=x y' --profile"
