"""A study as one JSON document, for scripts. The keys are documented in docs/json.md and held by a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune.answer.export import figures_of
from autotune.answer.format import ABOUT_THE_SECOND
from autotune.answer.result import StudyResult
from autotune.measure.measurement import Measurement
from autotune.measure.objective import Objective
from autotune.render.profile import hot_spots_document
from autotune.render.traffic import traffic_document
from autotune.study.manifest import Manifest
from autotune.study.records import TrialRecord, exclusions, failures_by_reason
from autotune.tuning.failure_rules import FailureRule
from autotune.tuning.priors import PriorUse
from autotune.verification.comparison import ComparisonResult
from autotune.verification.verify import Verification


def document(manifest: Manifest, answer: StudyResult) -> dict[str, Any]:
    """Plain data, ready for `json.dumps`. What is unknown is null."""
    confirmation = answer.confirmation
    return {
        "schema": 1,
        "study": answer.study,
        "model": manifest.workload.model,
        "framework": manifest.framework,
        "framework_version": manifest.framework_version,
        "device": manifest.workload.device,
        "reference": manifest.reference_precision,
        "objectives": [each.name for each in answer.objectives],
        "constraints": [each.text for each in manifest.constraints],
        "stop_reason": answer.stop_reason and answer.stop_reason.value,
        "verdict": answer.verdict and answer.verdict.value,
        "best": _figures(answer.best),
        "baseline": _figures(answer.untuned),
        "speedup": answer.speedup and answer.speedup.model_dump(),
        "break_even_calls": answer.break_even_calls,
        "artifact": answer.artifact and answer.artifact.model_dump(mode="json"),
        "noise_floor": answer.noise_floor and answer.noise_floor.model_dump(),
        "sentinels": [each.model_dump() for each in answer.drift_checks],
        "drift": answer.drift,
        "early_stop": answer.early_stop and answer.early_stop.model_dump(),
        "confirmation": confirmation and confirmation.model_dump(mode="json"),
        "confirmation_outdated": answer.is_outdated,
        "front": [_member(each, answer.objectives) for each in answer.front],
        "closest_miss": answer.closest_miss and _misses(answer.closest_miss),
        "excluded_by": dict(exclusions(answer.records)),
        "rules": [_failure_rule(each, manifest, answer) for each in answer.failure_rules],
        "priors": [_prior(each, answer) for each in answer.priors],
        "near_best_after": answer.near_best_after,
        "failures": dict(failures_by_reason(answer.records)),
        "effects": [{**asdict(each), "verdict": each.verdict} for each in answer.effects],
        "traffic": traffic_document(answer),
        "hot_spots": answer.hot_spots and hot_spots_document(answer.hot_spots),
        "trials": [_trial(each) for each in answer.records],
        **({} if answer.home is None else {"home": answer.home.model_dump()}),
    }


def _failure_rule(rule: FailureRule, manifest: Manifest, answer: StudyResult) -> dict[str, Any]:
    return {
        "id": rule.id,
        "pattern": rule.pattern,
        "reason": rule.reason.value,
        "stage": rule.stage.value,
        "error": rule.error,
        "knobs": [knob.name for knob in manifest.space.knobs],
        "evidence": {"study": answer.study, "failed": list(rule.failed)},
    }


def _prior(use: PriorUse, answer: StudyResult) -> dict[str, Any]:
    prior = use.prior
    return {
        "name": prior.name,
        "origin": prior.origin,
        "num_configs": len(prior.configs),
        "trials": list(use.trials),
        "gave_best": answer.best is not None and answer.best.number in use.trials,
        "near_best_after": prior.near_best_after,
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
        "violations": {name: miss.amount for name, miss in record.violations.items()},
        "started": record.started and record.started.isoformat(),
        "ended": record.ended and record.ended.isoformat(),
        **_derived(record),
        "outcome": record.outcome and record.outcome.model_dump(mode="json"),
    }


def _member(record: TrialRecord, objectives: Sequence[Objective]) -> dict[str, Any]:
    """A trial of the front, with what is minimised."""
    values = {each.name: each.value(record.measurement) for each in objectives}
    return {"trial": record.number, "config": record.config.root, "values": values}


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


def _derived(record: TrialRecord) -> dict[str, Any]:
    """What scripts would otherwise compute from the samples, or look for in the outcome."""
    if not isinstance(record.outcome, Measurement):
        return {"latency_s": None, "throughput": None, "program": None}
    measured = record.outcome
    return {
        "latency_s": measured.latency.model_dump(),
        "throughput": measured.throughput,
        "program": measured.program,
    }


def comparison_document(result: ComparisonResult, names: tuple[str, str]) -> dict[str, Any]:
    """Two configs side by side; `verdict` is about the second."""
    verdict = result.verdict
    return {
        "first": names[0],
        "second": names[1],
        "verdict": None if verdict is None else ABOUT_THE_SECOND[verdict],
        "objective": result.objective.name,
        "speedup": result.speedup and result.speedup.model_dump(),
        "values": None if result.comparison is None else list(result.values),
        "blocks": None if result.comparison is None else result.comparison.values,
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
