"""Create, open and list the studies in a shared storage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection
from pydantic import ValidationError

from autotune.errors import InputError, StoreError
from autotune.study import own_files
from autotune.study.manifest import Manifest, parse_manifest
from autotune.study.shared.database import HOME, MANIFEST, SharedDatabase, attributes
from autotune.study.shared.home import StudyHome, StudyMarker, folder_here, read_marker
from autotune.study.shared.storage import PatientStorage, open_storage, storage_errors
from autotune.study.shared.url import StorageUrl
from autotune.study.study import Study


def create_study(folder: Path, manifest: Manifest, url: StorageUrl) -> Study:
    """A new study whose evidence goes into `folder`, which exists. Raises StoreError."""
    _require_free(folder, url)
    with _opened(url, create=True) as storage:
        assert storage is not None
        directions = [StudyDirection.MINIMIZE] * len(manifest.objectives)
        try:
            study = optuna.create_study(storage=storage, study_name=manifest.name, directions=directions)
        except optuna.exceptions.DuplicatedStudyError:
            raise StoreError(
                f"{url} has a study {manifest.name!r} that autotune did not make, or is making now",
                tip="choose another with --study NAME",
            ) from None
        try:
            home = _settle(folder, manifest, url)
            study.set_user_attr(HOME, home.model_dump())
            # The manifest comes last: a study without one is not yet ours.
            study.set_user_attr(MANIFEST, manifest.model_dump(mode="json", by_alias=True))
        except BaseException:
            optuna.delete_study(study_name=manifest.name, storage=storage)
            raise
        return Study(folder, manifest, SharedDatabase(url, storage, manifest.name, home, is_here=True))


def open_study(folder: Path, name: str, url: StorageUrl) -> Study:
    """An existing study, whose evidence is where it was made, or in `folder`. Raises InputError for an unknown name."""
    with _opened(url) as storage:
        found = {} if storage is None else _attributes_or_none(storage, name)
        if storage is None or MANIFEST not in found:
            raise InputError(f"no study {name!r} in {url}", tip=_known(url))
        manifest = _manifest_of(name, found, url)
        home = _home_of(name, found, url)
        here = folder_here(manifest.id, (Path(home.folder), folder))
        database = SharedDatabase(url, storage, name, home, is_here=here is not None)
        return Study(here or home.as_path, manifest, database)


def exists(name: str, url: StorageUrl) -> bool:
    """Whether the storage has a study of this tool with that name."""
    with _opened(url) as storage:
        if storage is None:
            return False
        found = MANIFEST in _attributes_or_none(storage, name)
        storage.engine.dispose()
        return found


def read_manifests(url: StorageUrl) -> dict[str, Manifest | StoreError]:
    """Of each study by name; an error for one that this version cannot read. Studies of others are left out."""
    with _opened(url) as storage:
        studies = [] if storage is None else storage.get_all_studies()
        if storage is not None:
            storage.engine.dispose()
    read: dict[str, Manifest | StoreError] = {}
    for each in studies:
        if MANIFEST in each.user_attrs:
            try:
                read[each.study_name] = _manifest_of(each.study_name, each.user_attrs, url)
            except StoreError as error:
                read[each.study_name] = error
    return read


def _known(url: StorageUrl) -> str:
    known = sorted(read_manifests(url))
    return f"there are: {', '.join(known)}" if known else "there is none yet; start with `tune`"


@contextmanager
def _opened(url: StorageUrl, *, create: bool = False) -> Iterator[PatientStorage | None]:
    """The storage, closed again if the block raises."""
    storage = open_storage(url, create=create)
    try:
        with storage_errors(url):
            yield storage
    except BaseException:
        if storage is not None:
            storage.engine.dispose()
        raise


def _attributes_or_none(storage: PatientStorage, name: str) -> dict[str, Any]:
    try:
        return attributes(storage, name)
    except KeyError:
        return {}


def _manifest_of(name: str, found: dict[str, Any], url: StorageUrl) -> Manifest:
    text = json.dumps(found[MANIFEST])
    return parse_manifest(lambda: Manifest.model_validate_json(text), f"the manifest of {name!r} in {url}")


def _home_of(name: str, found: dict[str, Any], url: StorageUrl) -> StudyHome:
    try:
        return StudyHome.model_validate(found.get(HOME))
    except ValidationError:
        raise StoreError(f"study {name!r} in {url} does not say where its evidence is") from None


def _require_free(folder: Path, url: StorageUrl) -> None:
    """Raises StoreError where the folder is another study's."""
    marker = read_marker(folder)
    if (folder / "manifest.json").exists() or (folder / "study.db").exists():
        what = "holds a study of this machine, with records of its own"
    elif marker is not None and marker.storage != str(url):
        what = f"holds the evidence of a study in {marker.storage}"
    else:
        return
    tip = "choose another with --study NAME, or another folder with --studies-dir"
    raise StoreError(f"{folder} {what}", tip=tip)


def _settle(folder: Path, manifest: Manifest, url: StorageUrl) -> StudyHome:
    """Make the folder this study's. What a study left whose records are gone is removed. Raises StoreError."""
    try:
        if read_marker(folder) is not None:
            own_files.clear_study(folder)
            (folder / "trials").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot clear {error.filename}, of an earlier study: {error.strerror}", tip="move that folder away"
        ) from None
    StudyMarker(id=manifest.id, study=manifest.name, storage=str(url)).write(folder)
    return StudyHome.here(folder)
