"""What a person sees while trials run: a bar with a clock, and one line left behind for each trial.

The clock ticks only while nothing is timed. During a timed turn this process sleeps, so that nothing of it runs beside
the trial.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from autotune.answer.configs import config_text
from autotune.answer.expected_cost import busy_words
from autotune.answer.format import clock, misses, num_bytes, seconds, times
from autotune.answer.objectives import shown
from autotune.answer.sections import news
from autotune.answer.sections.traffic import how_compiled
from autotune.errors import worded
from autotune.measure.measurement import Failure, Measurement
from autotune.measure.objective import LATENCY, Objective
from autotune.render.progress import Progress
from autotune.space.space import SearchSpace
from autotune.study.records import TrialRecord
from autotune.tuning.events import (
    BlockMeasured,
    BlockStarted,
    DeviceTaken,
    Event,
    MachineBusy,
    ModelSaved,
    SearchStarted,
    StageEntered,
    TrialEnded,
)


class Ticker:
    """Calls `tick` once a second in a thread of its own, from `start` to `stop`, while it is allowed to.

    While it is not, the thread sleeps without a time limit, so that it takes nothing from what is timed.
    """

    def __init__(self, tick: Callable[[], None], every_s: float = 1.0) -> None:
        self._tick = tick
        self._every_s = every_s
        self._changed = threading.Condition()
        self._may = self._is_over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; nothing is called before `allow`."""
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)
        self._thread.start()

    def allow(self, may: bool) -> None:
        """When this returns after a no, no tick is under way, and none comes."""
        with self._changed:
            if self._may != may:
                self._may = may
                self._changed.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_over:
                was_told = self._changed.wait(self._every_s if self._may else None)
                if not was_told and self._may and not self._is_over:
                    try:
                        self._tick()
                    except Exception:  # What cannot be drawn is no reason to end a run.
                        return


class LiveDisplay:
    """A callback for the loop's events: what happened stays as lines, what is going on as a bar and a line that change,
    which only a terminal has. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._progress = Progress()
        self._ticker = Ticker(self._draw)
        self._drawn: list[str] = []
        self._objective = LATENCY
        self._space: SearchSpace | None = None
        self._block = 0

    def __enter__(self) -> LiveDisplay:
        if self._live is not None:
            self._live.start()
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticker.stop()
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        self._progress.note(event)
        self._ticker.allow(self._progress.may_tick)
        for say in (_before, news, self._lines_of):
            for line in say(event):
                self._leave(line)
        # Turns follow one another quickly, and nothing is drawn while one is timed.
        if not isinstance(event, StageEntered) or self._progress.phases != self._drawn:
            self._drawn = self._progress.phases
            self._draw()

    def _lines_of(self, event: Event) -> list[str]:
        """What needs earlier events too."""
        match event:
            case SearchStarted():
                self._objective, self._space = event.objective, event.space
            case TrialEnded():
                record = event.record
                config = str(record.config) if self._space is None else config_text(record.config, self._space)
                return [f"trial {record.number:>3}  {_outcome(record, self._objective)}  {config}"]
            case BlockStarted():
                self._block = event.number
            case BlockMeasured():
                gains = (f"trial {number} {times(event.untuned / value)}" for number, value in event.others.items())
                untuned = shown(self._objective, event.untuned)
                return [f"block {self._block:>3}  {untuned:>8} untuned; {', '.join(gains)}"]
        return []

    def _draw(self) -> None:
        if self._live is None:
            return
        try:
            self._live.update(self._bar(), refresh=True)
        except OSError:  # The terminal went away, and the run goes on without it.
            self._console.quiet = True

    def _bar(self) -> RenderableType:
        progress = self._progress
        line = Table.grid(Column(ratio=1), Column(no_wrap=True), expand=True, padding=(0, 1, 0, 0))
        line.add_row(ProgressBar(total=1.0, completed=progress.share or 0.0), Text(progress.figures))
        return Group(line, *(Text(worded(told), no_wrap=True, overflow="ellipsis") for told in progress.lines))

    def _leave(self, line: str) -> None:
        """Print it to stay. In a log, where no clock ticks, the time since the start stands in front."""
        line = worded(line)
        if self._console.is_terminal:
            self._console.print(Text(line))
        else:
            self._console.print(Text(f"{clock(self._progress.elapsed_s):>5}  {line}"), soft_wrap=True)


def _before(event: Event) -> list[str]:
    """What is said of a run before its first trial."""
    match event:
        case SearchStarted():
            space = f"{event.num_configs} configs" if event.num_configs else "a space too large to list"
            limits = [] if event.num_most is None else [f"up to {event.num_most}"]
            limits += [] if event.wall_s is None else [f"within {seconds(event.wall_s)}"]
            return [f"{space}; {event.num_done} trials recorded, {', '.join(limits)}"]
        case ModelSaved():
            size = num_bytes(event.num_bytes)
            return [f"model and inputs are saved in {event.path} ({size}): trials load them from there"]
        case MachineBusy():
            return [f"this machine is {busy_words(event)}"]
        case DeviceTaken():
            return ["waiting     another run is timing on this device; the two take turns"]
    return []


def _outcome(record: TrialRecord, objective: Objective) -> str:
    if isinstance(record.outcome, Measurement):
        figures = record.outcome
        result = f"{seconds(figures.latency.p50):>8}, {how_compiled(figures)}"
        if objective.quantity != "latency":
            result += f", {objective.name} {shown(objective, objective.value(figures))}"
        mark = f" (infeasible: {misses(record)})" if record.violations else ""
        mark += f" (disturbed: {record.disturbed})" if record.disturbed else ""
        mark += f" [{figures.worker.name}]" if figures.worker is not None else ""
        return result + mark
    if isinstance(record.outcome, Failure):
        return f"{record.outcome.reason}: {worded(record.outcome.error)[:90]}"
    return "no outcome"
