"""A study's SQLite file: opening it safely, and turning what SQLite says into sentences.

WAL and a long busy timeout, so that a dashboard or a shell that reads does not make a trial's result fail to be
written (docs/decisions/0003-study-storage.md). Nothing here ever deletes or repairs a database.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import URL, event
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import StoreError, causes, marked
from autotune.own_folders import absolute, require_no_link, require_one_name

# Its notes on every trial are for a terminal of its own; what matters comes through our events.
optuna.logging.set_verbosity(optuna.logging.WARNING)

BUSY_TIMEOUT_S = 60.0
MIN_FREE_BYTES = 2**18
"""Less room on the disk is none: the index of the log of writes has 32 KiB, an outcome up to 100."""

_TABLES = frozenset(
    {
        *("alembic_version", "version_info", "studies", "study_directions", "study_user_attributes"),
        *("study_system_attributes", "trials", "trial_user_attributes", "trial_system_attributes", "trial_params"),
        *("trial_values", "trial_intermediate_values", "trial_heartbeats"),
    }
)
"""Optuna's."""
_RELEASES: set[str] = set()
"""Schemas of files that Optuna has checked in this process."""
_SENTENCES = {
    "SQLITE_BUSY": ("is locked by another process", "close what writes to it, then run the same command again"),
    "SQLITE_LOCKED": ("is locked by another process", "close what writes to it, then run the same command again"),
    "SQLITE_FULL": ("cannot grow: the disk is full", "free some space, then run the same command again"),
    "SQLITE_READONLY": ("cannot be written", "check its permissions and those of its folder"),
    "SQLITE_CANTOPEN": ("cannot be opened", "check its permissions and those of its folder"),
    "SQLITE_NOTADB": ("is not a SQLite database", "restore it from a copy, or start another study under another name"),
    "SQLITE_CORRUPT": (
        "is damaged",
        "restore it from a copy or try `sqlite3 study.db .recover`; the trials/ folders still hold each outcome",
    ),
    "SQLITE_IOERR": ("cannot be read or written: the disk gave an error", "check the disk"),
}


def open_storage(path: Path, *, create: bool, timeout_s: float = BUSY_TIMEOUT_S) -> RDBStorage:
    """Optuna's storage on the SQLite file at `path`. Raises StoreError; creates the file only if told to.

    Where the file or its folder cannot be written, or the disk is full, the storage can be read.
    """
    reads_only = not create and not is_writable(path)
    is_checked = create
    if not create:
        with reading(path, timeout_s) as connection:
            is_checked = is_of_this_release(connection)
    with storage_errors(path):
        try:
            # Built from its parts: a path may hold what a URL gives another meaning.
            url = URL.create("sqlite", database=str(path)).render_as_string()
            how: dict[str, Any] = {"connect_args": {"timeout": timeout_s}}
            if reads_only:
                how = {"creator": lambda: sqlite3.connect(_reading(path), uri=True, check_same_thread=False)}
            # Optuna fills braces in.
            filled = url.replace("{", "{{").replace("}", "}}")
            # The tables of a new file are those of this release; the check of another reads all of Optuna's migrations.
            storage = RDBStorage(filled, engine_kwargs=how, skip_compatibility_check=is_checked)
        except RuntimeError as error:
            raise StoreError(
                f"{path} has the schema of another Optuna release: {str(error).splitlines()[0]}",
                tip="make a copy, then run: optuna storage upgrade --storage sqlite:///" + str(path),
            ) from None
        if not reads_only:
            event.listen(storage.engine, "connect", _use_wal)
        storage.engine.dispose()
    if not is_checked:
        with reading(path, timeout_s) as connection:
            _RELEASES.update(_release_of(connection))
    return storage


def require_writable(path: Path) -> None:
    """Raises StoreError where the database cannot be written, for which there must be room in its folder too."""
    if is_writable(path):
        return
    if _is_full(path):
        what, tip = _SENTENCES["SQLITE_FULL"]
        raise StoreError(f"{path} {what}", tip=tip)
    raise StoreError(
        f"{path.parent} cannot be written",
        tip="check its permissions, or copy it to a place that can be written and name that with "
        f"{marked('studies_dir')}",
    )


def is_writable(path: Path) -> bool:
    """The database can be written, and so can its folder, where SQLite keeps its log of writes and the log's index."""
    how = {"effective_ids": os.access in os.supports_effective_ids}
    may = os.access(path, os.W_OK, **how) and os.access(path.parent, os.W_OK | os.X_OK, **how)
    return may and not _is_full(path)


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < MIN_FREE_BYTES
    except OSError:
        return False


def _reading(path: Path) -> str:
    """How SQLite is told to read the file and to write nothing at all. Raises StoreError where that cannot be.

    In WAL mode even a reader writes beside the file, unless it is told that nobody changes it. What was not folded into
    the file yet can be read only with the index of its writer.
    """
    log, index = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    if not log.exists() or log.stat().st_size == 0:
        return absolute(path).as_uri() + "?mode=ro&immutable=1"
    if index.exists():
        return absolute(path).as_uri() + "?mode=ro"
    raise StoreError(
        f"{path} was not closed by the run that wrote it, and its folder cannot be written",
        tip=f"copy the study to a place that can be written, and name that with {marked('studies_dir')}",
    )


def holds_nothing(path: Path) -> bool:
    """Whether this is the database of a study that was being made: empty, or some of Optuna's tables without a trial.

    Nobody may use it meanwhile; what its writer did not complete is rolled back.
    """
    try:
        with closing(sqlite3.connect(absolute(path).as_uri() + "?mode=rw", uri=True)) as connection:
            found = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not found <= _TABLES:
                return False
            return "trials" not in found or not connection.execute("SELECT count(*) FROM trials").fetchone()[0]
    except sqlite3.Error:
        return False


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Whatever goes wrong in SQLite comes out as a StoreError that names the file and says what to do."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError) as error:
        what, tip = _explain(error)
        # Without room for its index SQLite speaks of an error of the disk.
        if what == _SENTENCES["SQLITE_IOERR"][0] and _is_full(path):
            what, tip = _SENTENCES["SQLITE_FULL"]
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if what == _SENTENCES["SQLITE_IOERR"][0] and most != resource.RLIM_INFINITY:
            what, tip = f"cannot grow: a file may have {most:,} bytes here", "raise the limit (ulimit -f)"
        raise StoreError(f"{path} {what}", tip=tip) from error


@contextmanager
def exclusive(path: Path, otherwise: str = "is being tuned by another process") -> Iterator[None]:
    """Hold the lock file at `path`: one tuner at a time in a study. The kernel frees it when the process ends.

    Raises StoreError, which says `otherwise` of the folder, where another process holds it.
    """
    with _opened(path) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 64).decode(errors="replace").strip() or "unknown"
            raise StoreError(
                f"{path.parent} {otherwise} (pid {holder})",
                tip=f"wait for it, or choose another study with {marked('study', 'NAME')}",
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The lock file's descriptor; closing it frees the lock. Raises StoreError if the file cannot be made."""
    require_one_name(path)
    try:
        # A link would have the file that it leads to emptied.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        require_no_link(path)
        raise StoreError(f"cannot write {path}: {error.strerror}", tip="check the folder's permissions") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _use_wal(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


@contextmanager
def reading(path: Path, timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[sqlite3.Connection]:
    """The file, which is a study's and undamaged, to be read. Raises StoreError. Optuna itself would create a missing
    file and take an empty or foreign one for a new storage."""
    if not path.exists():
        raise StoreError(f"{path} is missing", tip=f"restore it, or start another study with {marked('study', 'NAME')}")
    uri = absolute(path).as_uri() + "?mode=ro" if is_writable(path) else _reading(path)
    with storage_errors(path), closing(sqlite3.connect(uri, uri=True, timeout=timeout_s)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"studies", "trials", "version_info"} <= tables:
            raise StoreError(
                f"{path} is no study's database: it has {len(tables)} tables and not Optuna's",
                tip=f"choose another study with {marked('study', 'NAME')}",
            )
        damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            what, tip = _SENTENCES["SQLITE_CORRUPT"]
            raise StoreError(f"{path} {what} ({damage.splitlines()[0]})", tip=tip)
        yield connection


def is_of_this_release(connection: sqlite3.Connection) -> bool:
    """Whether Optuna has found a file of the same schema to be its own, in this process."""
    return not _RELEASES.isdisjoint(_release_of(connection))


def _release_of(connection: sqlite3.Connection) -> set[str]:
    """What Optuna wrote of its schema; nothing where it wrote nothing."""
    try:
        return {row[0] for row in connection.execute("SELECT version_num FROM alembic_version")}
    except sqlite3.OperationalError:
        return set()


def _explain(error: BaseException) -> tuple[str, str]:
    """SQLite's own error code, found in the chain of causes, in words."""
    for cause in causes(error):
        name = getattr(getattr(cause, "orig", cause), "sqlite_errorname", "") or ""
        # Extended codes, e.g. SQLITE_READONLY_DBMOVED, begin with the plain one.
        for code, sentence in _SENTENCES.items():
            if name.startswith(code):
                return sentence
    return f"gave an error: {type(error).__name__}: {str(error).splitlines()[0]}", "see the cause above"
