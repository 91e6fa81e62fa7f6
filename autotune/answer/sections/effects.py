"""Effects of the knobs: on the program that ran, and on the objective in pairs of trials that differ in one knob."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.answer.content import Fact, Figure, Intervals, Section, Table
from autotune.answer.format import times
from autotune.answer.result import StudyResult
from autotune.config import Scalar
from autotune.measure.blocks import Blocks
from autotune.measure.looks import Look
from autotune.measure.measurement import Measurement
from autotune.measure.statistics import Speedup, inverse
from autotune.space.space import SearchSpace
from autotune.study.equivalence import run_same_program
from autotune.study.knob_effects import pairs_of
from autotune.study.records import BlockRow, TrialRecord
from autotune.tuning.finalists import uncertainty


class EffectsSection(Section):
    """Knobs without effect, and what each of the others did."""

    place = 60

    def facts(self) -> Iterator[Fact]:
        idle = [effect.knob for effect in self.answer.effects if effect.verdict == "no effect"]
        if idle:
            yield "no effect", f"here: {', '.join(idle)} (the same program ran with every value)"

    def document(self) -> dict[str, Any]:
        return {"effects": [{**asdict(effect), "verdict": effect.verdict} for effect in self.answer.effects]}

    def figures(self) -> Iterator[Figure]:
        effects = [] if self.answer.best is None else influences_in(self.answer)
        if not effects:
            return
        words = (
            "Ratio of speeds in pairs of trials that differ in this one knob. Filled: larger than the noise. Hollow: "
            "cannot be told from it."
        )
        table = Table(
            "The effect of one value of a knob over another",
            ("knob", "from", "to", "ratio", "at least", "at most", "pairs", "measured", "larger than noise"),
            [_row(effect) for effect in effects],
            texts=frozenset({"knob", "from", "to", "measured"}),
        )
        rows = [
            (f"{effect.knob}: {effect.slower} → {effect.faster}", _middle(effect), effect.is_significant)
            for effect in effects
        ]
        yield Figure("knobs", "Effect of each knob", words, Intervals(rows), table)


def _row(effect: Influence) -> tuple[str, ...]:
    middle = _middle(effect)
    return (
        *(effect.knob, str(effect.slower), str(effect.faster)),
        *map(times, (middle.median, middle.low, middle.high)),
        *(str(len(effect.pairs)), "side by side" if effect.confirmed else "in the search"),
        "yes" if effect.is_significant else "no",
    )


def _middle(effect: Influence) -> Speedup:
    """The medians over the pairs."""
    return Speedup(
        median=effect.median,
        low=statistics.median(pair.low for pair in effect.pairs),
        high=statistics.median(pair.high for pair in effect.pairs),
    )


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
class TrialComparisons:
    """How trials compare, as far as the study can tell: in blocks of live processes, else by undisturbed processes."""

    value: Callable[[Measurement], float]
    blocks: Sequence[BlockRow] = ()
    noise: float = 0.0
    """Share by which two processes of one config may differ in the search."""
    is_latency: bool = True
    """What is minimised is the time of a steady call, in which equal programs do not differ."""

    @classmethod
    def of(cls, answer: StudyResult) -> TrialComparisons:
        objective = answer.objective
        noise = 0.0 if answer.untuned is None else uncertainty(objective, answer.noise_floor, answer.drift)
        return cls(objective.value, answer.blocks, noise, objective.is_latency)

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


def influences_in(answer: StudyResult) -> list[Influence]:
    """Those in a study: what is distinguishable from noise first, the largest first."""
    return influences(answer.space, answer.measured, TrialComparisons.of(answer))


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
