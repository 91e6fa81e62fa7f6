"""Create, open and list studies by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import optuna
from optuna.study import StudyDirection

from autotune.command_line import command
from autotune.errors import AutotuneError, InputError, StoreError, did_you_mean
from autotune.study import own_files, storage
from autotune.study.database import SqliteDatabase
from autotune.study.manifest import Manifest, read_manifest
from autotune.study.shared import studies as shared
from autotune.study.shared.home import read_marker
from autotune.study.shared.url import StorageUrl
from autotune.study.study import Study
from autotune.trial.folder import REQUEST_FILE

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def create_study(studies_dir: Path, manifest: Manifest, url: StorageUrl | None = None) -> Study:
    """A new study folder with manifest and database. Raises StoreError where the folder cannot be written, or where
    another process makes the study.

    `url`: the storage that several machines share, if the records are to be there; so in all functions here.
    """
    check_name(manifest.name)
    folder = studies_dir / manifest.name
    _make_folder(folder)
    if url is not None:
        return shared.create_study(folder, manifest, url)
    _require_not_shared(folder)
    with storage.exclusive(folder / own_files.LOCK, "is being made by another `tune`"):
        if _is_whole(folder):
            raise StoreError(f"{folder} was just made by another `tune`", tip="run the same command again")
        return _create(folder, manifest)


def _make_folder(folder: Path) -> None:
    try:
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create {folder}: {error.strerror}", tip="choose another folder with --studies-dir"
        ) from None


def _create(folder: Path, manifest: Manifest) -> Study:
    """Make the study in its folder, whose lock this process has. What a process left that was killed while it did the
    same goes first: nothing is in it."""
    path = folder / "study.db"
    if os.path.lexists(path):
        if path.is_symlink() or not storage.holds_nothing(path):
            raise StoreError(
                f"{folder} holds a study.db without a manifest.json, and not an empty one: it is not a complete study",
                tip="choose another with --study NAME, or move that folder away",
            )
        own_files.clear_creation(folder)
    opened = storage.open_storage(path, create=True)
    with storage.storage_errors(path):
        directions = [StudyDirection.MINIMIZE] * len(manifest.objectives)
        optuna.create_study(storage=opened, study_name=manifest.name, directions=directions)
    # The manifest comes last: a folder without one is not yet a study.
    try:
        manifest.write(folder / "manifest.json")
    except OSError as error:
        raise StoreError(f"cannot write in {folder}: {error.strerror}") from None
    return Study(folder, manifest, SqliteDatabase(folder, opened))


def open_study(studies_dir: Path, name: str, url: StorageUrl | None = None) -> Study:
    """An existing study. Raises InputError for an unknown name, StoreError for a broken one."""
    if url is not None:
        check_name(name)
        return shared.open_study(studies_dir / name, name, url)
    folder = require_study(studies_dir, name)
    manifest = read_manifest(folder / "manifest.json")
    return Study(folder, manifest, SqliteDatabase(folder, storage.open_storage(folder / "study.db", create=False)))


def open_or_create(studies_dir: Path, manifest: Manifest, url: StorageUrl | None = None) -> Study:
    """The study of this name, created if there is none. Raises StoreError if it was created with other settings.

    A study in which nothing was ever measured, for example because the model file had a mistake, is replaced.
    """
    check_name(manifest.name)
    if not _exists(studies_dir, manifest.name, url):
        return create_study(studies_dir, manifest, url)
    study = open_study(studies_dir, manifest.name, url)
    try:
        if url is not None:
            study.require_writable()
        if not study.has_evidence():
            study.close()
            return _recreate(study, manifest)
        study.manifest.require_same(manifest)
    except StoreError:
        study.close()
        raise
    return study


def require_study(studies_dir: Path, name: str) -> Path:
    """The folder of an existing study, which may be broken. Raises InputError for an unknown name."""
    check_name(name)
    folder = studies_dir / name
    if not (folder / "manifest.json").exists():
        _require_not_shared(folder)
        known = list_studies(studies_dir)
        start = f"there is none yet; start with `{command('tune', '--model', 'vit')}`"
        there_are = f"{did_you_mean(name, known)}there are: {', '.join(known)}" if known else start
        raise InputError(f"no study {name!r} in {studies_dir}/", tip=there_are)
    return folder


def list_studies(studies_dir: Path, url: StorageUrl | None = None) -> list[str]:
    """Names of the studies in a folder, in order."""
    if url is not None:
        return sorted(shared.read_manifests(url))
    return sorted(path.parent.name for path in studies_dir.glob("*/manifest.json"))


def readable_manifests(studies_dir: Path, url: StorageUrl | None = None) -> Iterator[Manifest]:
    """Of the studies in a folder, in order; broken ones are left out."""
    if url is not None:
        yield from (each for _, each in sorted(shared.read_manifests(url).items()) if isinstance(each, Manifest))
        return
    for name in list_studies(studies_dir):
        try:
            yield read_manifest(studies_dir / name / "manifest.json")
        except AutotuneError:
            continue


def _exists(studies_dir: Path, name: str, url: StorageUrl | None) -> bool:
    return _is_whole(studies_dir / name) if url is None else shared.exists(name, url)


def _is_whole(folder: Path) -> bool:
    """Whether the folder holds a study, and not what is left of one whose removal was cut off: a manifest alone."""
    has_more = (folder / "study.db").exists() or any((folder / "trials").glob(f"*/{REQUEST_FILE}"))
    return has_more and (folder / "manifest.json").exists()


def _require_not_shared(folder: Path) -> None:
    marker = read_marker(folder)
    if marker is not None:
        raise InputError(
            f"study {marker.study!r} has its records in {marker.storage}", tip=f"add --storage {marker.storage}"
        )


def _recreate(study: Study, manifest: Manifest) -> Study:
    """Replace a study without evidence, unless it is in use. Other files in its folder are kept."""
    with study.database.exclusive():
        if study.has_evidence():
            return open_or_create(study.folder.parent, manifest, study.database.url)
        try:
            study.database.forget()
            own_files.clear_study(study.folder)
        except OSError as error:
            raise StoreError(
                f"cannot clear {error.filename}, of an earlier attempt: {error.strerror}",
                tip="choose another with --study NAME, or move that folder away",
            ) from None
        _make_folder(study.folder)
        if study.database.url is not None:
            return shared.create_study(study.folder, manifest, study.database.url)
        return _create(study.folder, manifest)


def check_name(name: str) -> None:
    """Raises InputError for a text that cannot be the name of a study."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--study {name!r}: not usable as a folder's name", tip="use at most 100 letters, digits, '.', '_' and '-'"
        )
