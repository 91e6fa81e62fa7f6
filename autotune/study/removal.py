"""Remove studies: what the tool made of them, and nothing that a person put beside it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from autotune.errors import AutotuneError, StoreError
from autotune.study import own_files, storage
from autotune.study.manifest import Manifest, read_manifest
from autotune.study.open import list_studies, open_study, require_study
from autotune.study.shared.home import read_marker
from autotune.study.shared.url import StorageUrl
from autotune.study.study import Study

_WRITTEN = re.compile(r".+_[0-9a-f]{8,}")
"""Name of a file that holds the function, or the model, that a Python program gave."""


def remove_study(studies_dir: Path, name: str, *, only_unmeasured: bool = False) -> list[Path] | None:
    """Remove a study, a broken one too. Returns what stays, because the tool did not make it; None where the study was
    kept, because it has a measurement by now and `only_unmeasured` ones are to go.

    Raises InputError for an unknown name, StoreError where it is in use or cannot be removed.
    """
    folder = require_study(studies_dir, name)
    given = _given_by_a_program(folder, _manifest_in(folder))
    with storage.exclusive(folder / own_files.LOCK):
        if only_unmeasured and _is_measured(studies_dir, name):
            return None
        try:
            own_files.clear_study(folder)
            for path in given:
                path.unlink(missing_ok=True)
            (folder / own_files.LOCK).unlink()
        except OSError as error:
            raise StoreError(f"cannot remove {error.filename}: {error.strerror}") from None
    with suppress(OSError):
        folder.rmdir()
    return sorted(folder.iterdir()) if folder.is_dir() else []


def remove_shared_study(
    studies_dir: Path, name: str, url: StorageUrl, *, only_unmeasured: bool = False
) -> list[Path] | None:
    """Remove the records of a study in a shared storage, and its files, which lie here. Returns what stays, or None, as
    `remove_study` does.

    Raises InputError for an unknown name, StoreError where it is in use, or where its files are on another machine.
    """
    study = open_study(studies_dir, name, url)
    folder = study.folder
    try:
        if not _is_here(study):
            raise StoreError(f"the files of study {name!r} are in {folder}", tip="remove the study on that machine")
        with study.exclusive():
            if only_unmeasured and study.has_evidence():
                return None
            # First: a folder without records is taken over by the next study of the name.
            given = _given_by_a_program(folder, study.manifest)
            study.database.forget()
            own_files.clear_study(folder)
            for path in given:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot remove {error.filename}: {error.strerror}") from None
    finally:
        study.close()
    with suppress(OSError):
        folder.rmdir()
    return sorted(folder.iterdir()) if folder.is_dir() else []


def studies_without_measurement(studies_dir: Path, url: StorageUrl | None = None) -> list[str]:
    """Studies in which nothing was measured and nothing is running, in order; of a shared storage this machine's. A
    broken one may hold measurements."""
    found = []
    for name in list_studies(studies_dir, url):
        with suppress(AutotuneError):
            study = open_study(studies_dir, name, url)
            if _is_here(study) and not study.has_evidence():
                found.append(name)
            study.close()
    return found


def _is_measured(studies_dir: Path, name: str) -> bool:
    study = open_study(studies_dir, name)
    try:
        return study.has_evidence()
    finally:
        study.close()


def _is_here(study: Study) -> bool:
    """Whether the files of its trials are on this machine."""
    return study.database.home is None or read_marker(study.folder) is not None


def size_on_disk(folder: Path) -> int:
    """Bytes of the files in a folder; what symbolic links lead to is not counted."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # A trial that runs removes files.
            total += path.lstat().st_size
    return total


def _manifest_in(folder: Path) -> Manifest | None:
    with suppress(AutotuneError):
        return read_manifest(folder / "manifest.json")
    return None


def _given_by_a_program(folder: Path, manifest: Manifest | None) -> list[Path]:
    """The files in the study's folder that its model was written into (see `autotune.tune`)."""
    targets = () if manifest is None else manifest.targets
    places = [Path(each.workload.reference.rpartition(":")[0]) for each in targets]
    stems = {each.stem for each in places if each.parent == folder.resolve() and _WRITTEN.fullmatch(each.stem)}
    named = [folder / f"{stem}{suffix}" for stem in stems for suffix in (".py", ".pt")]
    return [path for path in named if path.is_file() and not path.is_symlink()]
