"""`Database`: where a study's records are kept; and `SqliteDatabase`, a file in the study's folder.

The other kind is `shared.database.SharedDatabase`, for several machines.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from optuna.storages import RDBStorage

from autotune.study import own_files, storage
from autotune.study.manifest import read_manifest
from autotune.study.shared.home import StudyHome
from autotune.study.shared.url import StorageUrl

DEFAULT_STUDIES_DIR = Path("studies")


class Database(Protocol):
    """What a study needs of the place where its records are. Its text names that place."""

    locks_out_hosts: bool
    """Whether `exclusive` keeps out the processes of other machines as well."""

    @property
    def storage(self) -> RDBStorage:
        """Optuna's."""

    @property
    def url(self) -> StorageUrl | None:
        """The storage that several machines share; None: a file of this machine."""

    @property
    def home(self) -> StudyHome | None:
        """Where the evidence of a shared study is; None: beside its records."""

    @property
    def flags(self) -> str:
        """What a command needs to find the study."""

    def errors(self) -> AbstractContextManager[None]:
        """Whatever goes wrong inside comes out as a StoreError that names the place and says what to do."""

    def require_writable(self) -> None:
        """Raises StoreError where trials of the study cannot be run."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other processes from running trials. Raises StoreError if one does."""

    def require_exclusive(self) -> None:
        """Raises StoreError if another process could have come in since `exclusive` began."""

    def manifest_id(self) -> str:
        """The id of the study that has the name now."""

    def forget(self) -> None:
        """Remove the records, so far as clearing the study's folder does not."""


class SqliteDatabase:
    """`study.db` in the study's folder."""

    locks_out_hosts = False
    url: StorageUrl | None = None
    home: StudyHome | None = None

    def __init__(self, folder: Path, opened: RDBStorage) -> None:
        self._folder = folder
        self._file = folder / "study.db"
        self.storage = opened

    def __str__(self) -> str:
        return str(self._file)

    @property
    def flags(self) -> str:
        studies_dir = self._folder.parent
        return "" if studies_dir == DEFAULT_STUDIES_DIR else f" --studies-dir {shlex.quote(str(studies_dir))}"

    def errors(self) -> AbstractContextManager[None]:
        return storage.storage_errors(self._file)

    def require_writable(self) -> None:
        storage.require_writable(self._file)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with storage.exclusive(self._folder / own_files.LOCK):
            yield

    def require_exclusive(self) -> None:
        """The kernel holds the lock for as long as the process lives."""

    def manifest_id(self) -> str:
        return read_manifest(self._folder / "manifest.json").id

    def forget(self) -> None:
        """The file goes with the folder's other files."""
