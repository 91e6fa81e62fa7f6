"""What the tool makes in a study's folder, known by name: nothing else in there is ever removed.

People keep notes, checkpoints and links beside a study. What is cleared is a name of this list in a folder of this
list, and what stands beside stays. A part of a study is no symbolic link: `require_own` says so before anything of one
is read, and nothing is removed by way of one (see `own_folders`).
"""

from __future__ import annotations

import re
from pathlib import Path

from autotune import own_folders
from autotune.errors import StoreError
from autotune.own_folders import names_in, remove, remove_if_empty
from autotune.study.manifest import Manifest
from autotune.trial.folder import (
    FIRST_CRASH,
    KEPT_CACHES,
    KEY_FILE,
    OUTCOME_FILE,
    PROFILE_FILE,
    REQUEST_FILE,
)

LOCK = "lock"
_DATABASE = frozenset({"study.db", "study.db-journal", "study.db-shm", "study.db-wal"})
FILES = _DATABASE | {"manifest.json", "reference.npz", "reference.partial", "shared_study.json", "supervisor.log"}
"""Files of a study, besides its lock, which outlives what it guards."""
_CONFIRMED = "confirmed"
CACHES = ("caches", _CONFIRMED)
_USE = "use"
FOLDERS = (*CACHES, _USE, "trials", "again", "confirm", "noise_floor", "tail", "artifact")
"""Folders of a study: all but `CACHES` and that of longer uses hold the folders of runs, some of them in folders of
blocks."""
_OF_A_USE = re.compile(r"\d+\.npz|index\.json|later_steps\.json")
_OF_A_RUN = frozenset(
    {OUTCOME_FILE, PROFILE_FILE, "trace.json", KEY_FILE, "stage", "paused", "stdout.txt", "stderr.txt"}
)
"""A trace is of an earlier release."""
_TREES = frozenset({"cache", "scratch", "kept", KEPT_CACHES, FIRST_CRASH})
"""Compilers write into these as they like: they are removed with all that is in them."""
_EMPTIED = _TREES - {FIRST_CRASH} | {"tmp"}
_BLOCK = re.compile(r"block-\d+")
KERNELS = "kernels"
_CACHE = re.compile(rf"\d{{4,}}(\.whole)?|{KERNELS}(-[0-9a-f]+)?")
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
            remove(path)
    except OSError as error:
        raise StoreError(f"cannot remove {error.filename}: {error.strerror}") from None


def what_stays(folder: Path) -> list[Path]:
    """What the tool did not make, in the folder of a study that was removed. An empty folder is removed too."""
    remove_if_empty(folder)
    return sorted(folder.iterdir()) if own_folders.is_folder(folder) else []


def require_own(folder: Path, *, to_write: bool = False) -> None:
    """Raises StoreError where a part of the study in the folder is a symbolic link, or the folder itself or one above
    it. `to_write`: also where a file that is written in place has another name elsewhere."""
    found = own_folders.first_link(folder, _is_part, _is_looked_into)
    if found is not None:
        raise own_folders.link_error(found)
    for path in (folder / name for name in (LOCK, *sorted(_DATABASE)) if to_write):
        own_folders.require_one_name(path)


def _is_looked_into(path: Path) -> bool:
    """Whether a folder of a study holds what is used as it is found. All else is emptied before it is used; compilers,
    and the tool, keep links in there."""
    top, *below = path.parts
    if top in CACHES:
        return top == _CONFIRMED or not below
    return not _EMPTIED.intersection(below)


def _is_part(name: str) -> bool:
    return (
        name in FILES
        or name in FOLDERS
        or name == LOCK
        or _HALF_WRITTEN.fullmatch(name) is not None
        or _GIVEN.fullmatch(Path(name).stem) is not None
    )


def _given_by_a_program(folder: Path, manifest: Manifest) -> list[Path]:
    place = Path(manifest.workload.reference.rpartition(":")[0])
    is_given = place.parent == own_folders.absolute(folder) and _GIVEN.fullmatch(place.stem)
    named = [folder / f"{place.stem}{suffix}" for suffix in (".py", ".pt")] if is_given else []
    return [path for path in named if path.is_file() and not path.is_symlink()]


def clear_study(folder: Path) -> None:
    """Remove what the tool made of a study, all but its lock. Raises OSError where that is not allowed."""
    # The manifest goes last: as long as it is there, the study is listed and can be removed. The database goes before
    # it: a manifest without one, and without runs, is known for what a removal has left that was cut off.
    order = {"study.db": 1, "manifest.json": 2}
    for name in sorted(names_in(folder), key=lambda name: order.get(name, 0)):
        if name in FILES or _is_half_written(name, FILES):
            remove(folder / name)
        elif name in FOLDERS:
            clear = clear_caches if name in CACHES else _clear_use if name == _USE else clear_runs
            clear(folder / name)


def clear_creation(folder: Path) -> None:
    """Remove what is left of a study whose creation was cut off: its database, and half a manifest."""
    for name in names_in(folder):
        if name in _DATABASE or _is_half_written(name, FILES):
            remove(folder / name)


def clear_runs(folder: Path) -> None:
    """Remove the runs in one of the `FOLDERS`, with their caches, and the folder if nothing else is in it."""
    for name in names_in(folder):
        if name in _TREES:
            remove(folder / name)
        elif _BLOCK.fullmatch(name):
            clear_runs(folder / name)
        elif REQUEST_FILE in names_in(folder / name):
            _clear_run(folder / name)
    remove_if_empty(folder)


def _clear_run(folder: Path) -> None:
    """The request goes last: it is what a folder is known by."""
    for name in names_in(folder):
        if name in _TREES or name in _OF_A_RUN or _is_half_written(name, _OF_A_RUN | {REQUEST_FILE}):
            remove(folder / name)
    remove(folder / REQUEST_FILE)
    remove_if_empty(folder)


def clear_caches(folder: Path) -> None:
    """Remove the caches of trials in a folder, marks first, and the folder if nothing else is in it."""
    found = [folder / name for name in names_in(folder) if _CACHE.fullmatch(name)]
    for path in sorted(found, key=Path.is_dir):
        remove(path)
    remove_if_empty(folder)


def _clear_use(folder: Path) -> None:
    """Remove what the untuned model answered in a longer use, and the folder if nothing else is in it."""
    for name in names_in(folder):
        half = _HALF_WRITTEN.fullmatch(name)
        if _OF_A_USE.fullmatch(name if half is None else half[1]):
            remove(folder / name)
    remove_if_empty(folder)


def _is_half_written(name: str, names: frozenset[str]) -> bool:
    match = _HALF_WRITTEN.fullmatch(name)
    return match is not None and match[1] in names
