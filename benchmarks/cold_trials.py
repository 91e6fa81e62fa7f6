"""Configs as trials like any other: a process of its own with empty caches, its outputs checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement, Outcome
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Workload


def cold_request(
    workload: Workload,
    config: Config,
    trial: TrialFolder,
    reference: Path,
    limits: Limits,
    *,
    untuned: bool,
    tolerance: float = 1e-3,
) -> TrialRequest:
    """What is asked of the trial; the untuned one writes the reference that all others are checked against."""
    return TrialRequest(
        number=0,
        workload=workload,
        config=config,
        untuned=untuned,
        tolerance=tolerance,
        reference=str(reference),
        cache=str(trial.path / "cache"),
        cold=True,
        limits=limits,
    )


def measurements(outcomes: Sequence[Outcome], who: str) -> list[Measurement]:
    """Raises RuntimeError where one failed: there is nothing to compare then."""
    for each in outcomes:
        if isinstance(each, Failure):
            raise RuntimeError(f"{who}: {each.reason}: {each.error}; see {each.evidence}")
    return [each for each in outcomes if isinstance(each, Measurement)]
