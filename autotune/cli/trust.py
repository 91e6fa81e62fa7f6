"""What a file of flags may decide, by who wrote it.

Whoever stands in a folder has not thereby read its files. `[tool.autotune]` of the current folder's `pyproject.toml`
decides what is searched for and how long, and nothing that reaches further: no server, which would be sent the user's
password; no code, no variables and no number of processes; no path elsewhere. A file that is named with `--config`
decides all but servers. The user's own file decides everything, and names the folders whose files may as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.command_line import flag
from autotune.question.question import FileOf, fields_for
from autotune.user_folders import TRUSTED, lies_in, user_file


def _flags(*by: FileOf) -> frozenset[str]:
    return frozenset(flag(field).lstrip("-") for field in fields_for(*by))


OF_A_PROJECT = _flags("anybody")
"""Flags that a file in any folder may set: they choose among what is there."""
INSIDE_A_PROJECT = _flags("anybody, inside")
"""Likewise, as long as what they name lies in the file's own folder."""
OF_A_NAMED_FILE = _flags("anybody", "anybody, inside", "a named file")
"""Flags that a file may set which the user has named: it is as if they were typed. No server is among them."""


@dataclass(frozen=True)
class FlagFile:
    """A file of flags."""

    path: Path
    prefix: str
    """What stands before its keys in a sentence."""
    may: frozenset[str] | None
    """The flags that it sets; None: every flag."""
    inside: frozenset[str] = frozenset()
    """Settings that name something in the file's own folder."""

    def ignores(self, flag: str, value: object) -> bool:
        """Whether this file may not set the flag to the value."""
        if self.may is None:
            return False
        return flag not in self.may or (flag in self.inside and not self._holds(value))

    def _holds(self, value: object) -> bool:
        folder = Path(os.path.realpath(self.path.parent))
        paths = [os.path.expanduser(str(path)) for path in (value if isinstance(value, list) else [value])]
        named = [Path(os.path.realpath(folder / path)) for path in paths]
        return all(path == folder or folder in path.parents for path in named)

    def sentence(self, flags: Sequence[str]) -> str:
        """That these flags of the file are ignored, and the way out."""
        keys = ", ".join(self.prefix + flag for flag in flags)
        typed = ", ".join(f"--{flag}" for flag in flags)
        own = user_file()
        folder = json.dumps(str(_home_of(self.path)), ensure_ascii=False)
        trusting = f", or write {TRUSTED} = [{folder}] into {own}" if own else ""
        return (
            f"{self.path}: ignored {keys}: a folder that you do not trust decides no server, code, variable, number of "
            f"processes or path elsewhere; give {typed} yourself{trusting}"
        )


def of_the_project(path: Path, trusted: Sequence[Path]) -> FlagFile:
    """`[tool.autotune]` in the current folder."""
    is_trusted = lies_in(_home_of(path), trusted)
    may = None if is_trusted else OF_A_PROJECT | INSIDE_A_PROJECT
    return FlagFile(path, "tool.autotune.", may, INSIDE_A_PROJECT)


def of_the_command_line(path: Path, trusted: Sequence[Path]) -> FlagFile:
    """A file that is given with `--config`."""
    return FlagFile(path, "", None if lies_in(_home_of(path), trusted) else OF_A_NAMED_FILE)


def of_the_user(path: Path) -> FlagFile:
    """The user's own file."""
    return FlagFile(path, "", None)


def _home_of(path: Path) -> Path:
    """The folder of the file itself, where the path is a link to it."""
    return Path(os.path.realpath(path)).parent
