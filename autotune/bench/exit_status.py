"""The outcome of a trial: what the child wrote, or a `Failure` derived from a signal, a timeout or a missing file."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from autotune import environment
from autotune.bench.messages import Exited
from autotune.errors import SetupError
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import kill_marked

MIN_FREE_BYTES = 200 * 2**20
"""Below this much free disk a trial is not started: compilers fill it, and SQLite needs room to commit."""

STOPPED = "stopped: "
"""The beginning of what is told of a process that took too long."""


def outcome_of(folder: TrialFolder, ended: Exited | None, *, oom_killed: bool) -> Outcome:
    """The child's outcome if it wrote one, else one derived from its exit; `ended` None: its supervisor was lost."""
    outcome = folder.read_outcome()
    if outcome is not None:
        return outcome
    reason, error = _reason(ended, oom_killed, folder)
    return Failure(reason=reason, stage=folder.read_stage(), error=error, evidence=str(folder.stderr))


def _reason(ended: Exited | None, oom_killed: bool, folder: TrialFolder) -> tuple[Reason, str]:
    if ended is None:
        kill_marked(folder.path)
        return Reason.SETUP, "the supervisor of the trial was lost (see supervisor.log in the study's folder)"
    reason, error = _how_it_ended(ended, oom_killed, folder)
    # A config cannot be at fault before it is applied.
    return (Reason.SETUP if folder.read_stage() in (Stage.START, Stage.BUILD) else reason), error


def _how_it_ended(ended: Exited, oom_killed: bool, folder: TrialFolder) -> tuple[Reason, str]:
    if ended.timed_out is not None:
        stuck = "; its process cannot be killed: it waits for a device or a disk" if ended.stuck else ""
        return Reason.TIMEOUT, f"{STOPPED}longer than its limit in stage {ended.timed_out}{stuck}"
    if free_bytes(folder.path) < MIN_FREE_BYTES // 4:
        return Reason.SETUP, "the disk is full"
    last_line = _last_line(folder.stderr)
    if os.WIFSIGNALED(ended.status):
        number = os.WTERMSIG(ended.status)
        # Real-time signals have no names.
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if number == signal.SIGKILL and oom_killed:
            return Reason.OUT_OF_MEMORY, f"killed by the kernel: out of memory{_limited()}"
        return Reason.CRASH, f"killed by {name}; last line of stderr: {last_line}"
    code = os.WEXITSTATUS(ended.status)
    return Reason.CRASH, f"ended with exit status {code} and no outcome; last line of stderr: {last_line}"


def _limited() -> str:
    """That not the machine's memory was used up, but what its container may use."""
    limit = environment.memory_limit_bytes()
    return "" if limit is None else f" (this container may use {limit / 2**30:.3g} GiB, with all of its processes)"


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # A trial may have written gigabytes before it timed out.
            file.seek(max(path.stat().st_size - 2**16, 0))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return "(none)"
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "(none)")


def free_bytes(path: Path) -> int:
    """Free space on the disk that holds `path`, which need not exist yet."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(existing).free


def require_disk(path: Path) -> None:
    """Raises SetupError where there is too little free space for a trial."""
    free = free_bytes(path)
    if free < MIN_FREE_BYTES:
        raise SetupError(
            f"{path}: {free / 2**20:.0f} MiB free on this disk, a trial needs {MIN_FREE_BYTES / 2**20:.0f} MiB",
            tip="free some space and run the same command again; recorded trials are kept",
        )
