"""Constraints: what they exclude, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.answer.content import Fact, Section
from autotune.answer.format import misses
from autotune.answer.objectives import shown
from autotune.measure.statistics import Verdict
from autotune.study.records import TrialRecord, closest_miss, exclusions


class ConstraintsSection(Section):
    """Trials that break a constraint, a better one than the answer among them."""

    place = 30

    def facts(self) -> Iterator[Fact]:
        answer, tempting = self.answer, self._tempting()
        if answer.untuned is not None and answer.untuned.violations:
            yield "untuned", f"breaks a constraint: {misses(answer.untuned)}"
        if tempting is not None:
            value = shown(answer.objective, self._value(tempting))
            yield "infeasible", f"trial {tempting.number} has {value}, but {misses(tempting)}"
        for name, number in exclusions(answer.records).items():
            yield "excluded", f"{number} of the trials by {name}"

    def _tempting(self) -> TrialRecord | None:
        """The best trial that breaks a constraint, if it beats the answer."""
        broken = [record for record in self.answer.measured if record.state == "infeasible"]
        best = min(broken, key=self._value, default=None)
        if best is None or self.answer.best is None or self._value(best) >= self._value(self.answer.best):
            return None
        return best

    def _value(self, record: TrialRecord) -> float:
        return self.answer.objective.value(record.measurement)

    def document(self) -> dict[str, Any]:
        closest = closest_miss(self.answer.records) if self.answer.verdict is Verdict.INFEASIBLE else None
        return {
            "closest_miss": closest and _misses(closest),
            "excluded_by": dict(exclusions(self.answer.records)),
        }


def _misses(record: TrialRecord) -> dict[str, Any]:
    """A trial with how far it misses what was asked for."""
    return {
        "trial": record.number,
        "config": record.config.root,
        "misses": [
            {"constraint": name, "value": miss.value, "amount": miss.amount, "share": miss.share}
            for name, miss in record.violations.items()
        ],
    }
