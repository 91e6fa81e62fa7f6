"""`SharedStudies`: studies whose records are in a PostgreSQL database, for several machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
from pydantic import ValidationError

from autotune import own_folders
from autotune.errors import InputError, StoreError, marked
from autotune.plugins.postgres.database import HOME, MANIFEST, SharedDatabase, attributes
from autotune.plugins.postgres.storage import PatientStorage, open_storage, storage_errors
from autotune.plugins.postgres.url import StorageUrl, parse_storage
from autotune.schema import read
from autotune.study import own_files
from autotune.study.manifest import Manifest, parse_manifest
from autotune.study.marker import Home, Marker, read_marker
from autotune.study.slots import UNREADABLE, unreadable
from autotune.study.storages import Storage
from autotune.study.stored_trials import create_records
from autotune.study.study import Studies, Study, check_name


class SharedStudies(Studies):
    """The studies in a database. Those of others are left out."""

    def __init__(self, folder: Path, url: StorageUrl) -> None:
        super().__init__(folder)
        self._url = url

    def __str__(self) -> str:
        return str(self._url)

    @property
    def flags(self) -> str:
        return self._url.flag

    def names(self) -> list[str]:
        return sorted(self._read())

    def manifests(self) -> Iterator[Manifest]:
        return (found for _, found in sorted(self._read().items()) if isinstance(found, Manifest))

    def require(self, name: str) -> None:
        self.open(name).close()

    def open(self, name: str) -> Study:
        """Its trials are where it was made, or in the folder of its name."""
        check_name(name)
        with self._opened() as storage:
            found = {} if storage is None else _attributes_or_none(storage, name)
            if storage is None or MANIFEST not in found:
                known = self.names()
                there_are = f"there are: {', '.join(known)}" if known else "there is none yet; start with `tune`"
                raise InputError(f"no study {name!r} in {self}", tip=there_are)
            manifest, home = self._manifest_of(name, found), self._home_of(name, found)
            here = _folder_here(manifest.id, (Path(home.folder), self.folder / name))
            if here is not None:
                own_files.require_own(here)
            database = SharedDatabase(self._url, storage, name, home, is_here=here is not None)
            return Study(self, here or home.as_path, manifest, database)

    def remove(self, name: str) -> list[Path]:
        """Remove the records alone where the files are on another machine, which may be gone; where they are there
        still, they yield to the next study of the name on that machine."""
        with closing(self.open(name)) as study:
            database = study.database
            assert isinstance(database, SharedDatabase)
            with study.exclusive() if database.is_here else database.locked():
                # First: a folder without records is taken over by the next study of the name.
                database.forget()
                if database.is_here:
                    own_files.remove_study(study.folder, study.manifest)
        return own_files.what_stays(study.folder) if database.is_here else [study.folder]

    def _exists(self, name: str) -> bool:
        with self._opened() as storage:
            if storage is None:
                return False
            found = MANIFEST in _attributes_or_none(storage, name)
            storage.engine.dispose()
            return found

    def _create(self, folder: Path, manifest: Manifest) -> Study:
        own_files.require_own(folder, to_write=True)
        self._require_free(folder)
        with self._opened(create=True) as storage:
            assert storage is not None
            try:
                study = create_records(manifest, storage)
            except optuna.exceptions.DuplicatedStudyError:
                raise StoreError(
                    f"{self} has a study {manifest.name!r} that autotune did not make, or is making now",
                    tip=f"choose another with {marked('study', 'NAME')}",
                ) from None
            try:
                home = self._settle(folder, manifest)
                study.set_user_attr(HOME, home.model_dump())
                # The manifest comes last: a study without one is not yet ours.
                study.set_user_attr(MANIFEST, manifest.model_dump(mode="json", by_alias=True))
            except BaseException:
                optuna.delete_study(study_name=manifest.name, storage=storage)
                raise
            database = SharedDatabase(self._url, storage, manifest.name, home, is_here=True)
            return Study(self, folder, manifest, database)

    _make = _create

    @contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[PatientStorage | None]:
        """The storage, closed again if the block raises."""
        storage = open_storage(self._url, create=create)
        try:
            with storage_errors(self._url):
                yield storage
        except BaseException:
            if storage is not None:
                storage.engine.dispose()
            raise

    def _read(self) -> dict[str, Manifest | StoreError]:
        """Manifest of each study by name; an error for one that this version cannot read."""
        with self._opened() as storage:
            try:
                studies = [] if storage is None else storage.get_all_studies()
            except UNREADABLE as error:
                raise unreadable(str(self), error) from error
            if storage is not None:
                storage.engine.dispose()
        read: dict[str, Manifest | StoreError] = {}
        for study in studies:
            if MANIFEST in study.user_attrs:
                try:
                    read[study.study_name] = self._manifest_of(study.study_name, study.user_attrs)
                except StoreError as error:
                    read[study.study_name] = error
        return read

    def _manifest_of(self, name: str, found: dict[str, Any]) -> Manifest:
        return parse_manifest(found[MANIFEST], f"the manifest of {name!r} in {self}")

    def _home_of(self, name: str, found: dict[str, Any]) -> Home:
        try:
            return read(Home.model_validate, found.get(HOME))
        except ValidationError:
            raise StoreError(f"study {name!r} in {self} does not say where its evidence is") from None

    def _require_free(self, folder: Path) -> None:
        """Raises StoreError where the folder is another study's."""
        marker = read_marker(folder)
        if (folder / "manifest.json").exists() or (folder / "study.db").exists():
            what = "holds a study of this machine, with records of its own"
        elif marker is not None and marker.storage != str(self):
            what = f"holds the evidence of a study in {marker.storage}"
        else:
            return
        tip = f"choose another with {marked('study', 'NAME')}, or another folder with {marked('studies_dir')}"
        raise StoreError(f"{folder} {what}", tip=tip)

    def _settle(self, folder: Path, manifest: Manifest) -> Home:
        """Make the folder this study's. What a study left whose records are gone is removed. Raises StoreError."""
        try:
            if read_marker(folder) is not None:
                own_files.clear_study(folder)
                own_folders.make(folder / "trials")
        except OSError as error:
            raise StoreError(
                f"cannot clear {error.filename}, of an earlier study: {error.strerror}", tip="move that folder away"
            ) from None
        Marker(id=manifest.id, study=manifest.name, storage=str(self)).write(folder)
        return Home.here(folder)


def _folder_here(study_id: str, candidates: Iterable[Path]) -> Path | None:
    """The first of the folders that holds this study's evidence. The host's name does not count: it changes with each
    container, and a volume can move to another machine with what was measured."""
    for folder in candidates:
        marker = read_marker(folder)
        if marker is not None and marker.id == study_id:
            return folder
    return None


def _attributes_or_none(storage: PatientStorage, name: str) -> dict[str, Any]:
    try:
        return attributes(storage, name)
    except KeyError:
        return {}


class PostgresStorage(Storage):
    """PostgreSQL."""

    def studies(self, folder: Path, url: str) -> Studies:
        return SharedStudies(folder, parse_storage(url))


STORAGE = PostgresStorage()
