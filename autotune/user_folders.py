"""Where a user's own files are, by https://specifications.freedesktop.org/basedir-spec/latest/."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TRUSTED = "trusted"
"""Key of the user's own file: folders in which, and below which, a study is as good as the user's own."""


def user_file() -> Path | None:
    """Where the user's own settings are, whether there are any or not; None for a user without a home."""
    folder = _folder("XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / "config.toml"


def is_trusted(folder: Path) -> bool:
    """Whether the user's own file trusts the folder, wherever it really lies. Raises InputError for a broken file."""
    path = user_file()
    if path is None or not os.path.isfile(path):
        return False
    from autotune.errors import InputError
    from autotune.files import parse_toml, read_file

    given = parse_toml(path, read_file(path)).get(TRUSTED, [])
    trusted = [os.path.expanduser(str(each)) for each in given] if isinstance(given, list) else [""]
    if not all(map(os.path.isabs, trusted)):
        tip = f'write e.g. {TRUSTED} = ["/home/me/project"]'
        raise InputError(f"{path}: key {TRUSTED}: is not a list of absolute paths", tip=tip)
    place = Path(os.path.realpath(folder))
    return any(Path(os.path.realpath(each)) in (place, *place.parents) for each in trusted)


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
