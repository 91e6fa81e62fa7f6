"""Supervisors of the fake framework, forked from a server that has imported what they import.

A new Python takes 0.5 s of CPU time until it has imported NumPy and this package, and hundreds of tests start one for
the supervisor and one for the wide reference. The server is a program of its own and not the tests' process, so that
neither its threads nor what a test has replaced comes along. A supervisor is the tests' child, as it always is.

A test whose subject is the start itself takes the fixture `new_python`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from autotune.backends.registry import load_backend
from autotune.bench import supervisor
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import module_command, package_path
from autotune.trial.worker import main as worker
from autotune.trial.worker import reference

_MODULE = "autotune_fake.preloaded"
_ANSWERS_WITHIN_S = 120.0


class ForkServer:
    """Stands in for `subprocess.Popen` where supervisors are started."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.is_used = True
        self._socket: socket.socket | None = None
        self._path = package_path()

    def popen(self, command: list[str], *, stderr: Any, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """A fork, where the command starts a supervisor of the fake framework under the server's import path."""
        is_ordinary = command == module_command("bench.supervisor", _MODULE) and env["PYTHONPATH"] == self._path
        if not self.is_used or not is_ordinary:
            return subprocess.Popen(command, stderr=stderr, env=env, **options)
        if self._socket is None:
            self._start(command, env)
        assert self._socket is not None
        (orders, stdin), (stdout, events) = os.pipe(), os.pipe()
        supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1)
        try:
            errors = 2 if stderr is None else stderr.fileno()
            asked = {"env": env, "cwd": os.getcwd(), "parent": os.getpid()}
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [orders, events, errors])
            pid = int(self._socket.recv(100))
        finally:
            supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 0)
            os.close(orders)
            os.close(events)
        return _Forked(command, pid, stdin, stdout)

    def _start(self, command: list[str], env: dict[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 2**20)
        # A session of its own, where no Ctrl-C reaches it: it ends when this process closes its end of the socket.
        server = subprocess.Popen(
            [*command[:2], __file__, str(theirs.fileno())], env=env, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._socket.settimeout(_ANSWERS_WITHIN_S)
        self.pid = server.pid

    def close(self) -> None:
        if self._socket is not None and self.pid is not None:
            self._socket.close()
            os.waitpid(self.pid, 0)


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A child that was not started here."""

    def __init__(self, command: list[str], pid: int, stdin: int, stdout: int) -> None:
        self.args, self.pid, self.returncode, self.stderr = command, pid, None, None
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self._child_created, self._waitpid_lock, self._sigint_wait_secs = True, threading.Lock(), 0.25
        self._communication_started, self._input, self.pipesize = False, None, -1


def main(connection: socket.socket) -> None:
    """Fork a supervisor for each message, until the other end is closed."""
    load_backend("fake")
    reference.write_in_child = _write_in_fork
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 2**20, 3)
        if not message:
            return
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                _become_supervisor(connection, json.loads(message), descriptors)
                supervisor.main([_MODULE])
            os._exit(0)  # The tests' process adopts its child.
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _become_supervisor(connection: socket.socket, asked: dict[str, Any], descriptors: list[int]) -> None:
    while os.getppid() != asked["parent"]:
        time.sleep(0.0005)
    os.setsid()
    connection.send(str(os.getpid()).encode())
    connection.close()
    for wanted, given in enumerate(descriptors):
        os.dup2(given, wanted)
        os.close(given)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])


def _write_in_fork(folder: TrialFolder) -> int:
    """As `reference.write_in_child`, without a new Python."""
    sys.stderr.write("the untuned model is run for --reference first\n")
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = worker.main([str(folder.path), reference.ONLY])
        finally:
            worker.leave(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
