"""`AdvisoryLock`: one tuner at a time in a shared study, whatever machines they run on.

PostgreSQL frees the lock when the session that took it ends, as the kernel frees a file's lock: nothing has to be
renewed, no clocks are compared, and a killed process leaves nothing behind.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

_NOTICED_WHEN_GONE = (
    "SET tcp_keepalives_idle = 30",
    "SET tcp_keepalives_interval = 10",
    "SET tcp_keepalives_count = 3",
)
"""The server then ends the session of a machine that lost its power or network within a minute, not after two hours."""


class AdvisoryLock:
    """The lock of a study, held by a connection of its own."""

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
