"""Where a user's own files are, by https://specifications.freedesktop.org/basedir-spec/latest/."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def config_folder() -> Path | None:
    """Folder of the user's settings; None where the user has no home, and the environment names no folder."""
    return _folder("XDG_CONFIG_HOME", ".config")


def cache_folder() -> Path | None:
    """Folder of what can be made again; None where there is no home and no variable names one."""
    return _folder("XDG_CACHE_HOME", ".cache")


_remembered: set[str] = set()


def remember(word: str) -> None:
    """Keep a word, a plain name of a file, that this user is known by later: in this process, and on this machine where
    that can be written."""
    _remembered.add(word)
    folder = cache_folder()
    if folder is not None:
        with suppress(OSError):
            (folder / "known").mkdir(parents=True, exist_ok=True)
            (folder / "known" / word).touch()


def is_remembered(word: str) -> bool:
    """Whether this user has kept the word."""
    folder = cache_folder()
    return word in _remembered or (folder is not None and os.path.exists(folder / "known" / word))


def _folder(variable: str, usual: str) -> Path | None:
    given = os.environ.get(variable, "")
    if os.path.isabs(given):
        return Path(given) / "autotune"
    home = os.path.expanduser("~")  # The text itself, where there is neither HOME nor an entry for the user.
    return Path(home, usual, "autotune") if os.path.isabs(home) else None
