"""The parent's side of a trial: hand a request to the supervisor, wait, and bring back an `Outcome`.

Whatever becomes of the child, `run` returns a value: the child's own outcome, or a `Failure` made from a signal, a
timeout or silence. The parent blocks in a read; it never spins beside the process that is being timed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from autotune.backends import entry_of
from autotune.errors import HarnessError
from autotune.leftovers import kill_marked
from autotune.measurement import Failure, Outcome, Reason, Stage
from autotune.trial import TrialFolder, TrialRequest, module_command, package_path

StageCallback = Callable[[Stage], None]

MIN_FREE_BYTES = 200 * 2**20
"""Below this much free disk a trial is not started: compilers fill it, and SQLite needs room to commit."""

_PRELOAD_ONLY = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's BLAS starts threads when imported, and a process with threads must not fork."""


@dataclass(frozen=True)
class _Ended:
    status: int
    timed_out: str | None


class Runner:
    """Runs trials of one framework, one at a time. A context manager: leaving it leaves no process behind.

    `variables` stand before any Python of a trial starts. `preload` forks trials from a process that has imported the
    framework; requests run with `fresh=True` get a Python of their own all the same. `log` takes what the supervisor
    itself prints; None lets it through to this process's stderr, and so the trials' output (`echo`).
    """

    def __init__(self, framework: str, variables: dict[str, str], *, preload: bool, log: Path | None) -> None:
        entry = entry_of(framework)
        self._module = (entry.preload or "") if preload else ""
        self._variables = {**entry.process_variables, **variables}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
        self, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False, on_stage: StageCallback | None = None
    ) -> Outcome:
        """Write the request, wait for the child, and say what became of it. Raises HarnessError without disk."""
        _require_disk(folder.path)
        try:
            folder.write_request(request)
        except OSError as error:
            raise HarnessError(f"cannot write {folder.path}: {error.strerror}") from None
        oom_kills = _num_oom_kills()
        ended = self._run(folder, request, fresh, on_stage or (lambda _: None))
        outcome = _outcome(folder, ended, oom_killed=_num_oom_kills() > oom_kills)
        folder.drop_leftovers()
        return outcome

    def close(self) -> None:
        """Close the supervisor's stdin: it kills what runs and ends. Waits until it has."""
        if self._process is None:
            return
        process, self._process = self._process, None
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        process.wait()

    def _run(self, folder: TrialFolder, request: TrialRequest, fresh: bool, on_stage: StageCallback) -> _Ended | None:
        """None if the supervisor itself was lost; the next trial gets a new one."""
        order = {
            "folder": str(folder.path),
            "fresh": fresh,
            "echo": self._log is None,
            "limits": request.limits.model_dump(),
        }
        try:
            process = self._supervisor()
            assert process.stdin is not None
            process.stdin.write((json.dumps(order) + "\n").encode())
            process.stdin.flush()
            while (event := self._next_event(process)) is not None:
                if event["event"] == "stage":
                    on_stage(Stage(event["stage"]))
                elif event["event"] == "ended":
                    return _Ended(event["status"], event["timed_out"])
        except BrokenPipeError:
            pass
        except BaseException:
            self.close()
            raise
        self.close()
        return None

    def _supervisor(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = self._start()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        added = {name: value for name, value in _PRELOAD_ONLY.items() if self._module and name not in os.environ}
        environment = {
            **os.environ,
            **added,
            **self._variables,
            "AUTOTUNE_PRELOAD_ONLY": ",".join(added.keys() - self._variables.keys()),
            "PYTHONPATH": package_path(self._variables.get("PYTHONPATH")),
        }
        stderr = None if self._log is None else self._log.open("ab")
        try:
            return subprocess.Popen(
                module_command("supervisor", self._module),
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

    @staticmethod
    def _next_event(process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            return None
        event: dict[str, Any] = json.loads(line)
        return event


def repeat_command(folder: TrialFolder, request: TrialRequest) -> str:
    """The plain shell command that runs a trial again, without this runner."""
    variables = {
        **entry_of(request.workload.framework).process_variables,
        **request.variables,
        "PYTHONPATH": package_path(request.variables.get("PYTHONPATH")),
    }
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*settings, shlex.join(module_command("worker", str(folder.path)))])


def _outcome(folder: TrialFolder, ended: _Ended | None, oom_killed: bool) -> Outcome:
    """The child's own outcome if it left one, else what its end tells."""
    told = folder.read_outcome()
    if told is not None:
        return told
    reason, error = _reason(ended, oom_killed, folder)
    return Failure(reason=reason, stage=folder.read_stage(), error=error, evidence=str(folder.stderr))


def _reason(ended: _Ended | None, oom_killed: bool, folder: TrialFolder) -> tuple[Reason, str]:
    if ended is None:
        kill_marked(folder.path)
        return Reason.HARNESS, "the supervisor of the trial was lost (see supervisor.log in the study's folder)"
    reason, error = _how_it_ended(ended, oom_killed, folder)
    # Before a config is applied, nothing can be its fault.
    return (Reason.HARNESS if folder.read_stage() in (Stage.START, Stage.BUILD) else reason), error


def _how_it_ended(ended: _Ended, oom_killed: bool, folder: TrialFolder) -> tuple[Reason, str]:
    if ended.timed_out is not None:
        return Reason.TIMEOUT, f"stopped: longer than its limit in stage {ended.timed_out}"
    if _free_bytes(folder.path) < MIN_FREE_BYTES // 4:
        return Reason.HARNESS, "the disk is full"
    last_words = _last_line(folder.stderr)
    if os.WIFSIGNALED(ended.status):
        number = os.WTERMSIG(ended.status)
        name = signal.Signals(number).name
        if number == signal.SIGKILL and oom_killed:
            return Reason.OUT_OF_MEMORY, "killed by the kernel: out of memory"
        return Reason.CRASH, f"killed by {name}; last line of stderr: {last_words}"
    code = os.WEXITSTATUS(ended.status)
    return Reason.CRASH, f"ended with exit status {code} and no outcome; last line of stderr: {last_words}"


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "(none)"
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "(none)")


def _require_disk(path: Path) -> None:
    free = _free_bytes(path)
    if free < MIN_FREE_BYTES:
        raise HarnessError(
            f"{path}: {free / 2**20:.0f} MiB free on this disk, a trial needs {MIN_FREE_BYTES / 2**20:.0f} MiB",
            tip="free some space and run the same command again; nothing recorded is lost",
        )


def _free_bytes(path: Path) -> int:
    existing = next(each for each in (path, *path.parents) if each.exists())
    return shutil.disk_usage(existing).free


def _num_oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot (Linux; else 0)."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
