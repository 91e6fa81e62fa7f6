"""`Child`: a running trial as its supervisor knows it: process, state, deadlines, and who has paused it.

A trial's process tells what it does, one word at a time, on a pipe of its own (`trial.worker.stages`): the stage that
it enters, or that it `queued` for its device and was `served`, or that its compiler wants to be `alone` and is done
(`together`). What it says moves it from state to state, by the table `NEXT`; a word that has no entry is ignored, since
whatever runs in that process may write into the pipe. Two moves are the supervisor's: a child that asks to be alone
gets its turn, and one whose time is up, or that nobody needs, is killed.

    state      it ...                                                    limits count   it goes on when
    WORKING    builds, compiles, checks, or is timed                     yes            it says so
    WAITING    waits for its turn, stopped (SIGSTOP) if it `stops`       no             `Turn` or `Finish` comes
    QUEUED     waits for the device, which a trial of another run has    no             it has it
    ASKING     waits until its compiler may time candidates              yes            all others are paused
    ALONE      has a compiler that times candidates; others are paused   yes            it is done
    KILLED     was killed and has not ended yet; after five minutes of   5 min          the kernel says that it ended
               that it is left: it waits for a device or a disk

The end of the run (`ends_at`) holds in each of them, but for turns of a live process, which its user gives in time.

Pausing lies across the states. A trial is paused by its parent while another one is timed, or by a compiler of another
trial that times candidates, or by both, and goes on when nobody pauses it; a pause counts nowhere. What waits for its
turn is at rest and is not paused: for that, and for what comes to wait at the very moment in which it is paused, a
process that goes on is stopped again at once if it waits.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import NoReturn

from autotune.backends.capabilities import ImportedAhead
from autotune.bench.bounded_log import BoundedLog
from autotune.bench.messages import TRIAL
from autotune.bench.reaper import continue_tree, kill_group, stop_tree
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import MARK_VARIABLE, PRELOAD_ONLY_VARIABLE, mark_of, start_when_possible
from autotune.trial.worker import main as worker
from autotune.trial.worker.stages import ALONE, QUEUED, SERVED, TOGETHER

LONGEST_WAIT_S = 86400.0
"""The system call takes milliseconds in 32 bits, so a wait ends after a day and is repeated."""
_AFTER_KILL_S = 300.0
"""A killed process ends in milliseconds; one that waits in a device driver may never end."""
Run = Callable[[TrialFolder], int]
"""What a fork does for a folder; returns its exit status."""
PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1


class State(Enum):
    """See above."""

    WORKING = auto()
    WAITING = auto()
    QUEUED = auto()
    ASKING = auto()
    ALONE = auto()
    KILLED = auto()


_STAGES = {stage.value: State.WORKING for stage in Stage if stage is not Stage.WAIT}
NEXT: Mapping[State, Mapping[str, State]] = {
    State.WORKING: {**_STAGES, Stage.WAIT.value: State.WAITING, QUEUED: State.QUEUED, ALONE: State.ASKING},
    State.WAITING: _STAGES,
    State.QUEUED: {SERVED: State.WORKING},
    State.ASKING: {},
    State.ALONE: {TOGETHER: State.WORKING},
    State.KILLED: {},
}
"""State -> what the process says in it -> the state that this leads to."""
_AT_REST = (State.WAITING, State.QUEUED)
"""In these no limit counts."""


@dataclass(eq=False)
class Child:
    """A running trial: its process and group, the pipe of its stages, that of its turns, the deadlines."""

    folder: str
    pid: int
    stages: int
    turns: int | None
    """None: it takes its samples without being told."""
    stops: bool
    """Whether the child is stopped (SIGSTOP) while it waits for its turn."""
    limits: dict[str, float]
    logs: list[BoundedLog] = field(default_factory=list)
    """Logs of its stdout and stderr; none where it writes to the supervisor's stderr."""
    state: State = State.WORKING
    stage: str = Stage.START.value
    stage_started: float = field(default_factory=time.monotonic)
    busy_s: float = 0.0
    """Seconds spent in earlier stages, without those of waiting for a turn."""
    timed_out: str | None = None
    """The stage whose limit ended it."""
    ends_at: float | None = None
    """When it must have ended, or be a live one that takes turns, whatever counts until then; None: whenever."""
    is_live: bool = False
    killed_at: float = 0.0
    queued_at: float = 0.0
    paused_by: set[str] = field(default_factory=set)
    paused_at: float | None = None
    paused_s: float = 0.0
    """In all, without a pause that is not over."""

    def seconds_left(self) -> float:
        """Until it must have come on, or, once it was killed, to its end."""
        if self.state is State.KILLED:
            return self.killed_at + _AFTER_KILL_S - time.monotonic()
        takes_turns = self.is_live and self.stage in (Stage.WAIT.value, Stage.RUN.value)
        left_s = LONGEST_WAIT_S if self.ends_at is None or takes_turns else self.ends_at - time.monotonic()
        if self.state in _AT_REST or self.paused_at is not None:
            return left_s
        in_stage = time.monotonic() - self.stage_started
        return min(self.limits[self.stage] - in_stage, self.limits["total"] - self.busy_s - in_stage, left_s)

    def hear(self, word: str) -> State | None:
        """Take in what the process says. Returns its new state; None where that means nothing now."""
        before, after = self.state, NEXT[self.state].get(word)
        if after is None:
            return None
        now = time.monotonic()
        if before is State.QUEUED:
            self.stage_started += now - self.queued_at  # The time between counts nowhere.
        elif after is State.QUEUED:
            self.queued_at = now
        elif after is State.WAITING or word in _STAGES:
            self.busy_s += 0.0 if before is State.WAITING else now - self.stage_started
            self.stage, self.stage_started = word, now
        self.state = after
        if after is State.WAITING:
            self._signal(signal.SIGSTOP)
        return after

    def wake(self) -> None:
        """Let its threads continue."""
        self._signal(signal.SIGCONT)

    def wake_for_fork(self) -> None:
        """A fork server that rests may have been paused just before it said so."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def pause(self, by: str) -> None:
        """Stop all its processes; the time until `resume` counts nowhere."""
        if self.state is State.WAITING:
            return
        self.paused_by.add(by)
        if self.paused_at is None:
            stop_tree(self.pid)
            self.paused_at = time.monotonic()

    def resume(self, by: str) -> None:
        """Let them go on."""
        self.paused_by.discard(by)
        if self.paused_at is None or self.paused_by:
            return
        pause_s = time.monotonic() - self.paused_at
        self.paused_at = None
        self.paused_s += pause_s
        if self.state is not State.QUEUED:  # else it is a part of the wait for the device
            self.stage_started += pause_s
        with suppress(OSError):  # Without the file its compile time is too long by the pause, which is no failure.
            TrialFolder(Path(self.folder)).write_paused(self.paused_s)
        continue_tree(self.pid)
        if self.state is State.WAITING:
            self._signal(signal.SIGSTOP)

    def kill(self, *, timed_out: bool) -> None:
        """Its time is up, or nobody needs it any more."""
        self.timed_out = self.stage if timed_out else None
        self.state, self.killed_at = State.KILLED, time.monotonic()
        kill_group(self.pid)
        with suppress(ProcessLookupError):  # One that has just been forked leads no group yet.
            os.kill(self.pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.stops:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def answer(self) -> None:
        """Let it begin with what it waits for: its turn, or its compiler's timing."""
        if self.turns is not None:
            with suppress(BrokenPipeError):
                os.write(self.turns, b".")

    def close_turns(self) -> None:
        """Close the pipe of its turns, so that it finishes."""
        if self.turns is not None:
            os.close(self.turns)
            self.turns = None


def fork_worker(
    folder: TrialFolder, pipes: dict[str, int], outputs: Sequence[int], to_close: Sequence[int], run: Run
) -> int:
    """Start a trial, or another program for a folder, in a fork of this process, which has imported the framework.
    Returns the process number.

    `outputs`: pipes for its stdout and stderr; none: it writes to this process's stderr.
    """
    pid = start_when_possible(os.fork)
    return pid or run_fork(folder, pipes, outputs, to_close, run)


def run_fork(
    folder: TrialFolder, pipes: dict[str, int], outputs: Sequence[int], to_close: Sequence[int], run: Run
) -> NoReturn:
    """Run a trial, or another program, in this process, a fork of one that has imported the framework, and end with
    it."""
    code = 1
    try:
        for descriptor in to_close:  # The supervisor's stdin among them, in whose place comes the child's.
            os.close(descriptor)
        _become_child(folder, outputs)
        for descriptor in outputs:
            os.close(descriptor)
        for name in os.environ.pop(PRELOAD_ONLY_VARIABLE, "").split(","):
            os.environ.pop(name, None)
        for name, pipe in pipes.items():
            os.environ[name] = str(pipe)
            os.set_inheritable(pipe, True)  # The worker may restart its Python.
        code = run(folder)
    except BaseException:
        traceback.print_exc()  # Nobody else does: what follows ends the process.
    finally:
        worker.leave(code)


def run_of(program: str, ahead: ImportedAhead | None) -> Run:
    """What a fork runs, by the name of its module. `ahead` is what it was imported with."""
    if program == TRIAL:
        return lambda folder: worker.main([str(folder.path)], ahead)
    return partial(_run, program)


def _run(program: str, folder: TrialFolder) -> int:
    importlib.import_module(f"{__name__.partition('.')[0]}.{program}").main(folder)
    return 0


def spawn_worker(
    folder: TrialFolder, command: Sequence[str], pipes: dict[str, int], outputs: Sequence[int], *, forks: bool = False
) -> int:
    """Start a trial, or another program for a folder, in a new Python. Returns the process number. One that `forks`
    imports under the variables for that; it has no mark, by which its forks would be known as well."""
    environment = {**os.environ, **{name: str(pipe) for name, pipe in pipes.items()}}
    if not forks:
        environment[MARK_VARIABLE] = mark_of(folder.path)
        for name in environment.pop(PRELOAD_ONLY_VARIABLE, "").split(","):
            environment.pop(name, None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=list(pipes.values()),
        # Safe: a supervisor has a single thread (`supervisor.main` sees to it).
        preexec_fn=lambda: _become_child(folder, outputs),  # noqa: PLW1509
    )
    # Reaped by the supervisor with all the others; Popen must not try.
    process.returncode = 0
    return process.pid


def _become_child(folder: TrialFolder, outputs: Sequence[int]) -> None:
    """Set up a child: own session, killed with the supervisor, default signals, its output."""
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.environ[MARK_VARIABLE] = mark_of(folder.path)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, output in enumerate(outputs or (2, 2), start=1):
        os.dup2(output, descriptor)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux: see prctl(2)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
