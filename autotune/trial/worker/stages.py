"""The stage that a trial is in, which the child reports, and what a child waits for before it is timed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from autotune.measure.measurement import Stage
from autotune.measure.sampling import Clock, Reading
from autotune.trial.folder import TrialFolder

STAGE_FD_VARIABLE = "AUTOTUNE_STAGE_FD"
"""Number of the pipe on which a supervisor listens for stages; unset when started by hand."""
TURN_FD_VARIABLE = "AUTOTUNE_TURN_FD"
"""Number of the pipe that tells a live process when to take samples; unset if it takes them in one go."""
GATE_FD_VARIABLE = "AUTOTUNE_GATE_FD"
"""Number of the pipe that tells a prepared trial that it may be timed; unset if it need not wait."""
QUEUED, SERVED = "queued", "served"
"""What a child writes into the pipe of its stages before and after it waits for the device: no limit counts that."""
ALONE, TOGETHER = "alone", "together"
"""What it writes there before and after it needs the machine for itself: the supervisor stops all others meanwhile."""


class StageReporter:
    """The stage that the child is in, reported to the folder and the supervisor, and the seconds spent in each."""

    def __init__(self, folder: TrialFolder) -> None:
        self.folder = folder
        self._pipe = take_pipe(STAGE_FD_VARIABLE)
        self.stage = Stage.START
        self.running_s = self.without_pauses(time.monotonic)
        """Seconds for which the process was not paused; only differences mean something."""
        self._entered = time.monotonic() - _age_s()  # It was not paused before it was there.
        self._spent_s: dict[Stage, float] = {}

    def enter(self, stage: Stage) -> None:
        self._note_time()
        self.stage = stage
        self.folder.write_stage(stage)
        self._tell(stage.value)

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Another trial has the device: the time until the end counts as waiting, in whatever stage it is."""
        stage = self.stage
        self._note_time()
        self.stage = Stage.WAIT
        self._tell(QUEUED)
        yield
        self._note_time()
        self.stage = stage
        self._tell(SERVED)

    @contextmanager
    def alone(self, answers: int) -> Iterator[None]:
        """All other trials of the supervisor are stopped inside; it answers on the pipe `answers` when they are."""
        self._tell(ALONE)
        os.read(answers, 1)
        try:
            yield
        finally:
            self._tell(TOGETHER)

    def spent_s(self) -> dict[Stage, float]:
        """Seconds in each stage so far; `start` begins when the process begins."""
        self._note_time()
        return {stage: round(seconds, 4) for stage, seconds in self._spent_s.items()}

    def without_pauses(self, clock: Clock) -> Clock:
        """The clock less the time for which the supervisor has paused this process, while another one was timed.

        It never goes back: the supervisor's pause begins some microseconds before the process stands still.
        """
        latest = -math.inf

        def read() -> float:
            nonlocal latest
            paused_s = self.folder.read_paused_s()
            while True:
                now, before = clock(), paused_s
                # A pause between the two readings is not in the clock's yet.
                if (paused_s := self.folder.read_paused_s()) == before:
                    break
            latest = max(latest, now - paused_s)
            return latest

        return read

    def _tell(self, word: str) -> None:
        if self._pipe is not None:
            with suppress(BrokenPipeError):
                os.write(self._pipe, f"{word}\n".encode())

    def _note_time(self) -> None:
        now = self.running_s()
        self._spent_s[self.stage] = self._spent_s.get(self.stage, 0.0) + now - self._entered
        self._entered = now


def _age_s() -> float:
    """Seconds since this process began. The wall clock knows the second in which the system was started, no more."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        after_the_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begun_s = int(after_the_name[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - begun_s, 0.0)
    return max(time.time() - psutil.Process().create_time(), 0.0)


class Turns:
    """Tells a process when to take samples: a live one at each turn, a prepared one when it may begin."""

    def __init__(self, pipe: int, progress: StageReporter) -> None:
        self._pipe = pipe
        self._progress = progress

    def wait(self) -> bool:
        """Block until the next turn; False when there are no more."""
        self._progress.enter(Stage.WAIT)
        received = os.read(self._pipe, 1)
        self._progress.enter(Stage.RUN)
        return bool(received)

    def tell(self, reading: Reading) -> None:
        """What the turn measured that is over now: the next one is waited for after that."""
        self._progress.folder.write_turn(reading)

    def alone(self) -> AbstractContextManager[None]:
        """For what a compiler times itself, before the first turn."""
        return self._progress.alone(self._pipe)


def take_pipe(variable: str) -> int | None:
    """The pipe whose number an environment variable holds. Both are hidden from processes that the child starts."""
    number = os.environ.pop(variable, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)
