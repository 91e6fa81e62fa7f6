"""Failures by reason, and the settings that are not tried again because of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from autotune.answer.content import Fact, Section, Table
from autotune.command_line import options
from autotune.config import Config
from autotune.measure.measurement import Failure
from autotune.study.records import TrialRecord, failures_by_reason
from autotune.tuning.events import Event, RuleLearned
from autotune.tuning.failure_rules import FailureRule, find_failure_rules

MAX_RULES_SHOWN = 5


class FailuresSection(Section):
    """Each reason with the first error of its kind, and each failure rule."""

    place = 90
    name, title, is_long = "failures", "Failures by reason", True

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        if isinstance(event, RuleLearned):
            many = "" if event.num_excluded is None else f"; {event.num_excluded} configs have that and are not tried"
            yield f"rule {event.rule.id}: {rule_in_words(event.rule)}{many}"

    @cached_property
    def _failed(self) -> dict[str, list[tuple[TrialRecord, Failure]]]:
        """Reason -> the trials that failed with it."""
        found: dict[str, list[tuple[TrialRecord, Failure]]] = {}
        for record in self.answer.records:
            if isinstance(record.outcome, Failure):
                found.setdefault(record.outcome.reason.value, []).append((record, record.outcome))
        return found

    @cached_property
    def _rules(self) -> list[FailureRule]:
        return find_failure_rules(self.answer.space, self.answer.records)

    def facts(self) -> Iterator[Fact]:
        for reason, failed in self._failed.items():
            first, failure = failed[0]
            yield "failed", f"{len(failed)} x {reason}, first in trial {first.number}: {failure.error}"
        for rule in self._rules[:MAX_RULES_SHOWN]:
            yield "rule", f"{rule.id}: {rule_in_words(rule)}"
        if len(self._rules) > MAX_RULES_SHOWN:
            yield "rule", f"and {len(self._rules) - MAX_RULES_SHOWN} more: `show{options(as_json=True)}` lists them"

    def words(self) -> str:
        return "A config that fails cannot win. The full logs lie in the study's folder."

    def tables(self) -> list[Table]:
        if not self._failed:
            return []
        columns = ("reason", "number", "trials", "stage", "first error")
        rows = []
        for reason, failed in self._failed.items():
            numbers = ", ".join(str(record.number) for record, _ in failed)
            rows.append((reason, str(len(failed)), numbers, failed[0][1].stage.value, failed[0][1].error))
        tables = [Table("Failures by reason", columns, rows, frozenset(columns) - {"number"})]
        if self._rules:
            rules = [(rule_in_words(rule), ", ".join(map(str, rule.failed))) for rule in self._rules]
            named = frozenset({"rule"})
            tables.append(Table("Settings that are not tried again", ("rule", "failed in trials"), rules, named))
        return tables

    def document(self) -> dict[str, Any]:
        return {
            "rules": [self._rule(rule) for rule in self._rules],
            "failures": dict(failures_by_reason(self.answer.records)),
        }

    def _rule(self, rule: FailureRule) -> dict[str, Any]:
        return {
            "id": rule.id,
            "pattern": rule.pattern,
            "reason": rule.reason.value,
            "stage": rule.stage.value,
            "error": rule.error,
            "knobs": [knob.name for knob in self.answer.space.knobs],
            "evidence": {"study": self.answer.study, "failed": list(rule.failed)},
        }


def rule_in_words(rule: FailureRule) -> str:
    """What it excludes and why, in one line."""
    return f"{Config(rule.pattern)} fails ({rule.reason}): {rule.error[:100]}"
