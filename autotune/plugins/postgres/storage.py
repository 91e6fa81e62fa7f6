"""Optuna's storage on PostgreSQL: opened safely, patient while a server restarts, and its errors in sentences.

Nothing here removes or upgrades tables, and tables are made in an empty database only.
"""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from autotune.command_line import install
from autotune.errors import InputError, StoreError, causes, marked
from autotune.plugins.postgres.url import StorageUrl

# Its notes on every trial are for a terminal of its own; what matters comes through our events.
optuna.logging.set_verbosity(optuna.logging.WARNING)

PATIENCE_S = 300.0
"""How long a run waits for a server that went away: a restart takes seconds, another host that takes over a minute."""
_TABLES = frozenset({"studies", "trials", "version_info"})
_COLUMNS = sqlalchemy.text(
    "SELECT relname, attname FROM pg_class r JOIN pg_namespace n ON n.oid = relnamespace JOIN pg_attribute ON attrelid"
    " = r.oid WHERE nspname = current_schema() AND relkind IN ('r', 'p') AND attnum > 0"
)
"""Tables and their columns, of whoever may read them: in one round trip."""
_RELEASES: set[str] = set()
"""Schemas of databases that Optuna has checked in this process: a check reads all of its migrations."""
_CREATION = 5_117_268_400_917_001
"""Advisory lock of those who make the tables: two at once fail in PostgreSQL's catalogue."""
_CONNECTING = {"connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
"""A server or a firewall that goes silent is noticed within a minute."""
_log = logging.getLogger("autotune")


class PatientStorage(RDBStorage):
    """Optuna's storage, whose engine is given a function that connects. A connection that broke between two operations
    is made again; `patience_s`: the longest wait for that."""

    def __init__(self, url: StorageUrl, *, create: bool, is_checked: bool) -> None:
        self.patience_s = 0.0
        self._arguments = {**_CONNECTING, "application_name": "autotune", **url.connect_arguments()}
        self._shown = str(url)
        engine_kwargs = {"creator": self._connect, "pool_pre_ping": True, "pool_size": 2}
        # The engine's own URL has no password: nothing that SQLAlchemy says can hold it.
        super().__init__(
            "postgresql+psycopg://", engine_kwargs, skip_compatibility_check=is_checked, skip_table_creation=not create
        )

    def _connect(self) -> Any:
        import psycopg

        started, pause_s = time.monotonic(), 0.1
        while True:
            try:
                return psycopg.connect(**self._arguments)
            except psycopg.OperationalError:
                if time.monotonic() - started + pause_s > self.patience_s:
                    raise
            if pause_s == 0.1:
                _log.warning("no connection to %s: trying again for %.0f s", self._shown, self.patience_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)


def open_storage(url: StorageUrl, *, create: bool) -> PatientStorage | None:
    """The storage at the URL; None where the database is empty, unless its tables are to be made. Raises StoreError."""
    _require_driver()
    with storage_errors(url):
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=functools.partial(_connect_once, url))
        try:
            with engine.connect() as connection:
                if create:
                    connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": _CREATION})
                releases = _releases_of(connection, url)
                if releases is None and not create:
                    return None
                storage = PatientStorage(url, create=create, is_checked=not _RELEASES.isdisjoint(releases or ()))
                _RELEASES.update(releases or ())
                return storage
        except RuntimeError as error:
            raise StoreError(
                f"{url} has the schema of another Optuna release: {str(error).splitlines()[0]}",
                tip=f"make a dump, then run: optuna storage upgrade --storage {url}",
            ) from None
        finally:
            # Closing the connection frees the lock.
            engine.dispose()


def _connect_once(url: StorageUrl) -> Any:
    import psycopg

    return psycopg.connect(**{**_CONNECTING, **url.connect_arguments()})


def _require_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"{marked('storage')} needs the package psycopg 3, which cannot be imported ({str(error).splitlines()[0]})",
            tip=f"run: {install('postgres')}",
        ) from None


def _releases_of(connection: sqlalchemy.Connection, url: StorageUrl) -> set[str] | None:
    """What Optuna wrote of the schema of its tables; None where no tables are. Raises StoreError where others are: a
    database of something else."""
    columns = {(table, column) for table, column in connection.execute(_COLUMNS)}
    names = {table for table, _ in columns}
    if names >= _TABLES and ("studies", "study_name") in columns:
        written = "SELECT version_num FROM alembic_version"
        return set(connection.execute(sqlalchemy.text(written)).scalars()) if "alembic_version" in names else set()
    if names:
        raise StoreError(
            f"{url} is a database of something else: it has {len(names)} tables, and not Optuna's",
            tip="make one for the studies, for example with: createdb studies",
        )
    return None


@contextmanager
def storage_errors(url: StorageUrl) -> Iterator[None]:
    """Whatever goes wrong in PostgreSQL comes out as a StoreError that names the storage and says what to do."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        what, tip = _explain(error, url)
        # Without its causes: texts of the driver are shown with care, and say nothing more.
        raise StoreError(f"{url} {what}", tip=tip) from None


_BY_STATE = {
    "42501": ("may not be written by this user", "ask its owner for: GRANT ALL ON ALL TABLES IN SCHEMA public TO USER"),
    "25006": ("takes no writes: it is a standby, or set to read-only", "name the primary server"),
    "53100": ("cannot grow: the server's disk is full", "free some space there, then run the same command again"),
    "53300": ("has no connection left", "close what uses it, or raise max_connections of the server"),
}
"""PostgreSQL's own codes."""
_BY_WORDS = (
    (r"database .* does not exist", "does not exist on that server", "make it, for example with: createdb studies"),
    (
        r"password|authentication|role .* does not exist|no pg_hba",
        "refuses this user",
        "check the user, and the password in PGPASSWORD or ~/.pgpass",
    ),
    (
        r"resolve host|translate host|Name or service|name resolution",
        "names a host that is not known here",
        "check the host's name",
    ),
    (r"too many clients|remaining connection slots", *_BY_STATE["53300"]),
)
"""Pattern of what a failed connection says, for which there is no code; what it is; what to do."""


def _explain(error: BaseException, url: StorageUrl) -> tuple[str, str]:
    origin = _origin(error)
    state = getattr(origin, "sqlstate", None)
    if state in _BY_STATE:
        return _BY_STATE[state]
    lines = [line.strip(" \t-") for line in str(origin).splitlines() if line.strip()] or [type(origin).__name__]
    # Where a name has several addresses, the first line tells only that all of them failed.
    said = url.without_secrets(next((line for line in lines if re.search(r"failed: |FATAL", line)), lines[0]))
    for pattern, what, tip in _BY_WORDS:
        if state is None and re.search(pattern, str(origin)):
            return f"{what} ({said})", tip
    if state is None or was_cut_off(error):
        return (
            f"cannot be reached: {said}",
            "check host and port and that the server runs; what is recorded stays, and the same command goes on",
        )
    return f"gave an error: {type(origin).__name__}: {said}", "look into the server's log"


def _origin(error: BaseException) -> BaseException:
    """The driver's own error, found in the chain of causes."""
    origins = (getattr(cause, "orig", None) for cause in causes(error))
    return next((origin for origin in origins if isinstance(origin, BaseException)), error)


def was_cut_off(error: BaseException) -> bool:
    """The connection broke: the server went away, or something between."""
    return any(isinstance(cause, DBAPIError) and cause.connection_invalidated for cause in causes(error))
