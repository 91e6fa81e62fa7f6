"""Configs that round, miss the tolerance by little and would be faster: what a larger tolerance would give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autotune.answer.content import Fact, Section
from autotune.answer.format import error
from autotune.answer.objectives import ratio
from autotune.answer.result import StudyResult
from autotune.config import Config
from autotune.errors import marked
from autotune.measure.measurement import Failure, NearMiss
from autotune.measure.statistics import Speedup
from autotune.study.records import TrialRecord

WORTH_TELLING = 1.05
"""What would be gained over the answer is said beyond this."""


@dataclass(frozen=True)
class _Worth:
    """A near miss, the settings that round, and how many times as good as the untuned model at its best it was."""

    trial: int
    near: NearMiss
    rounding: Config
    gained: float


def _at_its_best(answer: StudyResult, record: TrialRecord) -> float:
    """The smallest value that any process of a config had. Others may have disturbed its trial, and a near miss has no
    second process that could take its gain back."""
    rows = [row.values[record.number] for row in answer.blocks if record.number in row.values]
    is_again = record is answer.untuned and answer.objective.quantity == "latency"
    again = [check.latency_s for check in answer.drift_checks] if is_again else []
    return min([answer.objective.value(record.measurement), *rows, *again])


def _worth(answer: StudyResult) -> Iterator[_Worth]:
    """Those that keep every constraint and beat the answer."""
    untuned, manifest = answer.untuned, answer.manifest
    # What workers of a cluster measure is compared by figures that a failure does not have.
    if untuned is None or untuned.measurement.worker is not None:
        return
    untuned_value, best_value = (_at_its_best(answer, record) for record in (untuned, answer.best or untuned))
    for record in answer.records:
        near = record.outcome.near if isinstance(record.outcome, Failure) else None
        if near is None or any(constraint.miss(near.measurement) for constraint in manifest.constraints):
            continue
        own = answer.objective.value(near.measurement)
        if best_value > WORTH_TELLING * own:
            yield _Worth(record.number, near, manifest.space.rounding(record.config), untuned_value / own)


class NearMissesSection(Section):
    """The best of them in a line. None of them was chosen, compared or exported."""

    place = 13

    @cached_property
    def _found(self) -> list[_Worth]:
        return sorted(_worth(self.answer), key=lambda worth: -worth.gained)

    def facts(self) -> Iterator[Fact]:
        for worth in self._found[:1]:
            gained = ratio(self.answer.objective, Speedup(median=worth.gained, low=worth.gained, high=worth.gained))
            does = "rounds" if len(worth.rounding.root) == 1 else "round"
            yield (
                "rounded",
                f"trial {worth.trial}: {gained} with {marked('tolerance', worth.near.tolerance)} (unproven: one "
                f"process; {worth.rounding} {does} by {error(worth.near.measurement.relative_error)})",
            )

    def document(self) -> dict[str, Any]:
        return {
            "near_misses": [
                {
                    "trial": worth.trial,
                    "ratio": worth.gained,
                    "tolerance": worth.near.tolerance,
                    "relative_error": worth.near.measurement.relative_error,
                    "settings": worth.rounding.root,
                }
                for worth in self._found
            ]
        }
