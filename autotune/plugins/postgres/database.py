"""`SharedDatabase`: the records of a study in a PostgreSQL database (docs/decisions/0029-shared-studies.md)."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from autotune import environment
from autotune.command_line import command
from autotune.errors import StoreError, marked
from autotune.plugins.postgres.storage import PATIENCE_S, PatientStorage, storage_errors, was_cut_off
from autotune.plugins.postgres.url import StorageUrl
from autotune.schema import Record, read
from autotune.study.marker import Home

MANIFEST, HOME, _DRIVER = "manifest", "home", "driver"
"""Attributes of a study."""
_NOT_FOUND = "Record does not exist."
"""Optuna's words for a study that is not there."""
_NOTICED_WHEN_GONE = (
    "SET tcp_keepalives_idle = 30",
    "SET tcp_keepalives_interval = 10",
    "SET tcp_keepalives_count = 3",
)
"""The server then ends the session of a machine that lost its power or network within a minute, not after two hours."""
T = TypeVar("T")


class Driver(Record):
    """The process that took the study's lock last."""

    host: str
    pid: int
    token: str
    """Another one each time the lock is taken."""

    @classmethod
    def this_process(cls) -> Driver:
        return cls(host=environment.hostname(), pid=os.getpid(), token=uuid.uuid4().hex)

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


class AdvisoryLock:
    """The lock of a study, held by a connection of its own: one tuner at a time, whatever machines they run on.

    PostgreSQL frees it when the session that took it ends, as the kernel frees a file's lock: nothing has to be
    renewed, no clocks are compared, and a killed process leaves nothing behind.
    """

    def __init__(self, engine: Engine, study: str) -> None:
        self._engine = engine
        digest = hashlib.sha256(f"autotune study {study}".encode()).digest()
        self._key = {"key": int.from_bytes(digest[:8], signed=True)}
        self._connection: Connection | None = None

    def take(self) -> bool:
        """False if another session has it. Raises SQLAlchemyError where there is no connection."""
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            for setting in _NOTICED_WHEN_GONE:
                connection.execute(text(setting))
            taken = bool(connection.execute(text("SELECT pg_try_advisory_lock(:key)"), self._key).scalar_one())
        except BaseException:
            _discard(connection)
            raise
        if taken:
            self._connection = connection
        else:
            connection.close()
        return taken

    def is_held(self) -> bool:
        """Whether the session that took it lives."""
        if self._connection is None:
            return False
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            _discard(self._connection)
            self._connection = None
        return self._connection is not None

    def release(self) -> None:
        if self._connection is None:
            return
        connection, self._connection = self._connection, None
        try:
            # First, since the server may take a while to notice that a connection was closed.
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), self._key)
            connection.close()
        except SQLAlchemyError:
            _discard(connection)


def _discard(connection: Connection) -> None:
    with suppress(SQLAlchemyError):
        connection.invalidate()
    with suppress(SQLAlchemyError):
        connection.close()


class SharedDatabase:
    """A study's records among those of others."""

    locks_out_hosts = True

    def __init__(self, url: StorageUrl, opened: PatientStorage, study: str, home: Home, *, is_here: bool) -> None:
        self.storage = opened
        self.home = home
        self.is_here = is_here
        self._url = url
        self.name = study
        self._lock = AdvisoryLock(opened.engine, study)
        self._driver: Driver | None = None
        """This process, while it has the lock."""

    def __str__(self) -> str:
        return str(self._url)

    def run(self, operation: Callable[[], T]) -> T:
        with self._errors():
            try:
                return operation()
            except (StorageInternalError, DBAPIError) as error:
                if not self.storage.patience_s or not was_cut_off(error):
                    raise
            self.require_exclusive()
            return operation()

    def require_writable(self) -> None:
        """Its trials run where its evidence is."""
        if not self.is_here:
            raise StoreError(
                f"study {self.name!r} is one of host {self.home.host}, in {self.home.folder}: "
                "trials of two machines are not comparable",
                tip="go on there, or begin a study of this machine with "
                f"{marked('study', f'{self.name}-{environment.hostname()}')} and {marked('prior', self.name)}; if that "
                f"machine is gone, `{command('studies', 'rm', self.name)}` frees the name",
            )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self.require_writable()
        with self.locked():
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running trials, as `exclusive` does, from any machine."""
        with self._errors():
            if not self._lock.take():
                raise self._in_use()
        try:
            self._driver = Driver.this_process()
            with self._errors():
                self._write(_DRIVER, self._driver.model_dump())
            self.storage.patience_s = PATIENCE_S
            yield
        finally:
            self.storage.patience_s = 0.0
            self._driver = None
            self._lock.release()

    def require_exclusive(self) -> None:
        """A session that broke has lost the lock; it is taken again, unless another process was there since."""
        if self._driver is None or self._lock.is_held():
            return
        started = time.monotonic()
        with self._errors():
            while not self._lock.take():
                # The server may not have noticed yet that our own session is gone.
                if self._last_driver() != self._driver or time.monotonic() - started > PATIENCE_S:
                    raise self._in_use()
                time.sleep(1.0)
            if self._last_driver() != self._driver:
                self._lock.release()
                raise StoreError(
                    f"study {self.name!r} was tuned by another process ({self._last_driver()}) while the connection "
                    "was lost",
                    tip="run the same command again",
                )

    def manifest_id(self) -> str:
        with self._errors():
            return str(attributes(self.storage, self.name)[MANIFEST]["id"])

    def forget(self) -> None:
        with self._errors():
            optuna.delete_study(study_name=self.name, storage=self.storage)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """As `storage_errors`; and a study that somebody removes is a sentence too: a dashboard has a button for it."""
        with storage_errors(self._url):
            try:
                yield
            except KeyError as error:
                if error.args != (_NOT_FOUND,):
                    raise
                raise StoreError(f"{self} has no study {self.name!r} any more", tip="somebody removed it") from None

    def _in_use(self) -> StoreError:
        return StoreError(
            f"study {self.name!r} in {self._url} is being tuned by another process ({self._last_driver()})",
            tip=f"wait for it, or choose another study with {marked('study', 'NAME')}",
        )

    def _last_driver(self) -> Driver:
        return read(Driver.model_validate, attributes(self.storage, self.name)[_DRIVER])

    def _write(self, name: str, content: Any) -> None:
        self.storage.set_study_user_attr(self.storage.get_study_id_from_name(self.name), name, content)


def attributes(opened: PatientStorage, study: str) -> dict[str, Any]:
    """All attributes of a study. Raises KeyError for an unknown name."""
    return opened.get_study_user_attrs(opened.get_study_id_from_name(study))
