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
    """Fed with the events of a run. `may_tick`: nothing is being timed, so that a clock may be drawn."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = self._phase_begun = now()
        self._what, self._stage = "starting", ""
        self._done = 0
        self._wanted: int | None = None
        self._wall_s: float | None = None
        self._left: tuple[float, float] | None = None
        """Seconds that were said to be left, and when."""
        self._objective = LATENCY
        self._best: float | None = None
        self._answer: AnswerStep | None = None
        """What is proven, as far as something is."""
        self._ratios: dict[int, list[float]] = {}
        """Trial -> how many times as good as the untuned model it was in each block."""
        self._block: str | None = None
        """The block whose processes are under way."""
        self._takes_turns = self._is_off = False
        self._workers: dict[str, str] = {}
        self.may_tick = True

    def note(self, event: Event) -> None:
        """Take in what happened."""
        before = self.phases
        self._note(event)
        if self.phases != before:
            self._phase_begun = self._now()

    def _note(self, event: Event) -> None:
        match event:
            case SearchStarted():
                self._done, self._objective, self._wall_s = event.num_done, event.objective, event.wall_s
                self._wanted, self._answer = event.num_most, event.answer
            case StageEntered():
                self._enter(event.stage)
            case TimeLeftEstimated():
                self._left = event.left_s, self._now()
            case TrialEnded():
                self._done += event.record.counts
                self._note_best(event.record)
                self._begin(self._what)
            case AnswerProven():
                self._answer = event.step
            case BlockStarted() | BlockMeasured() | TrialsCompiling():
                self._note_under_way(event)
            case TrialDisturbed():
                self.may_tick = False  # How busy the machine is, is being measured.
            case WorkerChanged():
                self._workers[event.worker] = event.what
                self._is_off = True  # Another device may be timing at any moment, on this host too.
                self.may_tick = False
            case _:
                self._begin(_beginning(event) or self._what, takes_turns=isinstance(event, NoiseFloorStarted))

    def _note_under_way(self, event: BlockStarted | BlockMeasured | TrialsCompiling) -> None:
        """Trials compile while the processes of a block become warm."""
        if isinstance(event, BlockStarted):
            self._block = f"block {event.number} of {_listed([record.number for record in event.finalists])}"
            self._begin(self._block, takes_turns=True)
        elif isinstance(event, BlockMeasured):
            self._block = None
            for number, value in event.others.items():
                self._ratios.setdefault(number, []).append(event.untuned / value)
            self._begin("choosing what comes next")
        else:
            others = [] if self._block is None else [self._block]
            self._begin(" and ".join([_listed(event.numbers), *others]), takes_turns=bool(others))
            self._stage = _DOING[Stage.COMPILE]

    def _begin(self, what: str, *, takes_turns: bool = False) -> None:
        self._what, self._stage, self._takes_turns = what, "", takes_turns
        self.may_tick = not self._is_off

    def _enter(self, stage: Stage) -> None:
        self._stage = "timing in turns" if self._takes_turns and stage in _TIMED else _DOING[stage]
        is_timed = stage in _TIMED or (stage is Stage.COMPILE and self._objective.compiles_cold)
        self.may_tick = not self._is_off and not is_timed

    def _note_best(self, record: TrialRecord) -> None:
        if record.state == "measured" and isinstance(record.outcome, Measurement):
            value = self._objective.value(record.outcome)
            self._best = value if self._best is None else min(self._best, value)

    @property
    def share(self) -> float | None:
        """Share of the run's time that has passed; None as long as its end is not known."""
        left_s, gone_s = self._left_s(), self.elapsed_s
        return None if left_s is None else gone_s / (gone_s + max(left_s, 0.0)) if gone_s else 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self._begun

    @property
    def figures(self) -> str:
        """What is known now, the seconds that have passed, and those that are left."""
        return ", ".join([self._known, clock(self.elapsed_s), *self._to_go()])

    @property
    def _known(self) -> str:
        """The answer that is proven; else what looks best in blocks; else the trials and the best of them."""
        if self._answer is not None:
            blocks = num_blocks(self._answer.num_blocks)
            return f"{times(self._answer.speedup.median)} proven by {blocks}, Ctrl-C keeps it"
        if self._ratios:
            number = max(self._ratios, key=lambda number: median(self._ratios[number]))
            ratios = self._ratios[number]
            return f"trial {number} looks {times(median(ratios))} in {num_blocks(len(ratios))}"
        of = "" if self._wanted is None else f"/{self._wanted}"
        best = "" if self._best is None else f", best {shown(self._objective, self._best)}"
        return f"{self._done}{of} trials{best}"

    @property
    def phases(self) -> list[str]:
        """What is going on, without a clock; a line for each worker where there are some."""
        if self._workers:
            return [f"{name}: {what}" for name, what in self._workers.items()]
        return [f"{self._what}: {self._stage}" if self._stage else self._what]

    @property
    def lines(self) -> list[str]:
        """The phases, with a clock where it ticks."""
        if not self.may_tick:
            return self.phases
        return [f"{phase}, {clock(self._now() - self._phase_begun)}" for phase in self.phases]

    def _to_go(self) -> list[str]:
        left_s = self._left_s()
        if left_s is None:
            rest_s = None if self._wall_s is None else max(self._wall_s - (self.elapsed_s), 0.0)
            return [] if rest_s is None else [f"at most {about(rest_s)} to go"]
        return [f"about {about(left_s)} to go" if left_s > 0 else "longer than expected"]

    def _left_s(self) -> float | None:
        return None if self._left is None else self._left[0] - (self._now() - self._left[1])


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
