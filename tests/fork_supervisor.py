"""Supervisors, probes and programs of tests, forked from servers that have imported what they import.

A new Python takes 0.5 s of CPU time until it has imported NumPy and this package, 4 s with PyTorch and its compiler;
hundreds of tests start one. A server is a program of its own and not the tests' process, so that neither its threads
nor what a test has replaced comes along. What it forks is the tests' child, as it always is.

A test whose subject is the start itself takes the fixture `new_python`.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.backends.capabilities import ImportedAhead
from autotune.backends.registry import entry_of, load_backend
from autotune.bench import probe, supervisor
from autotune.bench.fork_server import preload
from autotune.bench.supervisor_process import _PRELOAD_ONLY
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import PRELOAD_ONLY_VARIABLE, module_command, package_path
from autotune.trial.request import Limits
from autotune.trial.worker import main as worker
from autotune.trial.worker import reference

_FAKE = ("autotune_fake.preloaded",)
_BARE = module_command("bench.supervisor")
_ANSWERS_WITHIN_S = 120.0
_OWN = ("AUTOTUNE_", "COLUMNS", "FAKE_", "PYTEST_", "TEST_", "TMPDIR", "XDG_")
"""Beginnings of the names of variables that no import reads: each test may have its own."""


class ForkServers:
    """A server for each framework, which a test is the first to need."""

    def __init__(self) -> None:
        self.is_used = True
        self._servers: dict[tuple[str, ...], _Server] = {}
        self._path = package_path()

    @property
    def pids(self) -> set[int]:
        return {each.pid for each in self._servers.values()}

    def popen(self, command: list[str], *, stderr: Any, env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """Stands in for `subprocess.Popen` where supervisors are started: a fork, where the command is that of a
        framework's supervisor, or of one of none, under the server's import path and variables."""
        modules = tuple(command[len(_BARE) :])
        server = self._server(modules, env) if command[: len(_BARE)] == _BARE else None
        if server is None:
            return subprocess.Popen(command, stderr=stderr, env=env, **options)
        (orders, stdin), (stdout, events) = os.pipe(), os.pipe()
        try:
            outputs = [orders, events, 2 if stderr is None else stderr.fileno()]
            pid = server.fork(outputs, env=env, modules=modules)
        finally:
            os.close(orders)
            os.close(events)
        return _Forked(command, pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def program(
        self, code: str, *arguments: str, pipes: Sequence[int] = (), stdout: int = 1
    ) -> subprocess.Popen[bytes]:
        """Start what `python -c code` would, here and with the outputs of this process, with PyTorch and its compiler
        imported if that is possible. The numbers of pipes that it inherits are its last arguments."""
        server = self._server(entry_of("torch").preloaded_on("cpu"), {**os.environ, "PYTHONPATH": package_path()})
        if server is None:
            command = [sys.executable, "-c", code, *arguments, *map(str, pipes)]
            env = {**os.environ, "PYTHONPATH": package_path()}
            return subprocess.Popen(command, pass_fds=pipes, env=env, stdout=stdout)
        env = {**os.environ, "PYTHONPATH": self._path}
        return _Forked([code], server.fork([0, stdout, 2, *pipes], env=env, code=code, arguments=arguments))

    def probe(self, framework: str, limits: Limits, folder: TrialFolder) -> bool:
        """Let a fork answer the question in the folder. Returns False where there is none, or it has left none."""
        env = {**os.environ, "PYTHONPATH": package_path(), "TMPDIR": str(folder.temporary)}
        server = self._server(entry_of(framework).preloaded_on("cpu"), env)
        if server is None:
            return False
        with folder.stdout.open("ab") as stdout, folder.stderr.open("ab") as stderr:
            stdin = os.open(os.devnull, os.O_RDONLY)
            pid = server.fork([stdin, stdout.fileno(), stderr.fileno()], env=env, probe=str(folder.path))
            os.close(stdin)
        ended = os.pidfd_open(pid)
        if not select.select([ended], [], [], min(limits.build, limits.total))[0]:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os.close(ended)
        return os.waitpid(pid, 0)[1] == 0

    def _server(self, modules: tuple[str, ...], env: dict[str, str]) -> _Server | None:
        if not self.is_used or env["PYTHONPATH"] != self._path:
            return None
        modules = modules or _FAKE
        if modules not in {_FAKE, *(entry_of(name).preloaded_on("cpu") for name in ("torch", "mindspore"))}:
            return None
        if modules not in self._servers:
            self._servers[modules] = _Server(modules, env)
        server = self._servers[modules]
        return server if modules == _FAKE or server.variables == _read_at_import(env) else None

    def close(self) -> None:
        for each in self._servers.values():
            each.close()


def _read_at_import(env: dict[str, str]) -> dict[str, str]:
    return {
        n: v
        for n, v in env.items()
        if not n.startswith(_OWN) and n not in (PRELOAD_ONLY_VARIABLE, *_PRELOAD_ONLY, "PYTHONPATH")
    }


class _Server:
    def __init__(self, modules: tuple[str, ...], env: dict[str, str]) -> None:
        self.variables = _read_at_import(env)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 2**20)
        # A session of its own, where no Ctrl-C reaches it: it ends when this process closes its end of the socket.
        server = subprocess.Popen(
            [*_BARE[:2], __file__, str(theirs.fileno()), *modules], env=env, pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._socket.settimeout(_ANSWERS_WITHIN_S)
        self.pid = server.pid

    def fork(self, descriptors: list[int], **asked: Any) -> int:
        """Returns the number of the process, a child of this one whose stdin, stdout and stderr these are."""
        supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 1)
        try:
            message = {**asked, "cwd": os.getcwd(), "parent": os.getpid()}
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
            return int(self._socket.recv(100))
        finally:
            supervisor.prctl(supervisor.PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self.pid, 0)


class _Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A child that was not started here."""

    def __init__(self, command: list[str], pid: int, stdin: Any = None, stdout: Any = None) -> None:
        self.args, self.pid, self.returncode, self.stderr = command, pid, None, None
        self.stdin, self.stdout = stdin, stdout
        self._child_created, self._waitpid_lock, self._sigint_wait_secs = True, threading.Lock(), 0.25
        self._communication_started, self._input, self.pipesize = False, None, -1


def main(connection: socket.socket, modules: list[str]) -> None:
    """Fork a supervisor, or the process of a probe, for each message, until the other end is closed."""
    imported = preload(*(*modules, "")[:2])
    supervisor.preload = lambda *_: imported
    if tuple(modules) == _FAKE:
        load_backend("fake")
        reference.write_in_child = _write_in_fork
    gc.freeze()  # No fork looks for garbage in what is imported.
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 2**20, 4)
        if not message:
            return
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                _run(connection, json.loads(message), descriptors, imported)
            os._exit(0)  # The tests' process adopts its child.
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _run(
    connection: socket.socket, asked: dict[str, Any], descriptors: list[int], imported: ImportedAhead | None
) -> None:
    _become_child(connection, asked, descriptors)
    if "modules" in asked:
        supervisor.main(asked["modules"])
        return
    code = 1
    try:
        if "probe" in asked:
            probe.main(TrialFolder(Path(asked["probe"])))
        else:
            _run_program(asked["code"], [*asked["arguments"], *map(str, descriptors[3:])], imported)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        worker.leave(code)


def _run_program(code: str, arguments: list[str], imported: ImportedAhead | None) -> None:
    """As `python -c` does; what the import keeps of its cache's folder is one that nobody has."""
    if imported is not None:
        imported.adopt(os.path.join(tempfile.gettempdir(), "none"))
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    sys.modules["__main__"] = main_module = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(main_module))


def _become_child(connection: socket.socket, asked: dict[str, Any], descriptors: list[int]) -> None:
    while os.getppid() != asked["parent"]:
        time.sleep(0.0005)
    os.setsid()
    connection.send(str(os.getpid()).encode())
    connection.close()
    for wanted, given in enumerate(descriptors[:3]):
        os.dup2(given, wanted)
        os.close(given)
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None  # The server found one under the variables of whoever came first.
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
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    os._exit(0)
