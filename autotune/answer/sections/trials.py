"""All trials: a row each, for a table and for data frames, and what they take against each other."""

from __future__ import annotations

import math
from typing import Any

from autotune.answer.content import Mark, Section, Table
from autotune.answer.format import count, error, misses, num_bytes, seconds, times
from autotune.answer.objectives import ratio_footnote
from autotune.answer.sections.environment import accelerator_remarks
from autotune.errors import worded
from autotune.measure.measurement import Failure, Measurement
from autotune.measure.objective import Objective
from autotune.study.equivalence import equivalence_classes
from autotune.study.records import TrialRecord

_COLUMNS = ("trial", "state", "median", "p99", "x*", "memory", "compile", "breaks", "error", "config", "run it again")
_MARKS: dict[str, Mark] = {"failed": "failed", "lost": "failed", "infeasible": "broken"}


class TrialsSection(Section):
    """Every trial with its figures, the best marked; failures with their reason."""

    place = 97
    name, title = "trials", "All trials"

    def words(self) -> str:
        config = "Config: what differs from the untuned model."
        return f"{config} The command repeats the trial by itself, from the same folder."

    def tables(self) -> list[Table]:
        best = None if self.answer.best is None else self.answer.best.number
        marks = {n: _MARKS[r.state] for n, r in enumerate(self.answer.records) if r.state in _MARKS}
        marks |= {n: "best" for n, record in enumerate(self.answer.records) if record.number == best}
        aliases = self._aliases()
        rows = [self._row(record, aliases.get(record.number)) for record in self.answer.records]
        notes = [
            f"{ratio_footnote(self.answer.objective)}, one process each; "
            "the verdict rests on fresh processes side by side"
        ]
        return [
            Table(
                "", _COLUMNS, rows, frozenset({"state", "config", "run it again"}), notes,
                frozenset({"p99", "memory", "breaks", "error"}), frozenset({"run it again"}), marks,
            )
        ]  # fmt: skip

    def _row(self, record: TrialRecord, alias: int | None) -> list[str]:
        outcome, again = record.outcome, self.answer.command("run", str(record.number))
        if not isinstance(outcome, Measurement):
            state = record.state if outcome is None else outcome.reason.value
            return [str(record.number), state, *["-"] * 7, self.config(record), again]
        crashed = None if outcome.first_crash is None else "a first process crashed"
        remarks = (misses(record), outcome.diagnosis.note, crashed, *accelerator_remarks(outcome))
        return [
            str(record.number),
            _state(record, alias),
            seconds(outcome.latency.p50),
            seconds(outcome.latency.p99),
            self._ratio(outcome),
            num_bytes(outcome.peak_memory_bytes),
            seconds(outcome.compile_s),
            count(outcome.diagnosis.num_graph_breaks),
            error(outcome.relative_error),
            self.config(record) + "".join(f"  ({remark})" for remark in remarks if remark),
            again,
        ]

    def _aliases(self) -> dict[int, int]:
        """Trial -> the first one that ran the same program."""
        classes = equivalence_classes(self.answer.records)
        return {record.number: names[0].number for names in classes for record in names[1:]}

    def _ratio(self, outcome: Measurement) -> str:
        """How much less of the objective than the untuned model's."""
        if self.answer.untuned is None:
            return "-"
        objective = self.answer.objective
        value = objective.value(outcome)
        return times(objective.value(self.answer.untuned.measurement) / value) if math.isfinite(value) else "-"

    def document(self) -> dict[str, Any]:
        return {"trials": [_document(record) for record in self.answer.records]}


def _state(record: TrialRecord, alias: int | None) -> str:
    """A second name of a program is marked with the trial that ran it first."""
    state: str = record.state
    if alias is not None:
        state = f"= trial {alias}" if state == "measured" else f"{state} (= trial {alias})"
    return f"{state}, disturbed" if record.disturbed else state


def _document(record: TrialRecord) -> dict[str, Any]:
    """The outcome, and before it what scripts would otherwise compute from the samples, or look for in it."""
    measured = record.outcome if isinstance(record.outcome, Measurement) else None
    return {
        "number": record.number,
        "state": record.state,
        "config": record.config.root,
        "violations": {name: miss.amount for name, miss in record.violations.items()},
        "started": record.started and record.started.isoformat(),
        "ended": record.ended and record.ended.isoformat(),
        "latency_s": measured and measured.latency.model_dump(),
        "throughput": measured and measured.throughput,
        "program": measured and measured.program,
        "outcome": record.outcome and record.outcome.model_dump(mode="json"),
    }


def trial_row(record: TrialRecord, objective: Objective) -> dict[str, Any]:
    """A flat record of plain values: seconds, bytes, and None for what was not measured."""
    measured = record.outcome if isinstance(record.outcome, Measurement) else None
    failure = record.outcome if isinstance(record.outcome, Failure) else None
    return {
        "number": record.number,
        "state": record.state,
        "objective": measured and objective.value(measured),
        "latency_s": measured and measured.latency.p50,
        "p90_s": measured and measured.latency.p90,
        "p99_s": measured and measured.latency.p99,
        "throughput": measured and measured.throughput,
        "peak_memory_bytes": measured and measured.peak_memory_bytes,
        "compile_s": measured and measured.compile_s,
        "first_call_s": measured and measured.first_call_s,
        "relative_error": measured and measured.relative_error,
        "graph_breaks": measured and measured.diagnosis.num_graph_breaks,
        "recompiles": measured and measured.diagnosis.num_recompiles,
        "missed_constraints": list(record.violations),
        "disturbed": record.disturbed,
        "reason": failure and failure.reason.value,
        "stage": failure and failure.stage.value,
        "error": failure and worded(failure.error),
        "started": record.started,
        "ended": record.ended,
        "config": dict(record.config.root),
    }
