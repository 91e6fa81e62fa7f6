"""Create, open and list studies by name."""

from __future__ import annotations

import re
from pathlib import Path

import optuna
from optuna.study import StudyDirection

from autotune.command_line import command
from autotune.errors import InputError, StoreError, did_you_mean
from autotune.study import own_files, storage
from autotune.study.manifest import Manifest, read_manifest
from autotune.study.study import Study

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def create_study(studies_dir: Path, manifest: Manifest) -> Study:
    """A new study folder with manifest and database. Raises StoreError where the folder cannot be written."""
    check_name(manifest.name)
    folder = studies_dir / manifest.name
    try:
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create {folder}: {error.strerror}", tip="choose another folder with --studies-dir"
        ) from None
    if (folder / "study.db").exists():
        raise StoreError(
            f"{folder} holds a study.db without a manifest.json: it is not a complete study",
            tip="choose another with --study NAME, or move that folder away",
        )
    opened = storage.open_storage(folder / "study.db", create=True)
    with storage.storage_errors(folder / "study.db"):
        directions = [StudyDirection.MINIMIZE] * len(manifest.objectives)
        try:
            optuna.create_study(storage=opened, study_name=manifest.name, directions=directions)
        except optuna.exceptions.DuplicatedStudyError:
            raise StoreError(f"{folder} is being made by another process", tip="run the same command again") from None
    # The manifest comes last: a folder without one is not yet a study.
    try:
        manifest.write(folder / "manifest.json")
    except OSError as error:
        raise StoreError(f"cannot write in {folder}: {error.strerror}") from None
    return Study(folder, manifest, opened)


def open_study(studies_dir: Path, name: str) -> Study:
    """An existing study. Raises InputError for an unknown name, StoreError for a broken one."""
    folder = require_study(studies_dir, name)
    manifest = read_manifest(folder / "manifest.json")
    return Study(folder, manifest, storage.open_storage(folder / "study.db", create=False))


def open_or_create(studies_dir: Path, manifest: Manifest) -> Study:
    """The study of this name, created if there is none. Raises StoreError if it was created with other settings.

    A study in which nothing was ever measured, for example because the model file had a mistake, is replaced.
    """
    check_name(manifest.name)
    if not (studies_dir / manifest.name / "manifest.json").exists():
        return create_study(studies_dir, manifest)
    study = open_study(studies_dir, manifest.name)
    if not study.has_evidence():
        study.close()
        return _recreate(study, manifest)
    try:
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
        known = list_studies(studies_dir)
        start = f"there is none yet; start with `{command('tune', '--model', 'vit')}`"
        there_are = f"{did_you_mean(name, known)}there are: {', '.join(known)}" if known else start
        raise InputError(f"no study {name!r} in {studies_dir}/", tip=there_are)
    return folder


def list_studies(studies_dir: Path) -> list[str]:
    """Names of the studies in a folder, in order."""
    return sorted(path.parent.name for path in studies_dir.glob("*/manifest.json"))


def _recreate(study: Study, manifest: Manifest) -> Study:
    """Replace a study without evidence, unless it is in use. Other files in its folder are kept."""
    with storage.exclusive(study.folder / own_files.LOCK):
        if study.has_evidence():
            return open_or_create(study.folder.parent, manifest)
        try:
            own_files.clear_study(study.folder)
        except OSError as error:
            raise StoreError(
                f"cannot clear {error.filename}, of an earlier attempt: {error.strerror}",
                tip="choose another with --study NAME, or move that folder away",
            ) from None
        return create_study(study.folder.parent, manifest)


def check_name(name: str) -> None:
    """Raises InputError for a text that cannot be the name of a study."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--study {name!r}: not usable as a folder's name", tip="use at most 100 letters, digits, '.', '_' and '-'"
        )
