"""A study as one JSON document, for scripts. The keys are documented in docs/json.md and held by a test."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autotune.answer import Answer, figures_of
from autotune.duel import Result
from autotune.manifest import Manifest
from autotune.measurement import Measurement
from autotune.record import TrialRecord, failures_by_reason
from autotune.report.units import ABOUT_THE_SECOND
from autotune.verify import Verification


def document(manifest: Manifest, answer: Answer) -> dict[str, Any]:
    """Plain data, ready for `json.dumps`. What is unknown is null."""
    confirmation = answer.confirmation
    return {
        "schema": 1,
        "study": answer.study,
        "model": manifest.workload.model,
        "framework": manifest.workload.framework,
        "framework_version": manifest.framework_version,
        "device": manifest.workload.device,
        "reference": manifest.reference_precision,
        "verdict": answer.verdict and answer.verdict.value,
        "best": _figures(answer.best),
        "baseline": _figures(answer.untuned),
        "speedup": answer.speedup and answer.speedup.model_dump(),
        "break_even_calls": answer.break_even_calls,
        "noise_floor": answer.noise_floor and answer.noise_floor.model_dump(),
        "sentinels": [each.model_dump() for each in answer.sentinels],
        "drift": answer.drift,
        "confirmation": confirmation and confirmation.model_dump(mode="json"),
        "confirmation_outdated": answer.is_outdated,
        "failures": dict(failures_by_reason(answer.records)),
        "effects": [{**asdict(each), "verdict": each.verdict} for each in answer.effects],
        "trials": [_trial(each) for each in answer.records],
    }


def _figures(record: TrialRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {**figures_of(record).model_dump(mode="json"), "config": record.config.root}


def _trial(record: TrialRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "state": record.state,
        "config": record.config.root,
        "violations": record.violations,
        "started": record.started and record.started.isoformat(),
        "ended": record.ended and record.ended.isoformat(),
        **_derived(record),
        "outcome": record.outcome and record.outcome.model_dump(mode="json"),
    }


def _derived(record: TrialRecord) -> dict[str, Any]:
    """What scripts would otherwise compute from the samples, or look for in the outcome."""
    if not isinstance(record.outcome, Measurement):
        return {"latency_s": None, "throughput": None, "program": None, "reused_from": None}
    measured = record.outcome
    return {
        "latency_s": measured.latency.model_dump(),
        "throughput": measured.throughput,
        "program": measured.program,
        "reused_from": measured.reused_from,
    }


def comparison_document(result: Result, names: tuple[str, str]) -> dict[str, Any]:
    """Two configs side by side; `verdict` is about the second."""
    verdict = result.verdict
    return {
        "first": names[0],
        "second": names[1],
        "verdict": None if verdict is None else ABOUT_THE_SECOND[verdict],
        "speedup": result.speedup and result.speedup.model_dump(),
        "latency_s": None if result.comparison is None else list(result.latencies_s),
        "blocks_s": None if result.comparison is None else result.comparison.latencies_s,
        "failed": result.failed,
        "failure": result.failure and result.failure.model_dump(mode="json"),
    }


def verification_document(verification: Verification) -> dict[str, Any]:
    """An exported answer, measured again."""
    result = verification.result
    return {
        "outcome": verification.outcome,
        "why": verification.why,
        "promised": verification.promised and verification.promised.model_dump(),
        "today": None if result is None else comparison_document(result, ("untuned", "tuned")),
    }
