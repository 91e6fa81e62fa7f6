"""A pause counts nowhere, and never for more than it was: by the trial's own clock and by its supervisor's limits."""

from __future__ import annotations

import time

import psutil
import pytest

from autotune.bench import child as child_module
from autotune.bench.child import Child
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.stages import QUEUED, SERVED, StageReporter


@pytest.fixture
def folder(tmp_path):
    return TrialFolder(tmp_path)


class PausedClock:
    """A clock of a process that the supervisor pauses right after the clock was read."""

    def __init__(self, folder):
        self.now, self.paused_s = 0.0, 0.0
        self.next_pause_s = 0.0
        self._folder = folder

    def __call__(self):
        now, pause_s = self.now, self.next_pause_s
        if pause_s:
            self.next_pause_s = 0.0
            self.now += pause_s
            self.paused_s += pause_s
            self._folder.write_paused(self.paused_s)
        return now


def test_a_pause_between_two_readings_is_no_step_back(folder):
    """The process is stopped after it has read the clock and before it reads how long it was paused."""
    paused = PausedClock(folder)
    clock = StageReporter(folder).without_pauses(paused)
    paused.now = 10.0
    assert clock() == 10.0
    paused.now, paused.next_pause_s = 10.5, 1.3
    assert clock() == 10.5
    paused.now += 0.25
    assert clock() == pytest.approx(10.75)


def test_a_pause_that_began_before_the_process_stood_still(folder):
    """A stage that ended in between takes no time, rather than less than none, which would be no measurement."""
    paused = PausedClock(folder)
    clock = StageReporter(folder).without_pauses(paused)
    paused.now = 10.0
    assert clock() == 10.0
    paused.now = 11.0
    folder.write_paused(1.002)
    assert clock() == 10.0


def test_what_was_paused_while_it_started(folder):
    """The first stage is as long as the process is old, less the pause."""
    folder.write_paused(1.0)
    progress = StageReporter(folder)
    progress.enter(Stage.BUILD)
    age_s = time.time() - psutil.Process().create_time()
    # psutil knows the second in which the machine was started, no more.
    assert progress.spent_s()[Stage.START] == pytest.approx(age_s - 1.0, abs=1.5)


@pytest.fixture
def child(folder, monkeypatch):
    """One whose processes are stopped in no time, by the test's own clock."""
    now = [100.0]
    monkeypatch.setattr(child_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(child_module, "stop_tree", lambda pid: None)
    monkeypatch.setattr(child_module, "continue_tree", lambda pid: None)
    limits = dict.fromkeys(["start", "build", "compile", "check", "run", "total"], 60.0)
    made = Child(str(folder.path), pid=0, stages=0, turns=None, stops=False, limits=limits, stage_started=100.0)
    made.passes = lambda seconds: now.__setitem__(0, now[0] + seconds)
    return made


def test_a_pause_begins_when_all_are_stopped(child, folder, monkeypatch):
    """Until then they have worked."""
    monkeypatch.setattr(child_module, "stop_tree", lambda pid: child.passes(2.0))
    child.pause("compiler")
    child.passes(5.0)
    child.resume("compiler")
    assert folder.read_paused_s() == 5.0
    assert child.seconds_left() == 58.0


def test_a_pause_in_the_queue_counts_once(child):
    """It is a part of the wait for the device."""
    child.hear(QUEUED)
    child.passes(1.0)
    child.pause("compiler")
    child.passes(5.0)
    child.resume("compiler")
    child.hear(SERVED)
    child.passes(3.0)
    assert child.seconds_left() == 57.0
