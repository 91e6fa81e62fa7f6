"""Commands in this process, and what each fault has to end in: one sentence that acts on nothing."""

from __future__ import annotations

import os
from pathlib import Path

from typer.testing import CliRunner, Result

from autotune.cli import app

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\rfaster: \u202egnp"
"""Sets a title, clears the screen, hides what came before and turns the direction of text."""


def command(*arguments: str) -> Result:
    """A command in this process: for what does not get as far as measuring."""
    return CliRunner().invoke(app, list(arguments), color=True)


def refused(result: Result, *words: str, code: int = 2) -> None:
    """The exit status, one sentence with these words, nothing on stdout, and no control character."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr
    assert acts_on_nothing(result.stderr)


def acts_on_nothing(text: str) -> bool:
    return not any(each in text for each in "\x1b\x07\x9b\r\u202e")


def a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
