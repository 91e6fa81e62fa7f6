"""`Storage`: studies that several machines share, behind a door (`autotune.storages`): by the scheme of a URL."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from pathlib import Path

from autotune.doors import Door
from autotune.errors import InputError, marked
from autotune.study.folder import FolderStudies
from autotune.study.study import Studies

VARIABLE = "AUTOTUNE_STORAGE"
"""Environment variable that names the storage where no option does. The command line reads it as well."""


class Storage(ABC):
    """A kind of place for records. The evidence of a study is in a folder all the same."""

    @abstractmethod
    def studies(self, folder: Path, url: str) -> Studies:
        """The studies there. Raises InputError, which repeats nothing of the URL that may be a password."""


STORAGES = Door("autotune.storages", "storage", Storage)


def url_given(storage: str | None) -> str | None:
    """What the user gives, else the environment. None: an empty text, or nothing; studies are folders then."""
    return (os.environ.get(VARIABLE) if storage is None else storage) or None


def studies_in(folder: Path, storage: str | None) -> Studies:
    """The studies in the storage that is given, or in the folder. Raises InputError."""
    url = url_given(storage)
    if url is None:
        return FolderStudies(folder)
    scheme = re.match(r"([a-z][a-z0-9-]*)(\+\w+)?://", url)
    if scheme is None:
        raise InputError(f"{marked('storage')}: not the URL of a database", tip=STORAGES.tip())
    found = STORAGES.find(scheme[1])
    if found is None:
        here = f"a study of one machine needs no {marked('storage')}: {marked('studies_dir')} names its folder"
        tip = here if scheme[1] == "sqlite" else STORAGES.tip()
        raise InputError(f"{marked('storage', f'{scheme[0]}...')}: no storage for studies has this scheme", tip=tip)
    return found.studies(folder, url)
