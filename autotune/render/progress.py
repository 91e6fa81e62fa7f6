"""`Progress`: what a run does now, how far it is, and how long it will go on. Two lines of text, for any display."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from autotune.answer.format import about, clock, num_blocks, times
from autotune.answer.objectives import shown
from autotune.bench.workers import NeighboursStarted, WorkerChanged
from autotune.measure.measurement import Measurement, Stage
from autotune.measure.objective import LATENCY
from autotune.study.records import AnswerStep, TrialRecord
from autotune.tuning.events import (
    AnswerProven,
    BlockMeasured,
    BlockStarted,
    ConfigProbed,
    EnginesStarted,
    Event,
    ModelChecked,
    NoiseFloorStarted,
    SearchStarted,
    StageEntered,
    TimeLeftEstimated,
    TrialDisturbed,
    TrialEnded,
    TrialsCompiling,
    TrialStarted,
)

_DOING = {
    Stage.START: "starting",
    Stage.BUILD: "building the model",
    Stage.COMPILE: "compiling",
    Stage.CHECK: "checking the result",
    Stage.RUN: "timing",
    Stage.WAIT: "ready",
}
_TIMED = (Stage.RUN, Stage.WAIT)


class Progress:
    """Fed with the events of a run: what goes on, what is known by now, and the clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = self._phase_begun = now()
        self._doing = _Doing()
        self._known = _Known()
        self._wall_s: float | None = None
        self._left: tuple[float, float] | None = None
        """Seconds that were said to be left, and when."""

    def note(self, event: Event) -> None:
        """Take in what happened."""
        before = self.phases
        if isinstance(event, SearchStarted):
            self._wall_s = event.wall_s
        elif isinstance(event, TimeLeftEstimated):
            self._left = event.left_s, self._now()
        self._known.note(event)
        self._doing.note(event)
        if self.phases != before:
            self._phase_begun = self._now()

    @property
    def may_tick(self) -> bool:
        """Nothing is being timed, so that a clock may be drawn."""
        return self._doing.may_tick

    @property
    def phases(self) -> list[str]:
        """What is going on, without a clock; a line for each worker where there are some."""
        return self._doing.phases

    @property
    def lines(self) -> list[str]:
        """The phases, with a clock where it ticks."""
        if not self.may_tick:
            return self.phases
        return [f"{phase}, {clock(self._now() - self._phase_begun)}" for phase in self.phases]

    @property
    def figures(self) -> str:
        """What is known now, the seconds that have passed, and those that are left."""
        return ", ".join([self._known.text, clock(self.elapsed_s), *self._to_go()])

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self._begun

    @property
    def share(self) -> float | None:
        """Share of the run's time that has passed; None as long as its end is not known."""
        left_s, gone_s = self._left_s(), self.elapsed_s
        return None if left_s is None else gone_s / (gone_s + max(left_s, 0.0)) if gone_s else 0.0

    def _to_go(self) -> list[str]:
        left_s = self._left_s()
        if left_s is None:
            rest_s = None if self._wall_s is None else max(self._wall_s - (self.elapsed_s), 0.0)
            return [] if rest_s is None else [f"at most {about(rest_s)} to go"]
        return [f"about {about(left_s)} to go" if left_s > 0 else "longer than expected"]

    def _left_s(self) -> float | None:
        return None if self._left is None else self._left[0] - (self._now() - self._left[1])


class _Doing:
    """What is going on, and whether anything is being timed meanwhile."""

    def __init__(self) -> None:
        self._what, self._stage = "starting", ""
        self._block: str | None = None
        """The block whose processes are under way."""
        self._takes_turns = False
        self._compiles_cold = False
        """What compiling takes is the objective: it is timed, too."""
        self._workers: dict[str, str] = {}
        self.may_tick = True

    def note(self, event: Event) -> None:
        match event:
            case SearchStarted():
                self._compiles_cold = event.objective.compiles_cold
            case StageEntered():
                self._enter(event.stage)
            case TrialEnded():
                self._begin(self._what)
            case BlockStarted():
                self._block = f"block {event.number} of {_listed([record.number for record in event.finalists])}"
                self._begin(self._block, takes_turns=True)
            case BlockMeasured():
                self._block = None
                self._begin("choosing what comes next")
            case TrialsCompiling():  # While the processes of a block become warm.
                others = [] if self._block is None else [self._block]
                self._begin(" and ".join([_listed(event.numbers), *others]), takes_turns=bool(others))
                self._stage = _DOING[Stage.COMPILE]
            case TrialDisturbed():
                self.may_tick = False  # How busy the machine is, is being measured.
            case WorkerChanged():
                self._workers[event.worker] = event.what
                self.may_tick = False  # Another device may be timing at any moment, on this host too.
            case TimeLeftEstimated() | AnswerProven():
                pass
            case _:
                self._begin(_beginning(event) or self._what, takes_turns=isinstance(event, NoiseFloorStarted))

    @property
    def phases(self) -> list[str]:
        """See `Progress.phases`."""
        if self._workers:
            return [f"{name}: {what}" for name, what in self._workers.items()]
        return [f"{self._what}: {self._stage}" if self._stage else self._what]

    def _begin(self, what: str, *, takes_turns: bool = False) -> None:
        self._what, self._stage, self._takes_turns = what, "", takes_turns
        self.may_tick = not self._workers

    def _enter(self, stage: Stage) -> None:
        self._stage = "timing in turns" if self._takes_turns and stage in _TIMED else _DOING[stage]
        is_timed = stage in _TIMED or (stage is Stage.COMPILE and self._compiles_cold)
        self.may_tick = not self._workers and not is_timed


class _Known:
    """What is proven; else what looks best in blocks; else the trials and the best of them."""

    def __init__(self) -> None:
        self._num_done = 0
        self._num_wanted: int | None = None
        self._objective = LATENCY
        self._best: float | None = None
        self._answer: AnswerStep | None = None
        self._ratios: dict[int, list[float]] = {}
        """Trial -> how many times as good as the untuned model it was in each block."""

    def note(self, event: Event) -> None:
        match event:
            case SearchStarted():
                self._num_done, self._num_wanted = event.num_done, event.num_most
                self._objective, self._answer = event.objective, event.answer
            case TrialEnded():
                self._num_done += event.record.counts
                self._note_best(event.record)
            case BlockMeasured():
                for number, value in event.others.items():
                    self._ratios.setdefault(number, []).append(event.untuned / value)
            case AnswerProven():
                self._answer = event.step

    @property
    def text(self) -> str:
        if self._answer is not None:
            blocks = num_blocks(self._answer.num_blocks)
            return f"{times(self._answer.speedup.median)} proven by {blocks}, Ctrl-C keeps it"
        if self._ratios:
            number = max(self._ratios, key=lambda number: median(self._ratios[number]))
            ratios = self._ratios[number]
            return f"trial {number} looks {times(median(ratios))} in {num_blocks(len(ratios))}"
        of = "" if self._num_wanted is None else f"/{self._num_wanted}"
        best = "" if self._best is None else f", best {shown(self._objective, self._best)}"
        return f"{self._num_done}{of} trials{best}"

    def _note_best(self, record: TrialRecord) -> None:
        if record.state == "measured" and isinstance(record.outcome, Measurement):
            value = self._objective.value(record.outcome)
            self._best = value if self._best is None else min(self._best, value)


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"trials {', '.join(others)} and {last}" if others else f"trial {last}"


_BEGINNINGS: dict[type, str] = {
    ModelChecked: "the untuned model against the reference",
    NoiseFloorStarted: "noise floor, the untuned model against itself",
    NeighboursStarted: "neighbours, the untuned model alone and beside other workers",
}


def _beginning(event: Event) -> str | None:
    """What begins with this event; None if nothing does."""
    match event:
        case TrialStarted():
            return f"trial {event.number}"
        case EnginesStarted():
            return f"{' and '.join(event.titles)}, beside the answer"
        case ConfigProbed():
            return f"the same error again and again: trial {event.record.number} once more"
    return _BEGINNINGS.get(type(event))
