"""What a person sees while trials run: one line that changes with each stage, and one left behind for each trial.

No spinner and no clock: between events this process sleeps, so that nothing of it runs beside the trial that is timed.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.measure.measurement import Failure, Measurement, Stage
from autotune.measure.objective import LATENCY, Objective
from autotune.report.configs import config_text
from autotune.report.constraints import misses
from autotune.report.expected_cost import busy_words
from autotune.report.failure_rules import news_of
from autotune.report.format import count, num_bytes, percent, promise, seconds, times
from autotune.report.objectives import shown, stopped
from autotune.space.space import SearchSpace
from autotune.study.records import TrialRecord
from autotune.tuning.events import (
    BlockMeasured,
    ConfigProbed,
    ConfirmationStarted,
    DeviceTaken,
    DriftChecked,
    DriftCheckStarted,
    Event,
    MachineBusy,
    ModelChecked,
    ModelSaved,
    NoiseFloorMeasured,
    NoiseFloorStarted,
    SearchEnded,
    SearchStarted,
    StageEntered,
    TrialDisturbed,
    TrialEnded,
    TrialLost,
    TrialStarted,
    WorkerChanged,
)

_DOING = {
    Stage.START: "starting",
    Stage.BUILD: "building the model",
    Stage.COMPILE: "compiling",
    Stage.CHECK: "checking the result",
    Stage.RUN: "timing",
    Stage.WAIT: "timing in turns",
}


class LiveDisplay:
    """A callback for the loop's events: what happened stays as lines, what is going on as a last line that changes,
    which only a terminal has. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._done = self._first_done = 0
        self._wanted: int | None = None
        self._objective = LATENCY
        self._space: SearchSpace | None = None
        self._wall_s: float | None = None
        self._started = time.monotonic()
        self._doing = ""
        self._best: float | None = None
        self._block = self._num_blocks = 0
        self._workers: dict[str, str] = {}

    def __enter__(self) -> LiveDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        self._doing = _doing(event) or self._doing
        for line in (*news_of(event), *_told(event)):
            self._leave(line)
        match event:
            case SearchStarted():
                self._begin(event)
            case ModelSaved():
                size = num_bytes(event.num_bytes)
                self._leave(f"model and inputs are saved in {event.path} ({size}): trials load them from there")
            case StageEntered():
                self._show(f"{self._doing}: {_DOING[event.stage]}")
            case TrialEnded():
                self._done += event.record.counts
                self._leave(self._line(event.record))
                self._note_best(event.record)
            case ConfirmationStarted():
                self._begin_confirmation(event)
            case BlockMeasured():
                self._leave_block(event)
            case TrialLost():
                self._leave(f"trial {event.number:>3}  lost: {event.why}; its config is tried again")
            case WorkerChanged():
                self._show_worker(event)

    def _show_worker(self, event: WorkerChanged) -> None:
        """What each worker does, in the line that changes."""
        self._workers[event.worker] = event.what
        if event.stays:
            self._leave(f"worker {event.worker}: {event.what}")
        self._show("; ".join(f"{name} {what}" for name, what in self._workers.items()))

    def _begin(self, event: SearchStarted) -> None:
        self._done = self._first_done = event.num_done
        self._objective, self._wall_s, self._space = event.objective, event.wall_s, event.space
        self._wanted = min((each for each in (event.num_trials, event.num_configs) if each), default=None)
        space = f"{event.num_configs} configs" if event.num_configs else "a space too large to list"
        limits = [] if self._wanted is None else [f"up to {self._wanted}"]
        limits += [] if event.wall_s is None else [f"within {seconds(event.wall_s)}"]
        self._leave(f"{space}; {event.num_done} trials recorded, {', '.join(limits)}")
        if event.traffic is not None:
            self._leave(f"shapes {event.traffic}, replayed in each trial; what is made less: {event.objective.name}")
        if event.given_back:
            self._leave(f"trials left running by a run that died are tried again: {event.given_back}")

    def _begin_confirmation(self, event: ConfirmationStarted) -> None:
        names = ", ".join(f"trial {each.number}" for each in event.contestants)
        self._leave(f"confirming {names} against the untuned model, side by side in fresh processes")
        self._block, self._num_blocks = 1, event.num_blocks_at_most
        self._doing = f"confirming, block 1 of at most {self._num_blocks}"

    def _leave_block(self, event: BlockMeasured) -> None:
        others = [f"trial {number} {times(event.untuned / value)}" for number, value in event.others.items()]
        self._leave(f"  block {self._block:>2}: untuned {shown(self._objective, event.untuned)}; {', '.join(others)}")
        self._block += 1
        self._doing = f"confirming, block {self._block} of at most {self._num_blocks}"

    def _note_best(self, record: TrialRecord) -> None:
        if record.state == "measured" and isinstance(record.outcome, Measurement):
            value = self._objective.value(record.outcome)
            self._best = value if self._best is None else min(self._best, value)

    def _show(self, doing: str) -> None:
        if self._live is not None:
            self._live.update(Text(self._status(doing)), refresh=True)

    def _status(self, doing: str) -> str:
        best = f", best {shown(self._objective, self._best)}" if self._best is not None else ""
        of = "" if self._wanted is None else f"/{self._wanted}"
        return f"{self._done}{of} trials{best}{self._eta()} | {doing}"

    def _eta(self) -> str:
        """From the pace of this run's own trials, nothing before the second; and no more than there is time for."""
        gone_s, num_here = time.monotonic() - self._started, self._done - self._first_done
        to_go_s = [] if self._wall_s is None else [max(self._wall_s - gone_s, 0.0)]
        if num_here >= 2 and self._wanted is not None and self._done < self._wanted:
            to_go_s.append(gone_s / num_here * (self._wanted - self._done))
        return f", about {seconds(min(to_go_s))} to go" if to_go_s else ""

    def _leave(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=not self._console.is_terminal)

    def _line(self, record: TrialRecord) -> str:
        config = str(record.config) if self._space is None else config_text(record.config, self._space)
        return f"trial {record.number:>3}  {_outcome(record, self._objective)}  {config}"


def _doing(event: Event) -> str | None:
    """What begins with this event; None if nothing does."""
    match event:
        case TrialStarted():
            return f"trial {event.number}"
        case ModelChecked():
            return "the untuned model against the reference"
        case NoiseFloorStarted():
            return "noise floor, the untuned model against itself"
        case DriftCheckStarted():
            return "sentinel, the untuned model once more"
        case ConfigProbed():
            return f"the same error again and again: trial {event.record.number} once more"
    return None


def _told(event: Event) -> list[str]:
    """What needs nothing but the event itself."""
    match event:
        case MachineBusy() | DeviceTaken():
            return [_about_others(event)]
        case TrialDisturbed():
            what = f"trial {event.number}" if event.number else "the untuned model"
            return [f"disturbed   {what}: {event.why}; it is repeated once the machine is quiet"]
        case NoiseFloorMeasured():
            spread = percent(event.noise_floor.spread)
            return [f"noise floor {spread}: what two processes of the untuned model differ by here"]
        case DriftChecked():
            now_s, change = event.sentinel.latency_s, event.sentinel.latency_s / event.first_s - 1
            return [f"sentinel    {seconds(now_s)}, {change:+.1%} since the start"]
        case SearchEnded():
            why = stopped(event.reason) if event.forecast is None else promise(event.forecast)
            return [f"the search ends: {why}"]
    return []


def _about_others(event: MachineBusy | DeviceTaken) -> str:
    if isinstance(event, MachineBusy):
        return f"this machine is {busy_words(event)}"
    return "another run times its trials on this device too: each waits for its turn"


def _how(figures: Measurement) -> str:
    """Compiled for how long, or with whose caches."""
    payer = "" if figures.compiled_from is None else f" by trial {figures.compiled_from}"
    replay = figures.replay
    graphs = "" if replay is None or replay.num_compilations is None else f" {count(replay.num_compilations)} graphs"
    eager = ", then left to eager execution" if replay is not None and replay.num_fallbacks else ""
    return f"compiled{graphs} in {seconds(figures.compile_s)}{payer}{eager}"


def _outcome(record: TrialRecord, objective: Objective) -> str:
    if isinstance(record.outcome, Measurement):
        figures = record.outcome
        result = f"{seconds(figures.latency.p50):>8}, {_how(figures)}"
        if objective.quantity != "latency":
            result += f", {objective.name} {shown(objective, objective.value(figures))}"
        mark = f" (infeasible: {misses(record)})" if record.violations else ""
        mark += f" (disturbed: {record.disturbed})" if record.disturbed else ""
        mark += f" [{figures.worker.name}]" if figures.worker is not None else ""
        return result + mark
    if isinstance(record.outcome, Failure):
        return f"{record.outcome.reason}: {record.outcome.error[:90]}"
    return "no outcome"
