"""A fork server: a process that has imported a framework, from which a supervisor lets trials be forked.

The supervisor forks the search's trials from itself. The live processes of a block come from a process of their own and
from the supervisor in turns, so that whatever forks of one process have in common is another in the next block
(docs/decisions/0042-what-trials-share.md). All trials of a large model are forks of a server that holds it, which is a
fork of the supervisor itself (`hold_model`).

A server is a child of its supervisor like any other (`child`): it imports or builds, which may be paused while
something is timed, says that it waits, and rests in a read. A fork is handed over: it is the grandchild of the server,
whose parent between ends at once, so that the supervisor adopts it, and reaps and kills it as it does its own.

    to the server      one message: folder, names of the pipes, with the pipes and the outputs as descriptors
    from the server    the number of the process, or why there is none
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from autotune.backends.capabilities import ImportedAhead
from autotune.bench.child import run_fork, run_of
from autotune.bench.messages import PROBE, QUESTION_FILE, TRIAL
from autotune.environment import installed_packages
from autotune.errors import SetupError, quoted
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import start_when_possible
from autotune.trial.worker.built_ahead import WHY_FILE, build_ahead
from autotune.trial.worker.stages import GATE_FD_VARIABLE, STAGE_FD_VARIABLE, take_pipe

FORKS_FD_VARIABLE = "AUTOTUNE_FORKS_FD"
"""Number of the server's end of the socket."""
_MOST_BYTES = 2**16
_MOST_DESCRIPTORS = 8
_ANSWERS_WITHIN_S = 60.0


class ForkServer:
    """A fork server as its supervisor sees it. It must rest, and not be paused, when it is asked."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(_ANSWERS_WITHIN_S)

    @property
    def descriptor(self) -> int:
        """The supervisor's end: no trial inherits it."""
        return self._ours.fileno()

    def hand_over(self) -> dict[str, int]:
        """The pipe that the server is started with, by its variable."""
        return {FORKS_FD_VARIABLE: self._theirs.fileno()}

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Behind it the server has its end; where it could not be started, there is no socket."""
        try:
            yield
        except SetupError:
            self.close()
            raise
        finally:
            self._theirs.close()

    def fork(self, folder: TrialFolder, pipes: dict[str, int], outputs: Sequence[int]) -> int:
        """Start a trial. Returns the process number. Raises SetupError."""
        asked = {"folder": str(folder.path), "pipes": list(pipes)}
        try:
            socket.send_fds(self._ours, [json.dumps(asked).encode()], [*pipes.values(), *outputs])
            answer = self._ours.recv(_MOST_BYTES).decode()
        except OSError as error:
            answer = f"it does not answer: {error}"
        if not answer.isdigit():
            raise SetupError(f"the fork server started nothing: {answer or 'it has ended'}")
        return int(answer)

    def close(self) -> None:
        self._ours.close()


def preload(module: str, ahead: str = "", *of_model: str) -> ImportedAhead | None:
    """Import the framework, and its compiler with the module `ahead` if one is named, and these modules of the model,
    and read what each trial records of the machine. Raises where that fails, and SetupError if forking is not safe
    afterwards."""
    installed_packages()
    importlib.import_module(module)
    imported: ImportedAhead | None = importlib.import_module(ahead).import_ahead(of_model) if ahead else None
    try:
        num_threads = len(os.listdir("/proc/self/task"))
    except OSError:
        raise SetupError("the system does not tell the number of threads") from None
    if num_threads > 1:
        raise SetupError(f"importing {module} left {num_threads} threads")
    return imported


class _Forking:
    """The server in its own process, which may do something before it serves."""

    def __init__(self) -> None:
        stages, forks, gate = (take_pipe(name) for name in (STAGE_FD_VARIABLE, FORKS_FD_VARIABLE, GATE_FD_VARIABLE))
        assert stages is not None
        assert forks is not None
        assert gate is not None
        os.close(gate)  # It may be paused as a gated one may, and is never timed.
        self._stages = stages
        self._connection = socket.socket(fileno=forks)
        self._supervisor = os.getppid()
        self._imported: ImportedAhead | None = None

    def serve(self, imported: ImportedAhead | None) -> None:
        """Say that it waits, and fork until the supervisor closes its end."""
        self._imported = imported
        os.write(self._stages, f"{Stage.WAIT}\n".encode())
        while True:
            message, given, _, _ = socket.recv_fds(self._connection, _MOST_BYTES, _MOST_DESCRIPTORS)
            if not message:
                return
            try:
                self._fork(json.loads(message), given)
            except (OSError, SetupError) as error:
                self._connection.send(f"{error}".encode())
            for descriptor in given:
                os.close(descriptor)

    def _fork(self, asked: dict[str, Any], given: Sequence[int]) -> None:
        """Start a trial by way of a process that tells its number and ends, so that the supervisor is its parent."""
        between = start_when_possible(os.fork)
        if between:
            os.waitpid(between, 0)
            return
        parent = os.getpid()
        try:
            pid = start_when_possible(os.fork)
        except BaseException as error:
            self._connection.send(f"{error}".encode())
            os._exit(1)
        if pid:
            self._connection.send(str(pid).encode())
            os._exit(0)
        self._run(asked, given, parent)

    def _run(self, asked: dict[str, Any], given: Sequence[int], parent: int) -> NoReturn:
        """Be the trial, once this process's first parent has ended."""
        while os.getppid() == parent:
            time.sleep(0.0005)
        if os.getppid() != self._supervisor:
            os._exit(1)  # The supervisor has ended, too.
        pipes = dict(zip(asked["pipes"], given, strict=False))
        to_close = [self._connection.detach(), self._stages]
        outputs, run = given[len(pipes) :], run_of(TRIAL, self._imported)
        run_fork(TrialFolder(Path(asked["folder"])), pipes, outputs, to_close, run)


def hold_model(folder: TrialFolder, ahead: ImportedAhead | None) -> int:
    """Be a fork server that has built the model of the workload in this folder, in a fork of a process that has
    imported its framework, and return the exit status. What the folder asks of the model a fork answers first, so that
    this process begins no driver. Where the model cannot be held, why not is left there; this process answers, and
    ends."""
    forking = _Forking()
    answer, is_asked = run_of(PROBE, None), (folder.path / QUESTION_FILE).exists()
    try:
        build_ahead(folder.path)
    except Exception as error:
        (folder.path / WHY_FILE).write_text(str(error) if isinstance(error, SetupError) else quoted(error))
        if not is_asked:
            raise
        answer(folder)
        return 1
    if is_asked:
        answering = start_when_possible(os.fork)
        if not answering:
            return answer(folder)  # What a fork returns ends it.
        os.waitpid(answering, 0)
    forking.serve(ahead)
    return 0


def main(arguments: list[str]) -> None:
    """`fork_server.py FOLDER MODULE [AHEAD [OF_MODEL...]]`: import, say so, and fork until the supervisor closes its
    end."""
    forking = _Forking()
    forking.serve(preload(*arguments[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
