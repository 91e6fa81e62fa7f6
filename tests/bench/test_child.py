"""What a trial says moves it from state to state; a pause counts nowhere, and never for more than it was: by the
trial's own clock and by its supervisor's limits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from autotune.bench import child as child_module
from autotune.bench.child import Child, State
from autotune.bench.messages import (
    Exited,
    Finish,
    Kill,
    Pause,
    Queued,
    Ready,
    Refused,
    Resume,
    StageReached,
    Start,
    Turn,
    decode,
    encode,
)
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.stages import ALONE, QUEUED, SERVED, TOGETHER, StageReporter


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
    monkeypatch.setattr(child_module, "kill_group", lambda pid: None)
    monkeypatch.setattr(child_module.os, "kill", lambda pid, number: None)
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


@pytest.mark.parametrize("said", [["compile"], ["compile", QUEUED], ["wait"], ["wait", "run"]])
@pytest.mark.parametrize("is_paused", [False, True])
def test_the_end_of_the_run_holds_whatever_it_does(child, said, is_paused):
    """A pause, a wait for its turn or for the device count nowhere else; a live one takes turns as long as it is asked
    to."""
    child.ends_at = 107.0
    for word in said:
        child.hear(word)
    if is_paused:
        child.pause("parent")
    child.passes(5.0)
    assert child.seconds_left() == 2.0
    child.is_live = True
    assert (child.seconds_left() > 2.0) is (child.stage in ("wait", "run"))


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


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (["build", "compile", "check", "run"], State.WORKING),
        (["wait"], State.WAITING),
        (["wait", "run"], State.WORKING),
        ([QUEUED], State.QUEUED),
        ([QUEUED, SERVED], State.WORKING),
        ([ALONE], State.ASKING),
        ([ALONE, TOGETHER, "run", "wait"], State.ASKING),
        (["nonsense", SERVED, TOGETHER], State.WORKING),
        (["wait", QUEUED, ALONE], State.WAITING),
        ([QUEUED, "wait", ALONE], State.QUEUED),
    ],
)
def test_what_it_says_leads_to_a_state(child, said, state):
    """By the table; what has no entry there means nothing. Only the supervisor lets it be alone."""
    for word in said:
        child.hear(word)
    assert child.state is state


def test_one_that_has_just_started_is_killed(folder):
    """It leads no group yet, which would be killed otherwise."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child = Child(str(folder.path), process.pid, stages=0, turns=None, stops=False, limits={"start": 60, "total": 60})
    child.kill(timed_out=False)
    assert process.wait(20) == -signal.SIGKILL


def test_a_killed_one_says_nothing_more(child):
    """Its time is that in which a killed process must end."""
    child.hear("compile")
    child.kill(timed_out=True)
    assert child.hear("check") is None
    assert (child.state, child.timed_out, child.stage) == (State.KILLED, "compile", "compile")
    child.passes(301.0)
    assert child.seconds_left() < 0


MESSAGES = [
    Start("/s/0001", {"total": 9.0}, "trial.worker.main", "gated", fresh=False, stops=True, echo=False),
    *(kind("/s/0001") for kind in (Turn, Finish, Pause, Resume, Kill, Queued)),
    Ready(),
    StageReached("/s/0001", Stage.COMPILE),
    Exited("/s/0001", 9, timed_out=None, stuck=False),
    Refused("/s/0001", "no memory\nat all"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line(message):
    """And is read as what it was."""
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message
