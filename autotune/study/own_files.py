"""What the tool makes in a study's folder, known by name: nothing else in there is ever removed.

People keep notes, checkpoints and links beside a study. What is cleared is a name of this list in a folder of this
list; symbolic links are never followed, and what stands beside stays.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

from autotune.command_line import asked
from autotune.errors import StoreError
from autotune.study.manifest import Manifest
from autotune.trial.folder import (
    FIRST_CRASH,
    KEPT_CACHES,
    KEY_FILE,
    OUTCOME_FILE,
    PROFILE_FILE,
    REQUEST_FILE,
    TRACE_FILE,
)

LOCK = "lock"
_DATABASE = frozenset({"study.db", "study.db-journal", "study.db-shm", "study.db-wal"})
FILES = _DATABASE | {"manifest.json", "reference.npz", "reference.partial", "shared_study.json", "supervisor.log"}
"""Files of a study, besides its lock, which outlives what it guards."""
CACHES = ("caches", "confirmed")
FOLDERS = (*CACHES, "trials", "again", "confirm", "noise_floor", "tail", "artifact")
"""Folders of a study: all but `CACHES` hold the folders of runs, some of them in folders of blocks."""
_CLEARED = tuple(name for name in FOLDERS if name != "trials")
_OF_A_RUN = frozenset({OUTCOME_FILE, PROFILE_FILE, TRACE_FILE, KEY_FILE, "stage", "paused", "stdout.txt", "stderr.txt"})
_TREES = frozenset({"cache", "scratch", "kept", KEPT_CACHES, FIRST_CRASH})
"""Compilers write into these as they like: they are removed with all that is in them."""
_BLOCK = re.compile(r"block-\d+")
KERNELS = "kernels"
_CACHE = re.compile(rf"\d{{4,}}(\.whole)?|{KERNELS}")
"""A trial's cache on the shelf, and the mark that it is whole; what all trials share."""
_GIVEN = re.compile(r".+_[0-9a-f]{8,}")
"""Name of a file that holds the function, or the model, that a Python program gave."""
_HALF_WRITTEN = re.compile(r"\.(.+)\.[0-9a-z_]+\.partial")


def remove_study(folder: Path, manifest: Manifest | None) -> None:
    """Remove all that the tool made of a study: its lock too, and the files that its model was written into (see
    `autotune.tune`), if the manifest can be read that names them. Raises StoreError where that is not allowed."""
    given = [] if manifest is None else _given_by_a_program(folder, manifest)
    try:
        clear_study(folder)
        for path in (*given, folder / LOCK):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot remove {error.filename}: {error.strerror}") from None


def what_stays(folder: Path) -> list[Path]:
    """What the tool did not make, in the folder of a study that was removed. An empty folder is removed too."""
    with suppress(OSError):
        folder.rmdir()
    return sorted(folder.iterdir()) if folder.is_dir() else []


def size_on_disk(folder: Path) -> int:
    """Bytes of the files in a folder; what symbolic links lead to is not counted."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # A trial that runs removes files.
            total += path.lstat().st_size
    return total


def _given_by_a_program(folder: Path, manifest: Manifest) -> list[Path]:
    place = Path(manifest.workload.reference.rpartition(":")[0])
    is_given = place.parent == folder.resolve() and _GIVEN.fullmatch(place.stem)
    named = [folder / f"{place.stem}{suffix}" for suffix in (".py", ".pt")] if is_given else []
    return [path for path in named if path.is_file() and not path.is_symlink()]


def clear_study(folder: Path) -> None:
    """Remove what the tool made of a study, all but its lock. Raises OSError where that is not allowed."""
    # The manifest goes last: as long as it is there, the study is listed and can be removed. The database goes before
    # it: a manifest without one, and without runs, is known for what a removal has left that was cut off.
    order = {"study.db": 1, "manifest.json": 2}
    for path in sorted(folder.iterdir(), key=lambda path: order.get(path.name, 0)):
        if path.is_symlink():
            continue
        if path.name in FILES or _is_half_written(path, FILES):
            path.unlink()
        elif path.name in FOLDERS and path.is_dir():
            clear_caches(path) if path.name in CACHES else clear_runs(path)


def clear_creation(folder: Path) -> None:
    """Remove what is left of a study whose creation was cut off: its database, and half a manifest."""
    for path in _own(folder):
        if path.name in _DATABASE or _is_half_written(path, FILES):
            path.unlink(missing_ok=True)


def clear_runs(folder: Path) -> None:
    """Remove the runs in one of the `FOLDERS`, with their caches, and the folder if nothing else is in it."""
    for path in _own(folder):
        if path.name in _TREES:
            shutil.rmtree(path, ignore_errors=True)
        elif _BLOCK.fullmatch(path.name):
            clear_runs(path)
        elif (path / REQUEST_FILE).is_file():
            _clear_run(path)
    with suppress(OSError):
        folder.rmdir()


def _clear_run(folder: Path) -> None:
    """The request goes last: it is what a folder is known by."""
    for path in _own(folder):
        if path.name in _TREES:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name in _OF_A_RUN or _is_half_written(path, _OF_A_RUN | {REQUEST_FILE}):
            path.unlink(missing_ok=True)
    (folder / REQUEST_FILE).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def clear_caches(folder: Path) -> None:
    """Remove the caches of trials in a folder, marks first, and the folder if nothing else is in it."""
    found = [path for path in _own(folder) if _CACHE.fullmatch(path.name)]
    for path in sorted(found, key=Path.is_dir):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def require_own_folders(folder: Path) -> None:
    """Raises StoreError where a folder of the study that is cleared again and again leads elsewhere."""
    for name in _CLEARED:
        if (folder / name).is_symlink():
            raise StoreError(
                f"{folder / name} is a symbolic link: what is in this folder gets removed, which is not done elsewhere",
                tip="remove the link; to have a study on another disk, link its whole folder or use "
                f"{asked('studies_dir')}",
            )


def _own(folder: Path) -> list[Path]:
    """What is in a folder and no symbolic link; nothing where the folder is one, or is not there."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.is_symlink()]


def _is_half_written(path: Path, names: frozenset[str]) -> bool:
    match = _HALF_WRITTEN.fullmatch(path.name)
    return match is not None and match[1] in names
