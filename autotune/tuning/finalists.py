"""Which configs of a search are worth a confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.measure.measurement import Measurement
from autotune.measure.objective import Objective
from autotune.space.space import SearchSpace
from autotune.study.equivalence import representatives, run_same_program, simplicity
from autotune.study.records import DRIFTING, NoiseFloor, TrialRecord, drift
from autotune.study.study import Study
from autotune.tuning.session import Session

EQUALLY_FAST = 0.02
"""Configs within this share of the best count as equals even on a machine without noise."""
MAX_FINALISTS = 3
"""The fastest config, and of those that may be as fast the simplest and the fastest."""


def candidates_among(feasible: Sequence[TrialRecord], untuned: TrialRecord, space: SearchSpace) -> list[TrialRecord]:
    """One trial for each program but the untuned model's: configs with the same program are not compared."""
    return [
        record
        for record in representatives(feasible, space)
        if record.config != untuned.config and not run_same_program(record, untuned)
    ]


def likely_finalists(session: Session) -> list[TrialRecord]:
    """The trials that would be confirmed if the search ended now, fastest first."""
    study = session.study
    untuned = study.untuned_record()
    if untuned is None or not isinstance(untuned.outcome, Measurement):
        return []
    feasible = [record for record in study.records() if record.state == "measured"]
    candidates = candidates_among(feasible, untuned, study.manifest.space)

    def value(record: TrialRecord) -> float:
        return session.value(record.measurement)

    return sorted(by_importance(study, candidates, uncertainty_of(study, untuned), value), key=value)


def uncertainty_of(study: Study, untuned: TrialRecord) -> float:
    """Share by which two processes of one config may differ in the search."""
    return uncertainty(study.manifest.objective, study.noise_floor, drift(untuned, study.drift_checks))


def uncertainty(objective: Objective, noise_floor: NoiseFloor | None, drifted: float | None) -> float:
    """Share by which two processes of one config may differ, where the untuned model changed by `drifted`."""
    spread = noise_floor.spread if noise_floor else 0.0
    return max(EQUALLY_FAST, spread, drifted if objective.is_timed and drifted and drifted > DRIFTING else 0.0)


def by_importance(
    study: Study, candidates: Sequence[TrialRecord], uncertainty: float, value: Callable[[TrialRecord], float]
) -> list[TrialRecord]:
    """The finalists, the most important first, since the last are left out where time is short: at most `MAX_FINALISTS`
    trials that may be the best, the simplest among them."""
    space = study.manifest.space
    values = {record.number: value(record) for record in candidates}
    by_value = sorted(candidates, key=lambda record: values[record.number])
    good = (1 + uncertainty) * min(values.values(), default=0.0)
    equals = [record for record in by_value if values[record.number] <= good]
    nearest = sorted(equals, key=lambda record: simplicity(record, space))[:1]
    return list({record.config: record for record in [*equals[:1], *nearest, *equals]}.values())[:MAX_FINALISTS]
