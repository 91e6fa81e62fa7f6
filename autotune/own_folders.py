"""Folders that this tool makes, clears, copies and runs from, with no symbolic link on the way.

A study's folder may have come with a clone, and git keeps links. A path that is resolved first and removed or run from
later is somebody else's choice of a place; so nothing here is resolved. Each part of a path is opened from the folder
before it, and a part that is a link is a StoreError that names it. The last part is not followed either: it is left
where something is removed, and refused where something is made.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from autotune.errors import StoreError, marked

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)


def absolute(path: Path | str) -> Path:
    """The path from the root, which no later change of the current folder moves; links in it stay what they are."""
    return Path(os.path.abspath(path))


def named(path: Path | str) -> Path:
    """A folder that the user names from the root, or the system for temporary files: links in it are theirs. One below
    the current folder stays as it is, since that may be somebody else's."""
    return Path(os.path.realpath(path)) if os.path.isabs(path) else Path(path)


def is_one_word(path: Path | str) -> bool:
    """Whether a line for a compiler holds the path in one piece: some are written with paths as they are, and taken
    apart at spaces, quotes and backslashes."""
    return _APART.search(str(path)) is None


_APART = re.compile(r"""[\s'"\\]""")


def require_no_link(path: Path) -> None:
    """Raises StoreError where a part of the path is a symbolic link."""
    for part in (*reversed(path.parents), path):
        if part.is_symlink():
            raise link_error(part)


def link_error(path: Path) -> StoreError:
    """What is raised for a link."""
    return StoreError(
        f"{path} is a symbolic link: nothing behind one is read, removed or run as a part of a study",
        tip=f"remove the link; studies on another disk are named by their own folder: {marked('studies_dir', '/PATH')}",
    )


def require_one_name(file: Path) -> None:
    """Raises StoreError where a file that is written in place has another name, under which it is somebody else's."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if file.lstat().st_nlink > 1 and file.is_file():
            raise StoreError(
                f"{file} has a second name elsewhere (a hard link), where it would be written too",
                tip=f"give it a content of its own: cp {file} {file}.copy && mv {file}.copy {file}",
            )


@contextmanager
def _opened(path: Path, *, make: bool = False) -> Iterator[int]:
    """The folder at the path, of which no part is a link; parts that are not there are made where that is asked.
    Raises StoreError at a link, else OSError."""
    whole = absolute(path)
    descriptor = os.open(whole.anchor, _PLACE)
    try:
        for part in whole.parts[1:]:
            inner = _entered(descriptor, part, path, make=make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _entered(folder: int, part: str, path: Path, *, make: bool) -> int:
    try:
        if make:
            with suppress(FileNotFoundError):
                return os.open(part, _PLACE, dir_fd=folder)
            with suppress(FileExistsError):  # Another process was quicker.
                os.mkdir(part, dir_fd=folder)
        return os.open(part, _PLACE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            require_no_link(path)
        raise OSError(error.errno, error.strerror, str(path)) from None


def make(folder: Path) -> None:
    """Make a folder and those above it, so far as they are not there. Raises StoreError at a link, else OSError."""
    with _opened(folder, make=True):
        pass


def make_new(home: Path, name: str) -> Path:
    """A folder that was not there before, under a name that nobody can foresee, for this user alone. Raises as
    `make`."""
    new = home / f"{name}-{secrets.token_hex(8)}"
    with _opened(home, make=True) as folder:
        os.mkdir(new.name, 0o700, dir_fd=folder)
    return new


def make_empty(folder: Path) -> None:
    """The folder, with nothing in it. Raises as `make`."""
    remove(folder)
    with _opened(folder, make=True) as descriptor:
        if any(True for _ in _entries(descriptor)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it as far as that is allowed. What is not there is no mistake, and
    a link stays. Raises StoreError where a part above is a link, and OSError where a file cannot be removed."""
    try:
        with _opened(path.parent) as folder:
            mode = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                shutil.rmtree(path.name, ignore_errors=True, dir_fd=folder)
            elif not stat.S_ISLNK(mode):
                os.unlink(path.name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def remove_if_empty(folder: Path) -> None:
    """Remove a folder in which nothing is left; any other stays."""
    with suppress(OSError), _opened(folder.parent) as above:
        os.rmdir(folder.name, dir_fd=above)


def move(source: Path, target: Path) -> None:
    """Give it another name, on the same disk. Raises as `make`."""
    with _opened(source.parent) as one, _opened(target.parent, make=True) as other:
        os.rename(source.name, target.name, src_dir_fd=one, dst_dir_fd=other)


def link(source: Path, target: Path) -> None:
    """A second name of a file, on the same disk. Raises as `make`."""
    with _opened(source.parent) as one, _opened(target.parent, make=True) as other:
        os.link(source.name, target.name, src_dir_fd=one, dst_dir_fd=other, follow_symlinks=False)


def copy(source: Path, target: Path) -> None:
    """Copy a folder to one that is not there yet; links in it are left out. Raises StoreError at a link above, else
    OSError or shutil.Error."""
    with _opened(source), _opened(target.parent, make=True):
        shutil.copytree(source, target, ignore=_links_among)


def _links_among(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if os.path.islink(os.path.join(folder, name))]


def names_in(folder: Path) -> list[str]:
    """Names of what is in a folder and no link; none where the folder is not there. Raises as `remove`."""
    try:
        with _opened(folder) as descriptor:
            return [entry.name for entry in _entries(descriptor) if not entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_folder(path: Path) -> bool:
    """Whether a folder is there, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def size_bytes(folder: Path) -> int:
    """Bytes of the files in a folder; what symbolic links lead to is not counted."""
    total = 0
    for path in folder.rglob("*") if is_folder(folder) else ():
        with suppress(OSError):  # A trial that runs removes files.
            status = path.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def first_link(folder: Path, is_part: Callable[[str], bool], enters: Callable[[Path], bool]) -> Path | None:
    """The first link in a folder, among what is a part by its name, and in those of the folders below that are entered,
    whose paths begin at this one. None where it is not there. Raises StoreError where it is a link, or behind one."""
    try:
        with _opened(folder) as descriptor:
            found = _first_link(descriptor, Path(), is_part, enters)
            return None if found is None else folder / found
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # What cannot be read is told of where it is.


def _first_link(
    descriptor: int, folder: Path, is_part: Callable[[str], bool], enters: Callable[[Path], bool]
) -> Path | None:
    parts = [entry for entry in _entries(descriptor) if is_part(entry.name)]
    links = sorted(entry.name for entry in parts if entry.is_symlink())
    if links:
        return folder / links[0]
    for entry in parts:
        path = folder / entry.name
        with suppress(FileNotFoundError, PermissionError):  # Removed meanwhile, by a trial that runs.
            if entry.is_dir(follow_symlinks=False) and enters(path):
                with _closing(os.open(entry.name, _PLACE, dir_fd=descriptor)) as below:
                    found = _first_link(below, path, lambda _: True, enters)
                if found is not None:
                    return found
    return None


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entries(descriptor: int) -> list[os.DirEntry[str]]:
    with _closing(os.open(".", os.O_RDONLY | _FOLDER, dir_fd=descriptor)) as listing, os.scandir(listing) as found:
        return list(found)


# Folders in the system's folder for temporary files, which do not outlive their maker for long. A process that is
# killed removes nothing. So each folder has a file that its maker keeps locked, and whoever makes the next folder, or
# has killed its makers, removes those of its user whose lock is free: the kernel frees it with the last process that
# had it. What stays on purpose, as evidence, has no such file.

_PREFIX = "autotune-"
_LOCK = "lock"


class TemporaryFolder:
    """A new folder for this user alone, locked until it is removed or kept. Processes that are forked from its maker
    have the lock too."""

    def __init__(self, kind: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=remove_abandoned()))
        # Locked before it has its name: under that name it is free only if nobody has it any more.
        unnamed = self.path / f".{_LOCK}"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # A file system without locks: the folder is never taken for an abandoned one.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(self.path / _LOCK)

    def keep(self) -> None:
        """It stays when its maker ends."""
        (self.path / _LOCK).unlink(missing_ok=True)
        os.close(self._lock)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        remove(self.path)
        os.close(self._lock)


@cache
def by_one_word(folder: str) -> Path:
    """Another name of the folder, which is made where it is not there, for as long as this process lives: for who
    writes lines for a compiler (`is_one_word`)."""
    make(Path(folder))
    name = TemporaryFolder("name").path / "folder"
    name.symlink_to(folder, target_is_directory=True)
    return name


def remove_abandoned() -> Path:
    """Remove the folders of makers that are gone. What is another user's, a link, or has no lock stays. Returns the
    system's folder for temporary files."""
    home = named(tempfile.gettempdir())
    for folder in home.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if is_folder(folder) and folder.lstat().st_uid == os.geteuid():
                _remove_if_free(folder)
    return home


def _remove_if_free(folder: Path) -> None:
    """Raises OSError where it has no lock, or somebody has it."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
    finally:
        os.close(lock)
