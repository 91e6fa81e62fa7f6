"""A trial as a flat record, for tables."""

from __future__ import annotations

from typing import Any

from autotune.measure.measurement import Failure, Measurement
from autotune.measure.objective import Objective
from autotune.study.records import TrialRecord


def trial_row(record: TrialRecord, objective: Objective) -> dict[str, Any]:
    """Plain values. Times are in seconds, memory in bytes; what was not measured is None."""
    outcome = record.outcome
    figures = _figures(outcome, objective) if isinstance(outcome, Measurement) else dict.fromkeys(_FIGURES)
    failure = outcome if isinstance(outcome, Failure) else None
    return {
        "number": record.number,
        "state": record.state,
        **figures,
        "missed_constraints": list(record.violations),
        "disturbed": record.disturbed,
        "reason": failure and failure.reason.value,
        "stage": failure and failure.stage.value,
        "error": failure and failure.error,
        "started": record.started,
        "ended": record.ended,
        "config": dict(record.config.root),
    }


_FIGURES = (
    "objective", "latency_s", "p90_s", "p99_s", "throughput", "peak_memory_bytes", "compile_s", "first_call_s",
    "relative_error", "graph_breaks", "recompiles",
)  # fmt: skip


def _figures(measured: Measurement, objective: Objective) -> dict[str, Any]:
    latency = measured.latency
    values = (
        objective.value(measured), latency.p50, latency.p90, latency.p99, measured.throughput,
        measured.peak_memory_bytes, measured.compile_s, measured.first_call_s, measured.relative_error,
        measured.diagnosis.num_graph_breaks, measured.diagnosis.num_recompiles,
    )  # fmt: skip
    return dict(zip(_FIGURES, values, strict=True))
