"""`SupervisorProcess`: the supervisor as its parent sees it, who starts it, gives orders, reads events, ends it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO

from autotune.bench.builder import Held
from autotune.bench.messages import LACKS, Event, LogTo, Order, Ready, decode, encode
from autotune.errors import SetupError
from autotune.measure.measurement import Stage
from autotune.trial.processes import PRELOAD_ONLY_VARIABLE, module_command, package_path, start_when_possible

_NUM_OF_FRAMEWORK = 2
"""Modules before those of the model: the framework, and its compiler's."""
_ENDS_WITHIN_S = 30.0
"""A supervisor whose stdin is closed; it waits 10 s for processes that cannot be killed."""

_PRELOAD_ONLY = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's BLAS starts threads when imported, and a process with threads must not fork."""


_KEPT: ContextVar[list[SupervisorProcess] | None] = ContextVar("kept", default=None)


@contextmanager
def kept_supervisors() -> Iterator[None]:
    """In here a supervisor that a bench leaves, with nothing running, is taken over by the next bench that wants one
    of the same modules and variables. None of them outlives it."""
    kept: list[SupervisorProcess] = []
    before = _KEPT.set(kept)
    try:
        yield
    finally:
        end_kept()
        _KEPT.reset(before)


def end_kept() -> None:
    """No bench here wants what was left so far."""
    kept = _KEPT.get() or []
    while kept:
        kept.pop().close()


class SupervisorProcess:
    """A running supervisor (`bench.supervisor`)."""

    def __init__(
        self,
        popen: Callable[[Sequence[str]], subprocess.Popen[bytes]],
        modules: Sequence[str],
        variables: Mapping[str, str],
        log: Path | None,
    ) -> None:
        self._popen = popen
        self._given = tuple(modules), dict(variables)
        self._log = log
        self._said = b""
        """What it had written to its stderr when it was left."""
        self._process = start_when_possible(lambda: popen(modules))
        self._modules = modules
        self._is_ready = False
        self._held: Held | None = None
        self.lacks: str | None = None
        """What it did not import, and why, once it is ready (`Ready`)."""

    @classmethod
    def begin(
        cls, modules: Sequence[str], variables: Mapping[str, str], log: Path | None, python: Path | None = None
    ) -> SupervisorProcess:
        """One that imports `modules`: a framework's, and that which imports its compiler. Raises SetupError.

        `log` takes its stderr; None: it writes to this process's. `python`: an interpreter in place of this one.
        """
        kept = _KEPT.get() or []
        for left in [each for each in kept if each._given == (tuple(modules), dict(variables)) and python is None]:
            kept.remove(left)
            if left._goes_on_in(log):
                return left
            left.close()
        return cls(lambda modules: _popen(modules, variables, log, python), modules, variables, log)

    def leave(self, held: Held | None) -> None:
        """Nobody needs it for now: it stays where others may (`kept_supervisors`), with the model that it holds, and
        ends elsewhere."""
        self._held, kept = held, _KEPT.get()
        if kept is None or self._log is None:
            self.close()
            return
        with suppress(OSError):
            self._said = self._log.read_bytes()
        kept.append(self)

    def take(self) -> Held | None:
        """What it was left with; once."""
        held, self._held = self._held, None
        return held

    def _goes_on_in(self, log: Path | None) -> bool:
        """Whether it runs, and writes to this log from now on, which has what it wrote before."""
        if log is None:
            return False
        try:
            with log.open("ab") as file:
                file.write(self._said)
            self.send(LogTo(str(log)))
        except OSError:
            return False
        self._log = log
        return True

    def wait_until_ready(self, limit_s: float) -> None:
        """It has imported the modules. Raises SetupError, and kills it, where that takes longer. Where the import of
        what the model brought ends the process, another one is begun without that."""
        if self._is_ready:
            return
        if not _says_something(self._process, limit_s):
            _kill_session(self._process)
            raise SetupError(
                f"stopped: importing {self._modules[0] if self._modules else 'the supervisor'} took longer than "
                f"{limit_s:.0f} s, the limit of stage {Stage.START}"
            )
        line = _pipe(self._process.stdout).readline()
        if not line and len(self._modules) > _NUM_OF_FRAMEWORK:
            self._begin_without_the_models()
            self.wait_until_ready(limit_s)
            return
        # Nothing from one that has ended: the first order finds out.
        said = decode(line) if line else None
        self.lacks = said.lacks if isinstance(said, Ready) else None
        self._is_ready = True

    def _begin_without_the_models(self) -> None:
        """An import that raises is told by the process itself; a crash is told here."""
        _close_pipes(self._process)
        status = self._process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        lacks = f"{LACKS}what the model imports each for itself: the import ended the process ({how})"
        self._modules = self._modules[:_NUM_OF_FRAMEWORK]
        self._process = start_when_possible(lambda: self._popen([*self._modules, lacks]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: Order | LogTo) -> None:
        """Raises BrokenPipeError where it has ended."""
        stdin = _pipe(self._process.stdin)
        stdin.write(encode(order))
        stdin.flush()

    def next_event(self) -> Event | None:
        """Waits for one; None where it has ended."""
        line = _pipe(self._process.stdout).readline()
        if not line:
            return None
        event = decode(line)
        assert isinstance(event, Event), "a supervisor tells events"
        return event

    def close(self) -> None:
        """Close its stdin: it kills what runs and ends. Waits until it has; kills it where that takes too long."""
        _close_pipes(self._process)
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            _kill_session(self._process)


def _popen(
    modules: Sequence[str], variables: Mapping[str, str], log: Path | None, python: Path | None
) -> subprocess.Popen[bytes]:
    added = {name: value for name, value in _PRELOAD_ONLY.items() if modules and name not in os.environ}
    environment = {
        **os.environ,
        **added,
        **variables,
        PRELOAD_ONLY_VARIABLE: ",".join(added.keys() - variables.keys()),
        "PYTHONPATH": package_path(variables.get("PYTHONPATH")),
    }
    stderr = None if log is None else log.open("ab")
    try:
        return subprocess.Popen(
            module_command("bench.supervisor", *modules, python=python or sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            # Its own session: Ctrl-C reaches the parent alone, which then closes the supervisor's stdin.
            start_new_session=True,
        )
    finally:
        if stderr is not None:
            stderr.close()


def _says_something(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """It has written to its stdout, or closed it, within the limit."""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(_pipe(process.stdout), selectors.EVENT_READ)
            return bool(selector.select(limit_s))
    except BaseException:
        _kill_session(process)
        raise


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor that does not listen. The kernel ends its trials with it."""
    _close_pipes(process)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"process {process.pid} cannot be killed, and left: it waits for a device or a disk\n")


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            _pipe(stream).close()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
