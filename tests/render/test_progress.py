"""What a terminal shows while a study runs: a bar and a line that change, and lines that stay."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import dataclass

import pytest

from autotune.answer.format import about, clock
from autotune.bench.workers import WorkerChanged
from autotune.config import Config
from autotune.measure.measurement import Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Speedup
from autotune.render.console import PlainConsole
from autotune.render.live import LiveDisplay, Ticker
from autotune.render.notebook import NotebookDisplay
from autotune.render.progress import Progress
from autotune.study.records import AnswerStep, DriftCheck
from autotune.tuning.events import (
    AnswerProven,
    BlockMeasured,
    BlockStarted,
    BudgetShort,
    DriftChecked,
    SearchStarted,
    StageEntered,
    TimeLeftEstimated,
    TrialEnded,
    TrialsCompiling,
    TrialStarted,
)
from tests.conftest import trial_record, with_latency

GAIN = Speedup(median=1.21, low=1.12, high=1.30)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time():
    return Clock()


@pytest.fixture
def progress(time):
    return Progress(time)


def record(measurement, number=3, latency_s=0.008):
    return trial_record(with_latency(measurement, latency_s), number, Config({"latency_ms": 8}))


def left(seconds):
    """An estimate of so many seconds."""
    return TimeLeftEstimated(seconds)


def proven(record, replaced=None):
    step = AnswerStep(after_s=31.0, trial=record.number, speedup=GAIN, num_blocks=2)
    return AnswerProven(step, record, replaced)


def begin(space, **more):
    return SearchStarted(0, 24, 100, [], space, **more)


class TestTheWords:
    """Trials, time that has passed and is left, the phase; during the confirmation the interval."""

    def test_a_trial(self, progress, time, space, measurement):
        """How far, for how long, and what goes on since when."""
        for event in (begin(space), TrialStarted(3, Config({})), TrialEnded(record(measurement)), left(180)):
            progress.note(event)
        time.now += 60
        progress.note(TrialStarted(4, Config({})))
        progress.note(StageEntered(Stage.COMPILE))
        time.now += 7
        assert progress.figures == "1/24 trials, best 8 ms, 1:07, about 2 min to go"
        assert progress.lines == ["trial 4: compiling, 0:07"]
        assert progress.share == pytest.approx(67 / 180)

    def test_an_estimate_that_was_too_low_is_not_zero(self, progress, time):
        """Nobody is told that a run ends now which goes on."""
        progress.note(left(30))
        time.now += 31
        assert progress.figures.endswith("longer than expected")
        assert progress.share == 1.0

    def test_before_an_estimate_only_the_limit_is_known(self, progress, time, space):
        """A time budget bounds the run; without one nothing is said."""
        progress.note(begin(space))
        assert "to go" not in progress.figures
        assert progress.share is None
        progress.note(begin(space, wall_s=600.0))
        time.now += 120
        assert progress.figures.endswith("at most 8 min to go")

    def test_blocks_show_what_looks_best(self, progress, measurement):
        """By the middle one of its blocks, as long as nothing is proven."""
        progress.note(left(180))
        for number, value in ((1, 0.8), (2, 0.5), (3, 0.8)):
            progress.note(BlockStarted(number, (record(measurement, 3), record(measurement, 5))))
            progress.note(BlockMeasured(1.0, {3: 0.9, 5: value}))
        assert progress.figures == "trial 5 looks 1.25x in 3 blocks, 0:00, about 3 min to go"
        assert progress.phases == ["choosing what comes next"]

    def test_an_answer_stands_beside_what_is_tried(self, progress, time, measurement):
        """What is proven stays in view while the search goes on, until a better one is."""
        progress.note(BlockStarted(1, (record(measurement, 3),)))
        progress.note(StageEntered(Stage.WAIT))
        assert progress.phases == ["block 1 of trial 3: timing in turns"]
        progress.note(BlockMeasured(1.0, {3: 0.6}))
        assert progress.phases == ["choosing what comes next"]
        progress.note(proven(record(measurement, 3)))
        progress.note(TrialsCompiling((5, 6)))
        time.now += 31
        assert progress.figures == "1.21x proven by 2 blocks, Ctrl-C keeps it, 0:31"
        assert progress.lines == ["trials 5 and 6: compiling, 0:31"]
        progress.note(left(120))
        progress.note(BlockStarted(3, (record(measurement, 3), record(measurement, 5), record(measurement, 6))))
        assert progress.figures.endswith("Ctrl-C keeps it, 0:31, about 2 min to go")
        assert progress.phases == ["block 3 of trials 3, 5 and 6"]
        progress.note(TrialsCompiling((7,)))
        assert progress.phases == ["trial 7 and block 3 of trials 3, 5 and 6: compiling"]
        progress.note(StageEntered(Stage.RUN))
        assert progress.phases == ["trial 7 and block 3 of trials 3, 5 and 6: timing in turns"]

    def test_an_answer_of_an_earlier_run_stands(self, progress, space, measurement):
        """A run that goes on begins with it."""
        progress.note(begin(space, answer=proven(record(measurement)).step))
        assert progress.figures.startswith("1.21x proven by 2 blocks")

    @pytest.mark.parametrize(
        ("seconds", "words"), [(3, "5 s"), (88, "90 s"), (200, "3 min"), (3600, "1 h 0 min"), (4230, "1 h 10 min")]
    )
    def test_an_estimate_is_as_precise_as_it_is_known(self, seconds, words):
        """No more digits than it deserves."""
        assert about(seconds) == words

    def test_a_clock(self):
        """Hours only where there are some."""
        assert (clock(151), clock(3751)) == ("2:31", "1:02:31")


class TestTheSecondHand:
    """It moves only while nothing is timed."""

    @pytest.mark.parametrize(
        ("stage", "ticks"),
        [(Stage.BUILD, True), (Stage.COMPILE, True), (Stage.CHECK, True), (Stage.RUN, False), (Stage.WAIT, False)],
    )
    def test_it_stands_still_in_a_timed_turn(self, progress, stage, ticks):
        """And while a live process is ready for one."""
        progress.note(TrialStarted(1, Config({})))
        assert progress.may_tick
        progress.note(StageEntered(stage))
        assert progress.may_tick is ticks

    def test_it_stands_still_while_a_compile_is_what_counts(self, progress, space):
        """Under an objective about the compile, compiling is timed."""
        progress.note(begin(space, objective=Objective(quantity="compile")))
        progress.note(StageEntered(Stage.COMPILE))
        assert not progress.may_tick

    def test_it_stands_still_with_workers(self, progress):
        """Any of them may be timing at any moment, on this host too."""
        progress.note(WorkerChanged("w0", "trial 3: run", stays=False))
        progress.note(TrialStarted(1, Config({})))
        progress.note(StageEntered(Stage.BUILD))
        assert not progress.may_tick
        assert progress.lines == ["w0: trial 3: run"]

    def test_no_tick_comes_after_a_no(self):
        """And none is under way: what is timed next has the processor to itself."""
        ticked, running = threading.Event(), []

        def tick():
            running.append(1)
            ticked.set()
            running.append(-1)

        ticker = Ticker(tick, every_s=0.001)
        ticker.start()
        try:
            assert not running
            ticker.allow(True)
            assert ticked.wait(10)
            ticker.allow(False)
            assert sum(running) == 0
            number = len(running)
            ticked.clear()
            assert not ticked.wait(0.05)
            assert len(running) == number
        finally:
            ticker.stop()

    def test_a_terminal_that_goes_away_ends_it(self):
        """Without a traceback of the thread beside the run's own error."""
        failed = threading.Event()

        def tick():
            failed.set()
            raise BrokenPipeError

        ticker = Ticker(tick, every_s=0.001)
        ticker.start()
        ticker.allow(True)
        assert failed.wait(10)
        ticker.stop()


def shown(display, console_file, space, measurement):
    """A short run on a display."""
    with display:
        display(begin(space))
        display(TrialStarted(3, Config({"latency_ms": 8})))
        display(StageEntered(Stage.COMPILE))
        display(TrialEnded(record(measurement)))
        display(left(5000))
        display(BlockStarted(1, (record(measurement),)))
        for stage in (Stage.WAIT, Stage.RUN, Stage.WAIT, Stage.RUN, Stage.WAIT):
            display(StageEntered(stage))
        display(BlockMeasured(0.0097, {3: 0.008}))
        display(proven(record(measurement)))
    return console_file.getvalue()


def test_on_a_terminal_of_80_columns_each_line_fits(space, measurement):
    """The bar with figures in one line, the phase in the next; the turns of a block are drawn once."""
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, width=80, color_system="standard")
    text = re.sub(r"\x1b\[([\d;]*m|\?25[lh])|\r", "", shown(LiveDisplay(console), file, space, measurement))
    drawn = [line.rstrip() for line in re.split(r"\n|\x1b\[2K|\x1b\[\d*A", text)]
    assert all(len(line) <= 80 for line in drawn)
    assert any(line.startswith("━") and line.endswith("about 1 h 23 min to go") for line in drawn)
    assert any("1.21x proven by 2 blocks, Ctrl-C keeps it, 0:" in line and line[0] == "━" for line in drawn)
    assert any(line.startswith("trial 3: compiling, 0:0") for line in drawn)
    # Once for itself, and once more when the block's line is put above it.
    assert sum(line == "block 1 of trial 3: timing in turns" for line in drawn) <= 2


def test_a_log_has_a_line_for_each_block(space, measurement):
    """With its ratios and the time since the start; neither a bar nor a clock that changes."""
    file = io.StringIO()
    text = shown(LiveDisplay(PlainConsole(file=file, width=80)), file, space, measurement)
    assert "\n 0:00  block   1    9.7 ms untuned; trial 3 1.21x\n" in text
    assert "━" not in text
    assert all(line.startswith(" 0:0") for line in text.splitlines())


def test_a_log_tells_each_answer_and_what_it_replaces(measurement):
    """With its interval, blocks and seconds; and that a time is too short for one."""
    file = io.StringIO()
    display = LiveDisplay(PlainConsole(file=file, width=80))
    first = proven(record(measurement, 3))
    for event in (BlockStarted(4, (record(measurement, 3),)), BlockMeasured(0.01, {3: 0.008}), first):
        display(event)
    display(proven(record(measurement, 5), first.step))
    display(BudgetShort(128.0, 30.0, 0.02))
    display(BudgetShort(640.0, 300.0, 17.0))
    assert file.getvalue().splitlines() == [
        " 0:00  block   4     10 ms untuned; trial 3 1.25x",
        " 0:00  proven after 31 s: trial 3 1.21x (1.12x to 1.30x), by 2 blocks; the run goes on, Ctrl-C keeps it",
        " 0:00  proven after 31 s: trial 5 1.21x (1.12x to 1.30x), by 2 blocks, better than trial 3 (1.21x); "
        "the run goes on, Ctrl-C keeps it",
        " 0:00  short       a call takes 20 ms here: a proof needs about 3m, and the run has 30 s; give budget='3m'",
        " 0:00  short       a call takes 17 s here: a proof needs about 11m, and the run has 5 min 0 s; give "
        "smaller inputs, such as a smaller batch, or budget='11m'",
    ]


def test_a_log_tells_of_drift_that_matters():
    """The untuned model is read after each trial; a line comes where it is 5 % off."""
    file = io.StringIO()
    display = LiveDisplay(PlainConsole(file=file, width=80))
    for latency_s in (0.0103, 0.0106, 0.0094, 0.15):
        display(DriftChecked(DriftCheck(after=3, latency_s=latency_s), first_s=0.01))
    assert file.getvalue().splitlines() == [
        " 0:00  drift       the untuned model takes 10.6 ms now, +6.0% since the start",
        " 0:00  drift       the untuned model takes 9.4 ms now, -6.0% since the start",
        " 0:00  drift       the untuned model takes 150 ms now, 15 times what it took at first",
    ]


def test_a_notebook_shows_the_same(space, measurement):
    """Bar, figures, phase and lines in its one output."""
    display = NotebookDisplay()
    started = BlockStarted(1, (record(measurement),))
    for event in (begin(space), started, BlockMeasured(0.0097, {3: 0.008}), left(180), proven(record(measurement))):
        display(event)
    display(TrialStarted(4, Config({})))
    html = display._html()
    assert '<progress aria-label="progress" max="1" value="0.' in html
    assert re.search(r"1\.21x proven by 2 blocks, Ctrl-C keeps it, 0:\d\d, about 3 min to go", html)
    assert "<br/>trial 4, 0:0" in html
    assert "by 2 blocks; the run goes on, Ctrl-C keeps it</pre>" in html
