"""Shared by the tests of plugins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.postgres import Server, why_missing

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A PostgreSQL server that a test file may kill."""
    missing = why_missing()
    if missing:
        pytest.skip(missing)
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def database(server: Server) -> str:
    """The name of an empty database."""
    name = f"studies{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    return name
