"""`Child`: a running trial as its supervisor knows it: process, stage, deadlines, and whether it is paused."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from autotune.bench.bounded_log import BoundedLog
from autotune.bench.reaper import continue_tree, kill_group, stop_tree
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.stages import QUEUED

LONGEST_WAIT_S = 86400.0
"""The system call takes milliseconds in 32 bits, so a wait ends after a day and is repeated."""
_AFTER_KILL_S = 300.0
"""A killed process ends in milliseconds; one that waits in a device driver may never end."""


@dataclass(eq=False)
class Child:
    """A running trial: its process and group, the pipe of its stages, that of its turns, the deadlines."""

    folder: str
    pid: int
    stages: int
    turns: int | None
    """None: it takes its samples without being told."""
    stops: bool
    """It is stopped (SIGSTOP) while it waits for its turn."""
    limits: dict[str, float]
    logs: list[BoundedLog] = field(default_factory=list)
    """Of its stdout and stderr; none where it writes to the supervisor's stderr."""
    stage: str = Stage.START.value
    stage_started: float = field(default_factory=time.monotonic)
    busy_s: float = 0.0
    """Seconds spent in earlier stages, without those of waiting for a turn."""
    timed_out: str | None = None
    killed_at: float | None = None
    """When it was killed for a timeout."""
    paused_by: set[str] = field(default_factory=set)
    paused_at: float | None = None
    paused_s: float = 0.0
    """In all, without a pause that is not over."""
    queued_at: float | None = None
    """Since when it waits for the device, which another trial has."""

    def seconds_left(self) -> float:
        if self.killed_at is not None:
            return self.killed_at + _AFTER_KILL_S - time.monotonic()
        if self.stage == Stage.WAIT or self.paused_at is not None or self.queued_at is not None:
            return LONGEST_WAIT_S
        in_stage = time.monotonic() - self.stage_started
        return min(self.limits[self.stage] - in_stage, self.limits["total"] - self.busy_s - in_stage)

    def enter(self, stage: str) -> None:
        now = time.monotonic()
        if self.stage != Stage.WAIT:
            self.busy_s += now - self.stage_started
        self.stage = stage
        self.stage_started = now
        if stage == Stage.WAIT:
            self._signal(signal.SIGSTOP)

    def note_queue(self, word: str) -> None:
        """It begins to wait for the device, or has it now; the time between counts nowhere."""
        now = time.monotonic()
        if word == QUEUED:
            self.queued_at = now
        elif self.queued_at is not None:
            self.stage_started += now - self.queued_at
            self.queued_at = None

    def wake(self) -> None:
        """Let its threads continue."""
        self._signal(signal.SIGCONT)

    def pause(self, by: str) -> None:
        """Stop all its processes; the time until `resume` counts nowhere."""
        if self.stage == Stage.WAIT:
            return
        self.paused_by.add(by)
        if self.paused_at is None:
            stop_tree(self.pid)
            self.paused_at = time.monotonic()

    def resume(self, by: str) -> None:
        """Let them go on, but not one that has come to wait for its turn in the meantime."""
        self.paused_by.discard(by)
        if self.paused_at is None or self.paused_by:
            return
        pause_s = time.monotonic() - self.paused_at
        self.paused_at = None
        self.paused_s += pause_s
        if self.queued_at is None:  # else it is a part of the wait for the device
            self.stage_started += pause_s
        with suppress(OSError):  # Without the file its compile time is too long by the pause, which is no failure.
            TrialFolder(Path(self.folder)).write_paused(self.paused_s)
        continue_tree(self.pid)
        if self.stage == Stage.WAIT:
            self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """It is not needed any more."""
        kill_group(self.pid)

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
