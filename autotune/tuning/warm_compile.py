"""The share of its compile that a config pays again in a process that finds its caches: for the time left.

By what the study has seen of the same compile, else by what was measured for such configs (`BackendEntry`).
"""

from __future__ import annotations

from autotune.backends.registry import entry_of
from autotune.measure.measurement import Measurement, Stage
from autotune.study.records import TrialRecord
from autotune.study.study import Study
from autotune.tuning.session import Session


def block_shares(session: Session, record: TrialRecord) -> tuple[float, float]:
    """In the first block of a confirmation, which begins with the caches of this run's trials, and in a later one. Of
    what the trial's own compile stage took, which may have begun with the caches of another trial, or found kernels."""
    measured = record.measurement
    own_s = max(_stage_s(measured), 1e-9)
    has_caches = measured.compiled_from is not None
    cold = max(measured.compile_s / own_s, 1.0) if has_caches else 1.0
    if session.objective.compiles_cold:
        return cold, cold
    warm = 1.0 if has_caches else warm_share(session.study, record) * measured.compile_stage_s / own_s
    return (warm if session.caches.holds(record.number) else cold), warm


def warm_share(study: Study, record: TrialRecord) -> float:
    """Of a compile from empty caches."""
    seen = _seen_share(study, record)
    if seen is not None:
        return seen
    shares = entry_of(study.manifest.framework).warm_shares
    return next((share for settings, share in shares if record.config.matches(settings)), 1.0)


def _seen_share(study: Study, record: TrialRecord) -> float | None:
    """Of a trial that began with this one's caches, or of an earlier confirmation; None where there was none."""
    cold_s = record.measurement.compile_stage_s
    if cold_s <= 0:
        return None
    for each in study.records():
        if isinstance(each.outcome, Measurement) and each.outcome.compiled_from == record.number:
            return min(_stage_s(each.outcome) / cold_s, 1.0)
    confirmed = study.confirmation
    if confirmed is None or confirmed.compile_warm_s is None or confirmed.candidate != record.number:
        return None
    return min(max(confirmed.compile_warm_s, 0.0) / cold_s, 1.0)


def _stage_s(measured: Measurement) -> float:
    return measured.stage_s.get(Stage.COMPILE, measured.first_call_s)
