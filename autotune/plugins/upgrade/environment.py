"""`OtherEnvironment`: an interpreter with what this package needs, asked what it has before anything is measured."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import InputError, marked
from autotune.trial.processes import last_json, package_path

_ASKS_WITHIN_S = 120.0
_QUESTION = """
import json, platform
import autotune.trial.worker.main, autotune.bench.supervisor
from autotune.backends.registry import framework_version
print(json.dumps({{"python": platform.python_version(), "framework": framework_version({framework!r})}}))
"""
_MOST_SAID_BYTES = 2**20
_LOOKS_EVERY_S = 0.05


@dataclass(frozen=True)
class OtherEnvironment:
    """Another environment: its interpreter, and the releases in it."""

    python: Path
    framework_version: str
    python_version: str

    @classmethod
    def of(cls, place: str | os.PathLike[str], framework: str) -> OtherEnvironment:
        """The one of a virtual environment's folder, or of an interpreter. Raises InputError where it cannot run trials
        of the framework."""
        given = marked("against", str(place))
        python = _python_at(place)
        if python is None:
            raise InputError(f"{given}: no Python is there", tip=_NO_PYTHON)
        command = [str(python), "-P", "-c", _QUESTION.format(framework=framework)]
        variables = {**os.environ, "PYTHONPATH": package_path()}
        try:
            done = ask_program(command, variables, _ASKS_WITHIN_S)
        except OSError as error:
            raise InputError(f"{given}: cannot be started: {error.strerror}", tip=_NO_PYTHON) from None
        if done.status is None:
            raise InputError(f"{given}: it did not answer within {_ASKS_WITHIN_S:.0f} s", tip=_NO_PYTHON)
        if done.status != 0:
            tip = f"install this package and {framework} there: {python} -m pip install autotune-compile {framework}"
            raise InputError(f"{given}: cannot run trials: {done.last_line}", tip=tip)
        said = last_json(done.out, dict) or {}
        if not isinstance(said.get("framework"), str) or not isinstance(said.get("python"), str):
            raise InputError(f"{given}: it does not answer as a Python does", tip=_NO_PYTHON)
        return cls(python, said["framework"], said["python"])


_NO_PYTHON = "give a virtual environment, or its bin/python"


def _python_at(place: str | os.PathLike[str]) -> Path | None:
    """The interpreter of a folder, or the file itself; None where no program is there."""
    try:
        path = Path(place).expanduser()
        python = path / "bin" / "python" if path.is_dir() else path
        # Not resolved: a virtual environment's is a link to the one that it was made with.
        return python.absolute() if os.access(python, os.X_OK) and not python.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # Names that no file can have; nobody's home.
        return None


@dataclass(frozen=True)
class Said:
    """What a program printed and how it ended; `status` is None where it was stopped, since it took too long or printed
    too much."""

    status: int | None
    out: str
    errors: str

    @property
    def last_line(self) -> str:
        """The last line of its errors; one that says so where there is none."""
        return (self.errors.strip().splitlines() or ["it says nothing"])[-1]


def ask_program(command: Sequence[str], variables: Mapping[str, str], within_s: float) -> Said:
    """What a program says that need not be ours; what it leaves behind is stopped. Raises OSError where it cannot be
    started."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    deadline = time.monotonic() + within_s
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        try:
            for pipe in said:
                selector.register(pipe, selectors.EVENT_READ)
            has_ended = False
            # Once it has ended, only what is in the pipes: what it has started may keep them open.
            while time.monotonic() < deadline and max(map(len, said.values())) < _MOST_SAID_BYTES:
                has_ended = process.poll() is not None
                ready = selector.select(0 if has_ended else _LOOKS_EVERY_S)
                for key, _ in ready:
                    chunk = os.read(key.fd, 2**16)
                    said[key.fd] += chunk
                    if not chunk:
                        selector.unregister(key.fd)
                if has_ended and not ready:
                    break
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        out, errors = (text.decode(errors="replace") for text in said.values())
    return Said(status if has_ended else None, out, errors)
