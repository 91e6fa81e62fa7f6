"""`Explanation`: which knobs mattered in a study, why the winner wins, and why the other trials lost.

It is derived from the study's records; nothing is run. There are two views, since each alone misleads: PED-ANOVA's
importances (all trials at once, rough with few of them), and what the compiler reports of the winner and of those that
it is compared with. Times are those of blocks where there are some, and of trials that nothing disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.answer.result import StudyResult
from autotune.config import Config, Scalar
from autotune.measure.measurement import Failure, Measurement
from autotune.plugins.explain.importance import Importance, importances
from autotune.study.equivalence import run_same_program
from autotune.study.records import TrialRecord


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

    @property
    def disturbed(self) -> list[int]:
        """Trials whose times are not used, because other programs kept the machine busy."""
        return [record.number for record in self.answer.measured if record.disturbed is not None]

    @cached_property
    def importances(self) -> list[Importance]:
        """How much each knob decides, by the trials that nothing disturbed."""
        calm = [record for record in self.answer.measured if record.disturbed is None]
        values = [self.answer.objective.value(record.measurement) for record in calm]
        return importances([record.config for record in calm], values, self.answer.manifest.workload.seed)

    @cached_property
    def anchors(self) -> list[Anchor]:
        """The winner against the untuned model and the default compile, as far as these are others."""
        space = self.answer.space
        known = {record.config: record for record in self.answer.measured if record.config != self.winner.config}
        named = {"the untuned model": space.untuned(), "the default compile": space.default()}
        return [self._anchor(name, known[config]) for name, config in named.items() if config in known]

    def _anchor(self, name: str, record: TrialRecord) -> Anchor:
        (mine, was_confirmed), (theirs, were_confirmed) = map(self._over_untuned, (self.winner, record))
        contrasts = _contrasts(self.winner.measurement, record.measurement)
        if mine is not None and theirs is not None and was_confirmed and were_confirmed:
            return Anchor(name, record.number, mine / theirs, True, contrasts)
        return Anchor(name, record.number, self._in_search(self.winner, record), False, contrasts)

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

    def _over_untuned(self, record: TrialRecord) -> tuple[float | None, bool]:
        """The speed-up of a measured trial, as the verdict has it if it was confirmed; and whether it was."""
        confirmation, untuned = self.answer.confirmation, self.answer.untuned
        if confirmation is not None and record.number in confirmation.compared:
            return confirmation.compared[record.number].median, True
        if untuned is None or record.number == untuned.number:
            return (None if untuned is None else 1.0), bool(confirmation and confirmation.blocks)
        return self._in_search(record, untuned), False

    def _in_search(self, one: TrialRecord, other: TrialRecord) -> float | None:
        """`one` over `other`, by one process each; None where either was disturbed. Equal programs do not differ in the
        time of a steady call."""
        if one.disturbed is not None or other.disturbed is not None:
            return None
        if self.answer.objective.is_latency and run_same_program(one, other):
            return 1.0
        value = self.answer.objective.value
        return value(other.measurement) / value(one.measurement)

    def _group(self, knob: str, trials: list[TrialRecord]) -> LosingGroup:
        speedups = (self._over_untuned(record)[0] for record in trials if record.state == "measured")
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
