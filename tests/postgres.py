"""A PostgreSQL server of the tests' own, which they may kill."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

USER, PASSWORD = "tester", "s3cret/pass@word"
"""The password has to be escaped in a URL."""


def program(name: str) -> str | None:
    """A program of the server. Debian keeps them out of the PATH."""
    return shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)


def why_missing() -> str | None:
    """Why no server can be run here; None: it can."""
    missing = [name for name in ("initdb", "pg_ctl", "postgres") if program(name) is None]
    if missing:
        return f"no PostgreSQL server here: {', '.join(missing)} not found"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "the extra `postgres` (psycopg) is not installed"
    return None if _account() is not None else "the server refuses to run as root, and there is no other account"


def _account() -> dict[str, Any] | None:
    """For `subprocess`: the server refuses to be run by root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    return None


@dataclass
class Server:
    """A server on a port of this machine that asks for a password."""

    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="autotune-postgres-", dir="/tmp")))

    def __post_init__(self) -> None:
        self.account = _account() or {}
        if self.account:
            os.chown(self.home, self.account["user"], self.account["group"])
        self.home.chmod(0o700)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        password = self.home / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        subprocess.run(
            [str(program("initdb")), "-D", "data", "-U", USER, "-A", "scram-sha-256", "--pwfile", "password", "-N",
             "--locale=C", "-E", "UTF8"],
            cwd=self.home, check=True, capture_output=True, **self.account,
        )  # fmt: skip

    def start(self) -> None:
        """Returns when it takes connections. It is no child of this process: a test may leave none."""
        options = f"-p {self.port} -c unix_socket_directories= -c listen_addresses=127.0.0.1 -c shared_buffers=8MB"
        options += " -c fsync=off"  # What is killed is the server and not the machine.
        subprocess.run(
            [str(program("pg_ctl")), "-D", "data", "-l", "log", "-w", "-o", options, "start"],
            cwd=self.home, check=True, stdout=subprocess.DEVNULL, **self.account,
        )  # fmt: skip

    def process(self) -> psutil.Process:
        return psutil.Process(int((self.home / "data" / "postmaster.pid").read_text().splitlines()[0]))

    def kill(self) -> None:
        """As a crash does: no session hears of it. The server's other processes end when they see that it is gone."""
        main = self.process()
        processes = [main, *main.children()]
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes):
            time.sleep(0.01)
        (self.home / "data" / "postmaster.pid").unlink()

    def remove(self) -> None:
        if (self.home / "data" / "postmaster.pid").exists():
            self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def arguments(self, database: str) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port, "user": USER, "password": PASSWORD, "dbname": database}

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(**self.arguments(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def shown(self, database: str) -> str:
        """The URL without the password."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def url(self, database: str) -> str:
        return self.shown(database).replace("@", ":s3cret%2Fpass%40word@", 1)
