"""`FolderStudies`: each study a folder of this machine, with its records in a file in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from optuna.storages import RDBStorage

from autotune import own_folders
from autotune.command_line import command, options
from autotune.errors import AutotuneError, InputError, StoreError, did_you_mean, marked
from autotune.question.question import DEFAULT_STUDIES_DIR
from autotune.study import own_files, sqlite
from autotune.study.manifest import Manifest, read_manifest
from autotune.study.marker import Home, read_marker
from autotune.study.stored_trials import create_records
from autotune.study.study import Studies, Study
from autotune.trial.folder import REQUEST_FILE

T = TypeVar("T")


class SqliteDatabase:
    """`study.db` in the study's folder."""

    locks_out_hosts = False
    home: Home | None = None
    is_here = True

    def __init__(self, folder: Path, opened: RDBStorage) -> None:
        self.name = folder.name
        self._folder = folder
        self._file = folder / "study.db"
        self.storage = opened

    def __str__(self) -> str:
        return str(self._file)

    def run(self, operation: Callable[[], T]) -> T:
        with sqlite.storage_errors(self._file):
            return operation()

    def require_writable(self) -> None:
        sqlite.require_writable(self._file)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with sqlite.exclusive(self._folder / own_files.LOCK):
            yield

    def require_exclusive(self) -> None:
        """The kernel holds the lock for as long as the process lives."""

    def manifest_id(self) -> str:
        return read_manifest(self._folder / "manifest.json").id

    def forget(self) -> None:
        """The file goes with the folder's other files."""


class FolderStudies(Studies):
    """The studies in a folder, by name. A folder without a manifest is none."""

    def __str__(self) -> str:
        return f"{self.folder}/"

    @property
    def flags(self) -> str:
        return "" if self.folder == DEFAULT_STUDIES_DIR else options(studies_dir=self.folder)

    def names(self) -> list[str]:
        own_folders.require_no_link(self.folder)
        return sorted(path.parent.name for path in self.folder.glob("*/manifest.json"))

    def manifests(self) -> Iterator[Manifest]:
        for name in self.names():
            with suppress(AutotuneError):
                yield read_manifest(self.own_folder(name) / "manifest.json")

    def require(self, name: str) -> None:
        self._require(self.own_folder(name, is_read=False), name)

    def _require(self, folder: Path, name: str) -> None:
        if os.path.lexists(folder / "manifest.json"):
            return
        _require_records_here(folder)
        known = self.names()
        start = f"there is none yet; start with `{command('tune', build='resnet18')}`"
        there_are = f"{did_you_mean(name, known)}there are: {', '.join(known)}" if known else start
        raise InputError(f"no study {name!r} in {self}", tip=there_are)

    def open(self, name: str) -> Study:
        folder = self.own_folder(name)
        self._require(folder, name)
        manifest = read_manifest(folder / "manifest.json")
        opened = sqlite.open_storage(folder / "study.db", create=False)
        return Study(self, folder, manifest, SqliteDatabase(folder, opened))

    def remove(self, name: str) -> list[Path]:
        self.require(name)
        folder, manifest = self.folder / name, None
        with suppress(AutotuneError):  # Broken, or a link, which stays.
            manifest = read_manifest(self.own_folder(name) / "manifest.json")
        with sqlite.exclusive(folder / own_files.LOCK):
            own_files.remove_study(folder, manifest)
        return own_files.what_stays(folder)

    def _exists(self, name: str) -> bool:
        return _is_whole(self.folder / name)

    def _create(self, folder: Path, manifest: Manifest) -> Study:
        own_files.require_own(folder, to_write=True)
        _require_records_here(folder)
        with sqlite.exclusive(folder / own_files.LOCK, "is being made by another `tune`"):
            if _is_whole(folder):
                raise StoreError(f"{folder} was just made by another `tune`", tip="run the same command again")
            return self._make(folder, manifest)

    def _make(self, folder: Path, manifest: Manifest) -> Study:
        """Make the study in its folder, whose lock this process has. What a process left that was killed while it did
        that goes first: nothing is in it."""
        path = folder / "study.db"
        if os.path.lexists(path):
            if not sqlite.holds_nothing(path):
                raise StoreError(
                    f"{folder} holds a study.db without a manifest.json, and not an empty one: it is not a complete "
                    "study",
                    tip=f"choose another with {marked('study', 'NAME')}, or move that folder away",
                )
            own_files.clear_creation(folder)
        opened = sqlite.open_storage(path, create=True)
        with sqlite.storage_errors(path):
            create_records(manifest, opened)
        # The manifest comes last: a folder without one is not yet a study.
        try:
            manifest.write(folder / "manifest.json")
        except OSError as error:
            raise StoreError(f"cannot write in {folder}: {error.strerror}") from None
        return Study(self, folder, manifest, SqliteDatabase(folder, opened))


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds a study, and not what is left of one whose removal was cut off: a manifest alone."""
    has_more = (folder / "study.db").exists() or any((folder / "trials").glob(f"*/{REQUEST_FILE}"))
    return has_more and (folder / "manifest.json").exists()


def _require_records_here(folder: Path) -> None:
    """Raises InputError where the folder holds the trials of a study whose records are elsewhere."""
    marker = read_marker(folder)
    if marker is not None:
        raise InputError(
            f"study {marker.study!r} has its records in {marker.storage}",
            tip=f"add {marked('storage', marker.storage)}",
        )
