"""`Explanation`: which knobs mattered in a study, why the winner wins, and why the other trials lost.

It is derived from the study's records; nothing is run. There are three views, since each alone misleads: PED-ANOVA's
importances (all trials at once, rough with few of them), pairs of trials that differ in one knob (there may be none),
and what the compiler reports of the winner and of those that it is compared with. Times are those of blocks
where there are some, and of trials that nothing disturbed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.answer.result import StudyResult
from autotune.config import Config, Scalar
from autotune.measure.blocks import Blocks
from autotune.measure.looks import Look
from autotune.measure.measurement import Failure, Measurement
from autotune.measure.statistics import Speedup, inverse
from autotune.space.space import SearchSpace
from autotune.study.equivalence import run_same_program
from autotune.study.importance import Importance, importances
from autotune.study.knob_effects import pairs_of
from autotune.study.records import BlockRow, Confirmation, TrialRecord
from autotune.tuning.finalists import uncertainty


@dataclass(frozen=True)
class Influence:
    """What one value of a knob did against another, in trials that differ in nothing else."""

    knob: str
    slower: Scalar
    faster: Scalar
    pairs: tuple[Speedup, ...]
    """Speed-ups of `faster` over `slower`, one for each pair of trials; the middle one is 1 or more."""
    confirmed: bool
    """Whether both were compared side by side in blocks; otherwise by one process each in the search."""

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(pair.median for pair in self.pairs)

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_significant(self) -> bool:
        """Whether it is larger than the noise: the whole interval of most pairs is above 1."""
        return statistics.median(pair.low for pair in self.pairs) > 1


@dataclass(frozen=True)
class Contrast:
    """One reported quantity of the winner, and the same of a trial that it is compared with; None where it has none, as
    the untuned model of what is compiled."""

    quantity: str
    winner: float | None
    other: float | None


@dataclass(frozen=True)
class Anchor:
    """The winner against an anchor of the space: the untuned model, or the framework's default compile."""

    name: str
    trial: int
    ratio: float | None
    """Its objective over the winner's; None where something disturbed either of them and no block compared them."""
    confirmed: bool
    contrasts: tuple[Contrast, ...]
    """Only what differs."""


@dataclass(frozen=True)
class LosingGroup:
    """Trials that lost, put down to one setting: the most important knob in which they differ from the winner."""

    knob: str
    value: Scalar
    trials: tuple[int, ...]
    best_speedup: float | None
    """Speed-up of its best trial over the untuned model, in blocks if it took part; None where none was
    measured, or none undisturbed."""
    failures: dict[str, int]
    """Reason -> how many failed with it."""
    violations: dict[str, int]
    """Constraint -> how many broke it."""


class Explanation:
    """Everything that `explain` shows, derived when it is asked for."""

    def __init__(self, answer: StudyResult, winner: TrialRecord) -> None:
        self.answer, self.winner = answer, winner
        self._known = TrialComparisons.of(answer)

    @property
    def disturbed(self) -> list[int]:
        """Trials whose times are not used, because other programs kept the machine busy."""
        return [record.number for record in self.answer.measured if record.disturbed is not None]

    @cached_property
    def importances(self) -> list[Importance]:
        """How much each knob decides, by the trials that nothing disturbed."""
        calm = [record for record in self.answer.measured if record.disturbed is None]
        values = [self._known.value(record.measurement) for record in calm]
        return importances([record.config for record in calm], values, self.answer.manifest.workload.seed)

    @cached_property
    def effects(self) -> list[Influence]:
        """Those that are distinguishable from noise first, the largest first."""
        return influences(self.answer.space, self.answer.measured, self._known)

    @cached_property
    def anchors(self) -> list[Anchor]:
        """The winner against the untuned model and the default compile, as far as these are others."""
        space = self.answer.space
        known = {record.config: record for record in self.answer.measured if record.config != self.winner.config}
        named = {"the untuned model": space.untuned(), "the default compile": space.default()}
        return [self._anchor(name, known[config]) for name, config in named.items() if config in known]

    def _anchor(self, name: str, record: TrialRecord) -> Anchor:
        (mine, was_confirmed), (theirs, were_confirmed) = map(self._known.over_untuned, (self.winner, record))
        contrasts = _contrasts(self.winner.measurement, record.measurement)
        if mine is not None and theirs is not None and was_confirmed and were_confirmed:
            return Anchor(name, record.number, mine / theirs, True, contrasts)
        seen = self._known.in_search(self.winner, record)
        return Anchor(name, record.number, None if seen is None else seen.median, False, contrasts)

    @cached_property
    def groups(self) -> list[LosingGroup]:
        """Every trial but the winner under one heading; the headings in the order of importance."""
        by_importance = [found.knob for found in self.importances]
        members: dict[tuple[str, str], list[TrialRecord]] = {}
        for record in self.answer.records:
            if record.outcome is not None and record.config != self.winner.config:
                knob = _first_difference(self.winner.config, record.config, by_importance)
                members.setdefault((knob, repr(record.config.get(knob))), []).append(record)
        rank = {knob: number for number, knob in enumerate(by_importance)}
        ordered = sorted(members.items(), key=lambda item: rank.get(item[0][0], len(rank)))
        return [self._group(knob, trials) for (knob, _), trials in ordered]

    def _group(self, knob: str, trials: list[TrialRecord]) -> LosingGroup:
        speedups = (self._known.over_untuned(record)[0] for record in trials if record.state == "measured")
        failures = (record.outcome.reason.value for record in trials if isinstance(record.outcome, Failure))
        return LosingGroup(
            knob=knob,
            value=trials[0].config.get(knob),
            trials=tuple(record.number for record in trials),
            best_speedup=max((ratio for ratio in speedups if ratio is not None), default=None),
            failures=dict(Counter(failures)),
            violations=dict(Counter(name for record in trials for name in record.violations)),
        )


def explain(answer: StudyResult) -> Explanation | None:
    """The explanation of a study; None if no trial keeps every constraint."""
    return None if answer.best is None else Explanation(answer, answer.best)


@dataclass(frozen=True)
class TrialComparisons:
    """How trials compare, as far as the study can tell: in blocks of live processes, else by undisturbed processes."""

    value: Callable[[Measurement], float]
    untuned: TrialRecord | None = None
    confirmation: Confirmation | None = None
    blocks: Sequence[BlockRow] = ()
    noise: float = 0.0
    """Share by which two processes of one config may differ in the search."""
    is_latency: bool = True
    """What is minimised is the time of a steady call, in which equal programs do not differ."""

    @classmethod
    def of(cls, answer: StudyResult) -> TrialComparisons:
        untuned, objective = answer.untuned, answer.objective
        noise = 0.0 if untuned is None else uncertainty(objective, answer.noise_floor, answer.drift)
        return cls(objective.value, untuned, answer.confirmation, answer.blocks, noise, objective.is_latency)

    def confirmed(self, one: TrialRecord, other: TrialRecord) -> Speedup | None:
        """`one` over `other`; None where fewer than two blocks had both."""
        found = ((block.values.get(other.number), block.values.get(one.number)) for block in self.blocks)
        rows = tuple((theirs, mine) for theirs, mine in found if theirs is not None and mine is not None)
        return Look(Blocks(rows)).speedups[0] if len(rows) > 1 else None

    def in_search(self, one: TrialRecord, other: TrialRecord) -> Speedup | None:
        """`one` over `other`, by one process each; None where either was disturbed."""
        if one.disturbed is not None or other.disturbed is not None:
            return None
        if self.is_latency and run_same_program(one, other):
            return Speedup(median=1.0, low=1.0, high=1.0)
        ratio = self.value(other.measurement) / self.value(one.measurement)
        return Speedup(median=ratio, low=ratio / (1 + self.noise), high=ratio * (1 + self.noise))

    def over_untuned(self, record: TrialRecord) -> tuple[float | None, bool]:
        """The speed-up of a measured trial, as the verdict has it if it was confirmed; and whether it was."""
        if self.confirmation is not None and record.number in self.confirmation.compared:
            return self.confirmation.compared[record.number].median, True
        if self.untuned is None or record.number == self.untuned.number:
            return (None if self.untuned is None else 1.0), bool(self.confirmation and self.confirmation.blocks)
        found = self.in_search(record, self.untuned)
        return (None if found is None else found.median), False


def influences(space: SearchSpace, records: Sequence[TrialRecord], known: TrialComparisons) -> list[Influence]:
    """What each knob did, for every pair of its values with which two measured trials differ in nothing else."""
    found = []
    for knob in space.knobs:
        by_values: dict[tuple[Scalar, Scalar], list[tuple[TrialRecord, TrialRecord]]] = {}
        for pair in pairs_of(knob.name, records, space):
            first, second = sorted(pair, key=lambda record: repr(record.config[knob.name]))
            by_values.setdefault((first.config[knob.name], second.config[knob.name]), []).append((first, second))
        of_knob = (_influence(knob.name, *values, pairs, known) for values, pairs in by_values.items())
        found += [influence for influence in of_knob if influence is not None]
    return sorted(found, key=lambda influence: (not influence.is_significant, -influence.median))


def _influence(
    knob: str, first: Scalar, second: Scalar, pairs: Sequence[tuple[TrialRecord, TrialRecord]], known: TrialComparisons
) -> Influence | None:
    """By the pairs that were confirmed if there are any. None where every pair was disturbed."""
    confirmed = [found for pair in pairs if (found := known.confirmed(*pair)) is not None]
    speedups = confirmed or [found for pair in pairs if (found := known.in_search(*pair)) is not None]
    if not speedups:
        return None
    if statistics.median(found.median for found in speedups) >= 1:
        return Influence(knob, second, first, tuple(speedups), bool(confirmed))
    return Influence(knob, first, second, tuple(map(inverse, speedups)), bool(confirmed))


def _first_difference(winner: Config, config: Config, by_importance: Sequence[str]) -> str:
    differing = winner.differing(config)
    # A knob that the loser does not even have tells less than the one that switched it off.
    present = [name for name in (*by_importance, *config.knobs()) if name in differing and name in config.root]
    return present[0] if present else min(differing)


_QUANTITIES: dict[str, Callable[[Measurement], float | None]] = {
    "graphs": lambda m: m.diagnosis.num_graphs if m.diagnosis.compiled is not False else None,
    "graph breaks": lambda m: m.diagnosis.num_graph_breaks,
    "recompiles": lambda m: m.diagnosis.num_recompiles,
    "kernels": lambda m: m.diagnosis.num_kernels,
    "operators fused away": lambda m: m.diagnosis.num_fused,
    "relative error": lambda m: m.relative_error,
    "peak memory": lambda m: m.peak_memory_bytes,
    "compile seconds": lambda m: m.compile_s if m.diagnosis.compiled is not False else None,
}


def _contrasts(winner: Measurement, other: Measurement) -> tuple[Contrast, ...]:
    pairs = ((name, read(winner), read(other)) for name, read in _QUANTITIES.items())
    return tuple(Contrast(name, mine, theirs) for name, mine, theirs in pairs if mine != theirs)
