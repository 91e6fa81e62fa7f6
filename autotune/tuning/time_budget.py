"""`TimeBudget`: how long a run with a time budget may go on trying configs, so that the best one is still confirmed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.command_line import asked
from autotune.errors import InputError
from autotune.study.budget import BlockPlan
from autotune.study.records import TrialRecord
from autotune.tuning.confirmation import SAFETY, expected_s, likely_contestants
from autotune.tuning.expected_time import blocked_run_s, fresh_start_s, trial_s, typical_trial_s
from autotune.tuning.session import Session

NOISE_FLOOR_SHARE = 0.15
"""Of the time that is left, the most that the noise floor may take; else the study goes without."""
SENTINEL_SHARE = 0.02


@dataclass(frozen=True)
class TimeBudget:
    """Reads the study anew at each question; without a time budget there is time for everything."""

    session: Session

    def next_trial_s(self) -> float | None:
        """Seconds that the next trial may take; None where there is no time for a typical one and the confirmation.

        Where the time does not hold a confirmation, not even of the best config alone, all of it is for trials: the
        answer is then the fastest of them, unconfirmed. The first config may take all that is left as well, since
        without one there is no answer at all.
        """
        left_s = self.session.deadline.left_s()
        if math.isinf(left_s):
            return math.inf
        untuned = self.session.study.untuned_record()
        if untuned is None:
            return left_s if left_s > 0 else None
        tried = [each for each in self._compiled() if each.counts]
        typical_s = typical_trial_s(tried) if tried else trial_s(untuned)
        confirmation_s = expected_s(self.session, likely_contestants(self.session)) if tried else 0.0
        reserved_s = confirmation_s if confirmation_s <= SAFETY * left_s else 0.0
        return left_s - reserved_s if left_s - reserved_s >= typical_s else None

    def spare_trial_s(self) -> float | None:
        """The same for a trial that an answer can do without; None where it would take the confirmation's time."""
        left_s = self.session.deadline.left_s()
        longest_s = self.next_trial_s()
        holds_confirmation = math.isinf(left_s) or expected_s(self.session, likely_contestants(self.session)) <= left_s
        return longest_s if holds_confirmation else None

    def has_time_for_noise_floor(self) -> bool:
        """It takes no more than its share of what is left."""
        untuned = self.session.study.untuned_record()
        assert untuned is not None, "asked once it is measured"
        return self._blocked_run_s(untuned, self.session.budget.noise_floor) <= NOISE_FLOOR_SHARE * self._left_s()

    def has_time_for_drift_check(self) -> bool:
        """It takes no more than its share of what is left."""
        untuned = self.session.study.untuned_record()
        assert untuned is not None, "asked once it is measured"
        return trial_s(untuned) <= SENTINEL_SHARE * self._left_s()

    def require_untuned(self) -> None:
        """Raises InputError where the time was up before the untuned model was measured: there is no answer then."""
        if self.session.study.untuned_record() is None:
            raise InputError(
                f"the time of {self.session.budget.wall_s:g} s does not hold one trial of the untuned model",
                tip=f"give more with {asked('budget')}, e.g. {asked('budget', '10m')}; what was measured is kept",
            )

    def _blocked_run_s(self, untuned: TrialRecord, plan: BlockPlan) -> float:
        session = self.session
        plan = plan.fit_for(session.objective)
        return blocked_run_s(
            [untuned.measurement] * 2, plan, session.budget.sampling, fresh_start_s(untuned), cold=True
        )

    def _left_s(self) -> float:
        return self.session.deadline.left_s()

    def _compiled(self) -> list[TrialRecord]:
        untuned = self.session.study.manifest.space.untuned()
        return [each for each in self.session.study.records() if each.config != untuned]
