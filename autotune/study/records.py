"""What a study keeps: its `TrialRecord`s, how noisy the machine was, and the `Confirmation`.

Plain data; nothing here reads or writes a database.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Literal

from autotune.config import Config
from autotune.measure.constraint import ConstraintMiss
from autotune.measure.disturbance import disturbance_of
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.measure.scatter import ProcessState, TimedTogether, state_of
from autotune.measure.statistics import MARGIN, Speedup, Verdict
from autotune.schema import Record
from autotune.study.slots import value_slot

DRIFTING = 0.05
"""The untuned model's latency changed by more than this share during the search: worth a warning."""
UNRELIABLE_DRIFT = 0.20
"""With more than this the search's figures do not rank configs: few gains are larger."""
UNRELIABLE_SHARE = 0.10
"""Share of the measured trials; with more than these disturbed, the best config may be among them."""


OK = "ok"
"""The constraint that a failed trial violates; the others are known of measured trials only."""


class StopReason(StrEnum):
    """Why a search ended."""

    EXHAUSTED = "exhausted"
    """Every config of the space was tried."""
    TRIALS = "trials"
    """As many trials as were asked for."""
    UNPROMISING = "unpromising"
    """Further trials promise too little to be worth their compilations."""
    TIME = "time"
    """The rest of the time belongs to the confirmation."""


class NoiseFloor(Record):
    """The untuned model against itself: what this machine shows as a difference where there is none."""

    pairs: tuple[tuple[float, float], ...]
    """The objective's values (seconds or bytes) of pairs of live processes."""
    spread: float
    """Root mean square of the pairs' log ratios: the share by which two processes of one config differ."""
    relative_error: float
    """Largest error of these processes' outputs against the reference: the model's own nondeterminism."""
    start_s: float | None = None
    """What a fresh process of the model took until it could compile: importing the framework, building the model."""


class SecondBaseline(Record):
    """What an informed user would set for the untuned model, and what it gives by itself."""

    config: Config
    deed: str
    """What is set, in words (see `CheapSettings`)."""
    by_hand: str
    pairs: tuple[tuple[float, float], ...] = ()
    """Values that earlier releases measured before the first config. Each row of a block has one of its own."""


class EngineFigure(Record):
    """What an engine beside the framework gave in its block (see `backends.engine`)."""

    name: str
    title: str
    release: str
    value: float | None = None
    """The objective's."""
    problem: str | None = None
    """Why there is no value."""


class EngineBlock(Record):
    """The third baseline: engines in one block with the untuned model and the answer. No verdict rests on it."""

    figures: tuple[EngineFigure, ...]
    untuned: float | None = None
    """The untuned model's value in that block; None where there was no block."""
    trial: int | None = None
    """The answer's, which took part, where that compiles anything."""
    best: float | None = None


ENGINE_BLOCK = value_slot("engines", EngineBlock)
"""The latest one of a study; None where no engine was timed, or left out."""


class Sustained(Record):
    """The answer and the untuned model under load for some seconds each, in one block after the verdict."""

    trial: int
    """The answer's."""
    untuned: float
    """The objective's value."""
    best: float


SUSTAINED_S = 5.0
"""Seconds of calls without a pause."""
SUSTAINED = value_slot("sustained", Sustained)
"""The latest one of a study; None where none was measured, as on a CPU."""


class DriftCheck(Record):
    """The untuned model, timed again between trials, to notice a machine that drifts."""

    after: int
    """Number of the trial that was recorded just before."""
    latency_s: float
    """The median."""


class BlockRow(Record):
    """One block of live processes: what each of them measured. It is evidence whatever became of the run."""

    number: int
    values: dict[int, float]
    """The objective's (seconds or bytes), by trial; the untuned model's trial is always among them."""
    control: float | None = None
    """The value of another process of the untuned model, which took its turns in the same block."""
    second: float | None = None
    """The value of a process under the second baseline's config, which took its turns in the same block."""
    states: dict[int, ProcessState] = {}
    """What is known of each process beside its value, by trial; nothing on a device."""
    disturbed: str | None = None
    """What disturbed one of them, in a sentence."""


def counted(rows: Sequence[BlockRow]) -> list[BlockRow]:
    """Those that a verdict rests on. What other programs disturbed is left out, as long as half of all were quiet:
    where most are disturbed, that is how the machine is."""
    quiet = [row for row in rows if row.disturbed is None]
    return quiet if 2 * len(quiet) >= len(rows) else list(rows)


class LongerUse(Record):
    """What became of a finalist that was used as a job will use it, longer than in its trial."""

    trial: int
    failure: Failure | None = None
    """Why it is wrong then, and cannot win; None: it is right."""
    not_varied: tuple[str, ...] = ()
    """See `Checked.not_varied`: what is left after the longer use."""


class AnswerStep(Record):
    """A config that was proven to be faster and became the answer, while the run went on."""

    after_s: float
    """Seconds of the run until then."""
    trial: int
    speedup: Speedup
    num_blocks: int
    """Blocks in which it had taken part."""


class Confirmation(Record):
    """The verdict and what it rests on: values of the objective, a row for each block of live processes."""

    verdict: Verdict
    candidate: int | None = None
    """Number of the trial that the verdict is about: the winner, or what came closest."""
    contestants: tuple[int, ...] = ()
    """Trial numbers, a column each; the untuned model's first."""
    blocks: tuple[tuple[float | None, ...], ...] = ()
    """Seconds (of a call, an item, the first call or the whole job) or bytes; None where a config took no part."""
    speedups: tuple[Speedup, ...] = ()
    """Speed-up of each contestant but the first over the untuned model; the intervals hold for all at once."""
    margin: float = MARGIN
    """Share by which the candidate's whole interval had to exceed 1."""
    margins: tuple[float, ...] = ()
    """Margin of each contestant but the first; empty where an earlier release held all of them to one."""
    confidence: float | None = None
    """Probability that the candidate gains more than the margin, by its blocks alone; None unless it is undecided."""
    compile_warm_s: float | None = None
    """First call minus a steady call in a new process, with the compile caches of an earlier one kept."""
    num_trials: int
    """Trials recorded when it was made: more of them make it outdated."""
    why: str | None = None
    """What kept it from a comparison, or cut this one off, other than the machine's noise."""
    note: str | None = None
    cut_short: bool = False
    """The time did not hold all of it: it is made again when the study goes on."""
    left_s: float | None = None
    """Seconds of the run's time that were left when it was made; None: the run had no limit."""

    @property
    def speedup(self) -> Speedup | None:
        """The candidate's."""
        return None if self.candidate is None else self.compared.get(self.candidate)

    @property
    def words(self) -> str:
        """The verdict with the candidate's interval, e.g. `faster: 1.42x (1.38x to 1.47x)`."""
        speedup = self.speedup
        told = "" if speedup is None else f": {speedup.median:.2f}x ({speedup.low:.2f}x to {speedup.high:.2f}x)"
        return f"{self.verdict.value.replace('_', ' ')}{told}"

    @property
    def compared(self) -> dict[int, Speedup]:
        """Trial -> its speed-up over the untuned model, for all that took part to the end."""
        return dict(zip(self.contestants[1:], self.speedups, strict=True))

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """The untuned model's and the candidate's value, block by block."""
        return () if self.candidate is None else self.pairs_of(self.candidate)

    def pairs_of(self, trial: int) -> tuple[tuple[float, float], ...]:
        """Values of the untuned model and a trial, a pair for each block in which it took part."""
        if trial not in self.contestants:
            return ()
        column = self.contestants.index(trial)
        pairs = ((row[0], row[column]) for row in self.blocks)
        return tuple((untuned, value) for untuned, value in pairs if untuned is not None and value is not None)

    @property
    def values(self) -> tuple[float, float]:
        """The untuned and the tuned value, as the verdict has them: the untuned median, and that over the speed-up."""
        if self.speedup is None:
            raise ValueError("nothing was compared")
        return self.values_at(self.speedup)

    def margin_of(self, trial: int) -> float:
        """Share by which the interval of a contestant has to exceed 1."""
        return dict(zip(self.contestants[1:], self.margins, strict=False)).get(trial, self.margin)

    def values_at(self, speedup: Speedup) -> tuple[float, float]:
        """The untuned median, and that over any of the speed-ups."""
        untuned = statistics.median(row[0] for row in self.blocks if row[0] is not None)
        return untuned, untuned / speedup.median


@dataclass(frozen=True)
class TrialRecord:
    """One trial as recorded. `state` is derived: `lost` means that the parent died before an outcome came."""

    number: int
    config: Config
    outcome: Outcome | None
    violations: Mapping[str, ConstraintMiss]
    """Constraint, as it was written -> how it is missed; only those that are."""
    started: datetime | None
    ended: datetime | None
    running: bool

    @property
    def state(self) -> Literal["measured", "infeasible", "failed", "running", "lost"]:
        if isinstance(self.outcome, Measurement):
            return "infeasible" if self.violations else "measured"
        if isinstance(self.outcome, Failure):
            return "failed"
        return "running" if self.running else "lost"

    @property
    def measurement(self) -> Measurement:
        """The outcome of a trial that is known to have been measured."""
        assert isinstance(self.outcome, Measurement)
        return self.outcome

    @property
    def child_s(self) -> float | None:
        """Seconds that it took by its child's own count, or those of a compile that was cut off; None where neither is
        known."""
        if isinstance(self.outcome, Failure):
            return self.outcome.cut_off_s
        return sum(self.outcome.stage_s.values()) or None if self.outcome is not None else None

    @cached_property
    def disturbed(self) -> str | None:
        """What disturbed its timing, in a sentence: its latency is not that of its config. None: nothing known."""
        return disturbance_of(self.outcome) if isinstance(self.outcome, Measurement) else None

    @property
    def counts(self) -> bool:
        """Uses up one of the study's trials: it says something about its config."""
        return isinstance(self.outcome, Measurement) or (
            isinstance(self.outcome, Failure) and self.outcome.blames_config
        )

    @property
    def was_cut_off(self) -> bool:
        """The run's time was up before the trial was over: it says nothing."""
        return isinstance(self.outcome, Failure) and self.outcome.reason is Reason.OUT_OF_TIME

    @property
    def missed_share(self) -> float:
        """By how much its constraints are missed in all, in shares of their bounds."""
        return sum(miss.share for miss in self.violations.values())


@dataclass(frozen=True)
class Tried:
    """A config that is tried, or was: what there is to be learned for the choice of the next one."""

    number: int
    """The trial's."""
    config: Config
    value: float | None
    """What is minimised, in which a failure counts as the worst; None as long as the trial runs."""
    violations: Mapping[str, float]
    """Constraint -> share by which it is missed, 0 or less: kept. Of a failed trial only `OK` says something."""
    is_distrusted: bool = False
    """Something disturbed its timing, and a time is minimised."""
    seconds: float | None = None
    """Seconds that the trial took; None: not known."""


def drift(untuned: TrialRecord, drift_checks: Sequence[DriftCheck]) -> float | None:
    """Share by which the untuned model's median changed during the search; None as long as there is no drift check."""
    if not drift_checks:
        return None
    medians_s = [untuned.measurement.latency.p50, *(check.latency_s for check in drift_checks)]
    return max(medians_s) / min(medians_s) - 1


def states_of(records: Iterable[TrialRecord], blocks: Iterable[BlockRow]) -> dict[int, list[ProcessState]]:
    """What is known of each process of these trials' configs, by trial: that of the trial, and those of the blocks."""
    rows = list(blocks)
    found: dict[int, list[ProcessState]] = {}
    for record in records:
        own = state_of(record.outcome) if isinstance(record.outcome, Measurement) else None
        in_blocks = [row.states[record.number] for row in rows if record.number in row.states]
        found[record.number] = in_blocks if own is None else [own, *in_blocks]
    return found


def together_in(blocks: Iterable[BlockRow]) -> list[TimedTogether]:
    """What processes took side by side, in blocks that know it."""
    return [
        TimedTogether({trial: state.latency_s for trial, state in row.states.items()}, row.control)
        for row in blocks
        if row.states
    ]


def why_unreliable(
    untuned: TrialRecord, records: Iterable[TrialRecord], drift_checks: Sequence[DriftCheck]
) -> str | None:
    """Why latencies of the search do not tell which configs are the fastest, in a sentence; None: they do."""
    drifted = drift(untuned, drift_checks)
    if drifted is not None and drifted > UNRELIABLE_DRIFT:
        return f"the untuned model's own latency changed by {drifted:.0%} during the search"
    measured = [record for record in records if isinstance(record.outcome, Measurement)]
    num_disturbed = sum(record.disturbed is not None for record in measured)
    if num_disturbed > UNRELIABLE_SHARE * len(measured):
        return f"other programs disturbed {num_disturbed} of {len(measured)} trials"
    return None


def fastest(records: Iterable[TrialRecord], value: Callable[[Measurement], float]) -> TrialRecord | None:
    """The trial with the smallest value among those that keep every constraint; None where there is none."""
    feasible = (record for record in records if record.state == "measured")
    return min(feasible, key=lambda record: value(record.measurement), default=None)


def failures_by_reason(records: Iterable[TrialRecord]) -> Counter[str]:
    """How many trials failed for each reason."""
    return Counter(record.outcome.reason.value for record in records if isinstance(record.outcome, Failure))


def closest_miss(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """The trial that misses its constraints by the least, among those that miss some; None where there is none."""
    missed = (record for record in records if record.state == "infeasible")
    return min(missed, key=lambda record: record.missed_share, default=None)


def exclusions(records: Iterable[TrialRecord]) -> Counter[str]:
    """Constraint -> how many measured trials break it."""
    return Counter(name for record in records if record.state == "infeasible" for name in record.violations)
