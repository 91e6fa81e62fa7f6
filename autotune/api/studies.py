"""`studies_at`: where the studies are that a command line or a Python program names."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from autotune.own_folders import named
from autotune.study.folder import FolderStudies
from autotune.study.shared.studies import SharedStudies
from autotune.study.shared.url import chosen_storage
from autotune.study.study import Studies
from autotune.user_folders import is_trusted


def studies_at(studies_dir: str | PathLike[str], storage: str | None = None) -> Studies:
    """The studies in a folder, or in the database that `storage`, or else the environment, names. Raises InputError.

    The only place that knows of both kinds.
    """
    folder, url = Path(studies_dir), chosen_storage(storage)
    if folder.is_symlink() and is_trusted(folder.parent):
        folder = named(folder.absolute())
    return FolderStudies(folder) if url is None else SharedStudies(folder, url)
