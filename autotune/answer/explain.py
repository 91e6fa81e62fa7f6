"""`Explanation`: which knobs mattered in a study, why the winner wins, and why the other trials lost.

It is derived from the study's records; nothing is run. There are three views, since each alone misleads: PED-ANOVA's
importances (all trials at once, rough with few of them), pairs of trials that differ in one knob (there may be none),
and what the compiler reports of the winner and of those that it is compared with. Times are those of the confirmation
where it has them, and of trials that nothing disturbed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.answer.result import StudyResult
from autotune.config import Config, Scalar
from autotune.measure.measurement import Failure, Measurement
from autotune.measure.statistics import Comparison, Speedup
from autotune.space.space import SearchSpace
from autotune.study.equivalence import run_same_program
from autotune.study.importance import Importance, importances
from autotune.study.knob_effects import pairs_of
from autotune.study.records import Confirmation, TrialRecord
from autotune.tuning.finalists import uncertainty


@dataclass(frozen=True)
class Influence:
    """What one value of a knob did against another, in trials that differ in nothing else."""

    knob: str
    slower: Scalar
    faster: Scalar
    pairs: tuple[Speedup, ...]
    """Of `faster` over `slower`, for each pair of trials; the middle one is 1 or more."""
    confirmed: bool
    """They were compared side by side, in the blocks of the confirmation; else by one process each, in the search."""

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(each.median for each in self.pairs)

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_significant(self) -> bool:
        """Whether it is larger than the noise: the whole interval of most pairs is above 1."""
        return statistics.median(each.low for each in self.pairs) > 1


@dataclass(frozen=True)
class Contrast:
    """One reported quantity of the winner, and the same of a trial that it is compared with."""

    quantity: str
    winner: float | None
    other: float | None


@dataclass(frozen=True)
class Rival:
    """The winner against one well-known trial: the untuned model, or the framework's default compile."""

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
    """Of its best trial over the untuned model, in the confirmation if it took part; None where none was measured, or
    none undisturbed."""
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
        """Of the knobs, by the trials that nothing disturbed."""
        calm = [record for record in self.answer.measured if record.disturbed is None]
        values = [self._known.value(record.measurement) for record in calm]
        return importances([record.config for record in calm], values, self.answer.manifest.workload.seed)

    @cached_property
    def effects(self) -> list[Influence]:
        """Those that are distinguishable from noise first, the largest first."""
        return influences(self.answer.space, self.answer.measured, self._known)

    @cached_property
    def rivals(self) -> list[Rival]:
        """The winner against the untuned model and the default compile, as far as these are others."""
        return list(_rivals(self.answer, self.answer.space, self.winner, self._known))

    @cached_property
    def groups(self) -> list[LosingGroup]:
        """All other trials, by what lost them the study."""
        return groups(self.answer.records, self.winner, [found.knob for found in self.importances], self._known)


def explain(answer: StudyResult) -> Explanation | None:
    """The explanation of a study; None if no trial keeps every constraint."""
    return None if answer.best is None else Explanation(answer, answer.best)


@dataclass(frozen=True)
class TrialComparisons:
    """How trials compare, as far as the study can tell: in the confirmation's blocks, else by undisturbed processes."""

    value: Callable[[Measurement], float]
    untuned: TrialRecord | None = None
    confirmation: Confirmation | None = None
    noise: float = 0.0
    """Share by which two processes of one config may differ in the search."""
    is_of_calls: bool = True
    """What is minimised is the time of a steady call, in which equal programs do not differ."""

    @classmethod
    def of(cls, answer: StudyResult) -> TrialComparisons:
        untuned, objective = answer.untuned, answer.objective
        noise = 0.0 if untuned is None else uncertainty(objective, answer.noise_floor, answer.drift)
        return cls(objective.value, untuned, answer.confirmation, noise, objective.is_latency)

    def confirmed(self, one: TrialRecord, other: TrialRecord) -> Speedup | None:
        """`one` over `other`; None unless both took part to the end."""
        numbers = () if self.confirmation is None else self.confirmation.contestants
        if self.confirmation is None or one.number not in numbers or other.number not in numbers:
            return None
        if len(self.confirmation.blocks) < 2:
            return None
        columns = numbers.index(one.number), numbers.index(other.number)
        return Comparison(self.confirmation.blocks).between(*columns)

    def in_search(self, one: TrialRecord, other: TrialRecord) -> Speedup | None:
        """`one` over `other`, by one process each; None where either was disturbed."""
        if one.disturbed is not None or other.disturbed is not None:
            return None
        if self.is_of_calls and run_same_program(one, other):
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
    """Of every knob and pair of values for which two measured trials differ in nothing else."""
    found = []
    for knob in space.knobs:
        by_values: dict[tuple[Scalar, Scalar], list[tuple[TrialRecord, TrialRecord]]] = {}
        for pair in pairs_of(knob.name, records, space):
            first, second = sorted(pair, key=lambda each: repr(each.config[knob.name]))
            by_values.setdefault((first.config[knob.name], second.config[knob.name]), []).append((first, second))
        of_knob = (_influence(knob.name, *values, pairs, known) for values, pairs in by_values.items())
        found += [influence for influence in of_knob if influence is not None]
    return sorted(found, key=lambda each: (not each.is_significant, -each.median))


def _influence(
    knob: str, first: Scalar, second: Scalar, pairs: Sequence[tuple[TrialRecord, TrialRecord]], known: TrialComparisons
) -> Influence | None:
    """By the pairs that were confirmed if there are any. None where every pair was disturbed."""
    confirmed = [each for pair in pairs if (each := known.confirmed(*pair)) is not None]
    speedups = confirmed or [each for pair in pairs if (each := known.in_search(*pair)) is not None]
    if not speedups:
        return None
    if statistics.median(each.median for each in speedups) >= 1:
        return Influence(knob, second, first, tuple(speedups), bool(confirmed))
    turned = tuple(Speedup(median=1 / each.median, low=1 / each.high, high=1 / each.low) for each in speedups)
    return Influence(knob, first, second, turned, bool(confirmed))


def groups(
    records: Sequence[TrialRecord],
    winner: TrialRecord,
    by_importance: Sequence[str],
    known: TrialComparisons,
) -> list[LosingGroup]:
    """Every trial but the winner under one heading; the headings in the order of importance."""
    members: dict[tuple[str, str], list[TrialRecord]] = {}
    for each in records:
        if each.outcome is not None and each.config != winner.config:
            knob = _first_difference(winner.config, each.config, by_importance)
            members.setdefault((knob, repr(each.config.get(knob))), []).append(each)
    rank = {knob: number for number, knob in enumerate(by_importance)}
    ordered = sorted(members.items(), key=lambda item: rank.get(item[0][0], len(rank)))
    return [_group(knob, trials, known) for (knob, _), trials in ordered]


def _first_difference(winner: Config, config: Config, by_importance: Sequence[str]) -> str:
    differing = winner.differing(config)
    # A knob that the loser does not even have tells less than the one that switched it off.
    present = [name for name in (*by_importance, *config.knobs()) if name in differing and name in config.root]
    return present[0] if present else min(differing)


def _group(knob: str, trials: list[TrialRecord], known: TrialComparisons) -> LosingGroup:
    speedups = (known.over_untuned(each)[0] for each in trials if each.state == "measured")
    return LosingGroup(
        knob=knob,
        value=trials[0].config.get(knob),
        trials=tuple(each.number for each in trials),
        best_speedup=max((each for each in speedups if each is not None), default=None),
        failures=dict(Counter(each.outcome.reason.value for each in trials if isinstance(each.outcome, Failure))),
        violations=dict(Counter(name for each in trials for name in each.violations)),
    )


def _rivals(answer: StudyResult, space: SearchSpace, winner: TrialRecord, known: TrialComparisons) -> Iterator[Rival]:
    for name, config in (("the untuned model", space.untuned()), ("the default compile", space.default())):
        record = next((each for each in answer.records if each.config == config), None)
        if record is None or record.config == winner.config or not isinstance(record.outcome, Measurement):
            continue
        (mine, was_confirmed), (theirs, were_confirmed) = map(known.over_untuned, (winner, record))
        contrasts = _contrasts(winner.measurement, record.measurement)
        if mine is not None and theirs is not None and was_confirmed and were_confirmed:
            yield Rival(name, record.number, mine / theirs, True, contrasts)
        else:
            seen = known.in_search(winner, record)
            yield Rival(name, record.number, None if seen is None else seen.median, False, contrasts)


_QUANTITIES: dict[str, Callable[[Measurement], float | None]] = {
    "graphs": lambda m: m.diagnosis.num_graphs,
    "graph breaks": lambda m: m.diagnosis.num_graph_breaks,
    "recompiles": lambda m: m.diagnosis.num_recompiles,
    "kernels": lambda m: m.diagnosis.num_kernels,
    "operators fused away": lambda m: m.diagnosis.num_fused,
    "relative error": lambda m: m.relative_error,
    "peak memory": lambda m: m.peak_memory_bytes,
    "compile seconds": lambda m: m.compile_s,
}


def _contrasts(winner: Measurement, other: Measurement) -> tuple[Contrast, ...]:
    pairs = ((name, read(winner), read(other)) for name, read in _QUANTITIES.items())
    return tuple(Contrast(name, mine, theirs) for name, mine, theirs in pairs if mine != theirs)
