"""Remove studies: what the tool made of them, and nothing that a person put beside it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from autotune.errors import AutotuneError, StoreError
from autotune.study import own_files, storage
from autotune.study.manifest import read_manifest
from autotune.study.open import list_studies, open_study, require_study

_WRITTEN = re.compile(r".+_[0-9a-f]{8,}")
"""Name of a file that holds the function, or the model, that a Python program gave."""


def remove_study(studies_dir: Path, name: str) -> list[Path]:
    """Remove a study, a broken one too. Returns what stays, because the tool did not make it.

    Raises InputError for an unknown name, StoreError where it is in use or cannot be removed.
    """
    folder = require_study(studies_dir, name)
    given = _given_by_a_program(folder)
    with storage.exclusive(folder / own_files.LOCK):
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


def studies_without_measurement(studies_dir: Path) -> list[str]:
    """Studies in which nothing was measured and nothing is running, in order. A broken one may hold measurements."""
    found = []
    for name in list_studies(studies_dir):
        with suppress(AutotuneError):
            study = open_study(studies_dir, name)
            if not study.has_evidence():
                found.append(name)
            study.close()
    return found


def size_on_disk(folder: Path) -> int:
    """Bytes of the files in a folder; what symbolic links lead to is not counted."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # A trial that runs removes files.
            total += path.lstat().st_size
    return total


def _given_by_a_program(folder: Path) -> list[Path]:
    """The files in the study's folder that its model was written into (see `autotune.tune`)."""
    try:
        targets = read_manifest(folder / "manifest.json").targets
    except AutotuneError:
        return []
    places = [Path(each.workload.reference.rpartition(":")[0]) for each in targets]
    stems = {each.stem for each in places if each.parent == folder.resolve() and _WRITTEN.fullmatch(each.stem)}
    named = [folder / f"{stem}{suffix}" for stem in stems for suffix in (".py", ".pt")]
    return [path for path in named if path.is_file() and not path.is_symlink()]
