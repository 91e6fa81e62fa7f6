"""`compile_limit`: a compile that takes many times what the others took is cut off, and recorded as slow.

The config is not called broken: it compiles too slowly for this study, which is what is learned of it. It is not tried
again. Figures and reasons: docs/decisions/0033-compile-cost.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.config import Config
from autotune.measure.measurement import Measurement, Outcome, Reason, Stage
from autotune.study.records import TrialRecord, fastest
from autotune.study.study import Study
from autotune.trial.request import Limits

TIMES_MEDIAN, SHORTEST_S = 10.0, 60.0
"""A compile is a surprise beyond so many times the median of the others, and never within so many seconds."""
TIMES_BEST, SHORTEST_BEST_S = 3.0, 20.0
"""Where what compiling costs is compared or bounded: times the best value, or the bound, and the same."""
_OF_COMPILING = ("compile", "total")


@dataclass(frozen=True)
class CompileLimit:
    """Seconds that a trial may compile, and why not longer."""

    seconds: float
    why: str

    def applied(self, limits: Limits) -> Limits:
        return limits.model_copy(update={"compile": min(self.seconds, limits.compile)})

    def named(self, outcome: Outcome) -> Outcome:
        """The outcome of a trial under this limit: one that it ended is slow, which its timeout does not say."""
        if isinstance(outcome, Measurement) or (outcome.reason, outcome.stage) != (Reason.TIMEOUT, Stage.COMPILE):
            return outcome
        error = f"compile cut off after {self.seconds:.0f} s: {self.why}"
        return outcome.model_copy(update={"reason": Reason.SLOW_COMPILE, "error": error, "cut_off_s": self.seconds})


def compile_limit(study: Study, config: Config, at_most_s: float) -> CompileLimit | None:
    """The limit of a new trial; None where the general one of `at_most_s` comes first, or nothing is known yet."""
    untuned = study.manifest.space.untuned()
    others = [_compile_s(record) for record in study.records() if record.config != untuned]
    others_s = [seconds for seconds in others if seconds is not None]
    if not others_s or config == untuned:
        return None
    limit = min([_beyond_others(statistics.median(others_s)), *_beyond_hope(study)], key=lambda limit: limit.seconds)
    return limit if limit.seconds < at_most_s else None


def _compile_s(record: TrialRecord) -> float | None:
    """Seconds that a trial compiled, from empty caches; None where it did not."""
    outcome = record.outcome
    if not isinstance(outcome, Measurement):
        return None
    if outcome.diagnosis.compiled is False or outcome.compiled_from is not None:
        return None
    return outcome.compile_stage_s if Stage.COMPILE in outcome.stage_s else None


def _beyond_others(median_s: float) -> CompileLimit:
    return CompileLimit(max(TIMES_MEDIAN * median_s, SHORTEST_S), f"the median of the others is {median_s:.3g} s")


def _beyond_hope(study: Study) -> Iterator[CompileLimit]:
    """Compiles far beyond a bound, or beyond the best config's value where that counts them, cannot win."""
    manifest = study.manifest
    for bound in manifest.constraints:
        if bound.quantity.partition(":")[0] in _OF_COMPILING and bound.relation == "<=":
            yield _times_best(bound.bound, f"the bound is {bound.text}")
    if manifest.objective.quantity in _OF_COMPILING:
        best = fastest(study.records(), manifest.objective.value)
        if best is not None:
            best_s = manifest.objective.value(best.measurement)
            yield _times_best(best_s, f"the best {manifest.objective.name} is {best_s:.4g} s")


def _times_best(seconds: float, why: str) -> CompileLimit:
    return CompileLimit(max(TIMES_BEST * seconds, SHORTEST_BEST_S), why)
