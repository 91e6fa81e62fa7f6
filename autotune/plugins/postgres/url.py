"""`StorageUrl`: the URL of a PostgreSQL database, whose password is never shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from autotune.command_line import options
from autotune.errors import InputError, marked
from autotune.study.storages import url_given

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_SHOWN = ("host", "port", "service", "sslmode", "sslrootcert")
"""Options after the `?` that hold no secret, and that a command needs to find the storage again."""
_FORM = "give postgresql://USER@HOST:PORT/DATABASE, and the password in PGPASSWORD or ~/.pgpass"


@dataclass(frozen=True, repr=False)
class StorageUrl:
    """Where shared studies are. Its text has no password."""

    url: URL

    def __str__(self) -> str:
        given = self.url
        query = {name: value for name, value in given.query.items() if name in _SHOWN}
        shown = URL.create("postgresql", given.username, None, given.host, given.port, given.database, query)
        return shown.render_as_string()

    __repr__ = __str__

    @property
    def flag(self) -> str:
        """What a command needs to find the storage; nothing where the environment names it."""
        usual = url_given(None)
        is_usual = usual is not None and str(parse_storage(usual)) == str(self)
        return "" if is_usual else options(storage=self)

    def without_secrets(self, text: str) -> str:
        """A text from elsewhere, in which the password may stand."""
        hidden = (value for name, value in self.url.query.items() if name not in _SHOWN)
        for secret in filter(None, (self.url.password, *hidden)):
            for form in {str(secret), quote(str(secret))}:
                text = text.replace(form, "***")
        return text

    def connect_arguments(self) -> dict[str, Any]:
        """For `psycopg.connect`, the password among them."""
        return dict(self.url.get_dialect()().create_connect_args(self.url)[1])


def parse_storage(text: str) -> StorageUrl:
    """Raises InputError, which repeats nothing that may be a password."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InputError(f"{marked('storage')}: not the URL of a database", tip=_FORM) from None
    if url.drivername not in _SCHEMES:
        raise InputError(f"{marked('storage', f'{url.drivername}://...')}: not the driver of this package", tip=_FORM)
    if "@" in (url.host or ""):
        raise InputError(
            f"{marked('storage')}: there are two @ in it",
            tip="write an @ of the password as %40, or keep the password in ~/.pgpass",
        )
    found = StorageUrl(url.set(drivername="postgresql+psycopg"))
    if not url.database and "service" not in url.query:
        raise InputError(f"{marked('storage', found)}: names no database", tip=_FORM)
    return found
