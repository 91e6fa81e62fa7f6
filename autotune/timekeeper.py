"""`Timekeeper`: how long a run with a time budget may go on trying configs, so that the best one is still confirmed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.confirm import expected_s, likely_contest
from autotune.contest import BlockPlan
from autotune.errors import InputError
from autotune.pace import WARM_SHARE, contest_s, fresh_start_s, trial_s, typical_trial_s
from autotune.record import TrialRecord
from autotune.workbench import Workbench

NOISE_FLOOR_SHARE = 0.15
"""Of the time that is left, the most that the noise floor may take; else the study goes without."""
SENTINEL_SHARE = 0.02


@dataclass(frozen=True)
class Timekeeper:
    """Reads the study anew at each question; without a time budget there is time for everything."""

    bench: Workbench

    def next_trial_s(self) -> float | None:
        """Seconds that the next trial may take; None where there is no time for a typical one and the confirmation."""
        left_s = self.bench.deadline.left_s()
        if math.isinf(left_s):
            return math.inf
        untuned = self.bench.study.untuned_record()
        if untuned is None:
            return left_s if left_s > 0 else None
        tried = [each for each in self._compiled() if each.counts]
        if tried:
            spare_s = left_s - expected_s(self.bench, likely_contest(self.bench))
            return spare_s if spare_s >= typical_trial_s(tried) else None
        spare_s = self._first_config_s(left_s)
        return spare_s if spare_s >= trial_s(untuned) else None

    def has_time_for_noise_floor(self) -> bool:
        """It takes no more than its share of what is left."""
        untuned = self.bench.study.untuned_record()
        assert untuned is not None, "asked once it is measured"
        return self._contest_s(untuned, self.bench.budget.noise_floor) <= NOISE_FLOOR_SHARE * self._left_s()

    def has_time_for_sentinel(self) -> bool:
        """It takes no more than its share of what is left."""
        untuned = self.bench.study.untuned_record()
        assert untuned is not None, "asked once it is measured"
        return trial_s(untuned) <= SENTINEL_SHARE * self._left_s()

    def require_a_config(self) -> None:
        """Raises InputError where the time was up before anything but the untuned model could be tried."""
        if any(each.counts for each in self._compiled()):
            return
        untuned = self.bench.study.untuned_record()
        took = "" if untuned is None else f" (the untuned model's own trial took {trial_s(untuned):.1f} s)"
        raise InputError(
            f"the time of {self.bench.budget.wall_s:g} s does not hold the untuned model, one config and its "
            f"confirmation{took}",
            tip="give more with --budget, e.g. --budget 10m; what was measured is kept",
        )

    def _first_config_s(self, left_s: float) -> float:
        """Nothing is known of a config yet but this: it must be compiled in its trial, and again in each block."""
        blocks_s = expected_s(self.bench, likely_contest(self.bench))
        later = self.bench.budget.confirmation.first_look - 1
        share = 1.0 if self.bench.objective.compiles_cold else WARM_SHARE
        return (left_s - blocks_s) / (2 + later * share)

    def _contest_s(self, untuned: TrialRecord, plan: BlockPlan) -> float:
        bench = self.bench
        plan = plan.fit_for(bench.objective)
        return contest_s([untuned.measurement] * 2, plan, bench.budget.sampling, fresh_start_s(untuned), cold=True)

    def _left_s(self) -> float:
        return self.bench.deadline.left_s()

    def _compiled(self) -> list[TrialRecord]:
        untuned = self.bench.study.manifest.space.untuned()
        return [each for each in self.bench.study.records() if each.config != untuned]
