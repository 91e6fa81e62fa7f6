"""Documents for scripts. The keys are documented in docs/json.md and held by a test."""

from __future__ import annotations

from typing import Any

from autotune.answer.format import ABOUT_THE_SECOND
from autotune.answer.result import StudyResult
from autotune.answer.sections import sections
from autotune.verification.comparison import ComparisonResult
from autotune.verification.verify import Verification


def document(answer: StudyResult) -> dict[str, Any]:
    """A study as plain data, ready for `json.dumps`. What is unknown is null."""
    manifest = answer.manifest
    found: dict[str, Any] = {
        "schema": 1,
        "study": manifest.name,
        "model": manifest.workload.model,
        "framework": manifest.framework,
        "framework_version": manifest.framework_version,
        "device": manifest.workload.device,
        "reference": manifest.reference_precision,
        "objectives": [objective.name for objective in manifest.objectives],
        "constraints": [constraint.text for constraint in manifest.constraints],
    }
    for section in sections(answer):
        found |= section.document()
    return found


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
        "blocks": None if result.comparison is None else result.comparison.blocks.values,
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
