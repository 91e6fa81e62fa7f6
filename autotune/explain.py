"""`Explanation`: which knobs mattered in a study, why its winner wins, and why everything else lost.

Derived from the study's records alone; nothing is run. Three views, since each misleads alone: Optuna's importances
(all trials at once, rough with few of them), pairs of trials that differ in one knob (exact, but there may be none),
and what the compiler reports of the winner and of those that it is compared with.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autotune.answer import Answer, answer_of
from autotune.config import Config, Scalar
from autotune.importance import Importance, importances
from autotune.measurement import Failure, Measurement
from autotune.profile import HotSpots
from autotune.record import TrialRecord
from autotune.space import SearchSpace
from autotune.study import Study


@dataclass(frozen=True)
class Effect:
    """What one value of a knob did against another, in trials that differ in nothing else."""

    knob: str
    slower: Scalar
    faster: Scalar
    ratios: tuple[float, ...]
    """Objective with `slower` over that with `faster`, for each pair of trials; the median is 1 or more."""

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)


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
    ratio: float
    """Its objective over the winner's."""
    contrasts: tuple[Contrast, ...]
    """Only what differs."""


@dataclass(frozen=True)
class Group:
    """Trials that lost, put down to one setting: the most important knob in which they differ from the winner."""

    knob: str
    value: Scalar
    trials: tuple[int, ...]
    best_ratio: float | None
    """Objective of its best trial over the winner's; None where none was measured."""
    failures: dict[str, int]
    """Reason -> how many failed with it."""
    violations: dict[str, int]
    """Constraint -> how many broke it."""


@dataclass(frozen=True)
class Explanation:
    """Everything that `explain` shows."""

    winner: TrialRecord
    is_untuned: bool
    importances: list[Importance]
    effects: list[Effect]
    """The largest first."""
    rivals: list[Rival]
    groups: list[Group]
    hot_spots: HotSpots | None = None
    """Of the untuned model and the winner, as far as they were profiled."""


def explain(study: Study) -> Explanation | None:
    """None as long as there is nothing to explain: no trial that keeps every constraint."""
    answer = answer_of(study)
    winner = answer.best
    if winner is None:
        return None
    space, value = study.manifest.space, study.manifest.objective.value
    measured = [each for each in answer.records if isinstance(each.outcome, Measurement)]
    values = [value(each.measurement) for each in measured]
    importance = importances([each.config for each in measured], values, study.manifest.workload.seed)
    return Explanation(
        winner=winner,
        is_untuned=winner.config == space.untuned(),
        importances=importance,
        effects=effects(space, measured, value),
        rivals=list(_rivals(answer, space, winner, value)),
        groups=groups(answer.records, winner, [each.knob for each in importance], value),
        hot_spots=answer.hot_spots,
    )


def effects(space: SearchSpace, records: Sequence[TrialRecord], value: Callable[[Measurement], float]) -> list[Effect]:
    """Of every knob and pair of values for which two measured trials differ in nothing else."""
    found: dict[tuple[str, Scalar, Scalar], list[float]] = {}
    for one, other in itertools.combinations(records, 2):
        knob = only_difference(space, one.config, other.config)
        if knob is None:
            continue
        first, second = sorted((one, other), key=lambda each: repr(each.config.get(knob)))
        ratio = value(first.measurement) / value(second.measurement)
        found.setdefault((knob, first.config.get(knob), second.config.get(knob)), []).append(ratio)
    return sorted((_effect(*key, ratios) for key, ratios in found.items()), key=lambda each: -each.median)


def _effect(knob: str, first: Scalar, second: Scalar, ratios: list[float]) -> Effect:
    if statistics.median(ratios) >= 1:
        return Effect(knob, first, second, tuple(ratios))
    return Effect(knob, second, first, tuple(1 / each for each in ratios))


def only_difference(space: SearchSpace, one: Config, other: Config) -> str | None:
    """The knob that both have and in which alone they differ, apart from knobs that it switches on; else None.

    A knob that it switches on must stand at its default: another value would be a second difference.
    """
    differing = one.differing(other)
    shared = [name for name in differing if name in one.root and name in other.root]
    if len(shared) != 1:
        return None
    known = {knob.name: knob for knob in space.knobs}
    for name in differing - set(shared):
        setting = one.root.get(name, other.root.get(name))
        if name not in known or repr(setting) != repr(known[name].default):
            return None
    return shared[0]


def groups(
    records: Sequence[TrialRecord],
    winner: TrialRecord,
    by_importance: Sequence[str],
    value: Callable[[Measurement], float],
) -> list[Group]:
    """Every trial but the winner under one heading; the headings in the order of importance."""
    members: dict[tuple[str, str], list[TrialRecord]] = {}
    for each in records:
        if each.outcome is not None and each.config != winner.config:
            knob = _first_difference(winner.config, each.config, by_importance)
            members.setdefault((knob, repr(each.config.get(knob))), []).append(each)
    rank = {knob: number for number, knob in enumerate(by_importance)}
    ordered = sorted(members.items(), key=lambda item: rank.get(item[0][0], len(rank)))
    return [_group(knob, trials, value(winner.measurement), value) for (knob, _), trials in ordered]


def _first_difference(winner: Config, config: Config, by_importance: Sequence[str]) -> str:
    differing = winner.differing(config)
    # A knob that the loser does not even have tells less than the one that switched it off.
    present = [name for name in (*by_importance, *config.knobs()) if name in differing and name in config.root]
    return present[0] if present else min(differing)


def _group(knob: str, trials: list[TrialRecord], best: float, value: Callable[[Measurement], float]) -> Group:
    measured = [value(each.measurement) for each in trials if each.state == "measured"]
    return Group(
        knob=knob,
        value=trials[0].config.get(knob),
        trials=tuple(each.number for each in trials),
        best_ratio=min(measured) / best if measured else None,
        failures=dict(Counter(each.outcome.reason.value for each in trials if isinstance(each.outcome, Failure))),
        violations=dict(Counter(name for each in trials for name in each.violations)),
    )


def _rivals(
    answer: Answer, space: SearchSpace, winner: TrialRecord, value: Callable[[Measurement], float]
) -> Iterator[Rival]:
    for name, config in (("the untuned model", space.untuned()), ("the default compile", space.default())):
        record = next((each for each in answer.records if each.config == config), None)
        if record is None or record.config == winner.config or not isinstance(record.outcome, Measurement):
            continue
        ratio = value(record.measurement) / value(winner.measurement)
        yield Rival(name, record.number, ratio, _contrasts(winner.measurement, record.measurement))


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
