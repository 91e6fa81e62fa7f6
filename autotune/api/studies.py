"""`studies_at`: where the studies are that a command line or a Python program names."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from autotune.own_folders import named
from autotune.study.storages import studies_in
from autotune.study.study import Studies
from autotune.user_folders import is_trusted


def studies_at(studies_dir: str | PathLike[str], storage: str | None = None) -> Studies:
    """The studies in a folder, or in the database that `storage`, or else the environment, names. Raises InputError."""
    folder = Path(studies_dir).expanduser()
    if folder.is_symlink() and is_trusted(folder.parent):
        folder = named(folder.absolute())
    return studies_in(folder, storage)
