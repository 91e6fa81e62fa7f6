"""The clock of a run: how long a time budget lets it try configs (`TimeBudget`), and how long it will go on
(`TimeLeft`). Both ask `estimate` what trials and blocks take; only the first decides anything.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from autotune.command_line import asked
from autotune.errors import InputError
from autotune.measure.measurement import Measurement
from autotune.study.early_stop import FEWEST_IDLE, FEWEST_TRIALS, count_idle
from autotune.study.records import TrialRecord
from autotune.tuning.confirmation import SAFETY, expected_s, likely_contestants
from autotune.tuning.estimate import block_times, confirmation_times, process_start_s, trial_s, typical_trial_s
from autotune.tuning.events import (
    BlockMeasured,
    ConfirmationLooked,
    ConfirmationStarted,
    Event,
    NoiseFloorMeasured,
    SearchEnded,
    TimeLeftEstimated,
    TrialEnded,
    TrialStarted,
)
from autotune.tuning.session import Session

NOISE_FLOOR_SHARE = 0.15
"""Share of the time that is left that the noise floor may take at most; else the study goes without."""
DRIFT_CHECK_SHARE = 0.02
FEWEST_TO_JUDGE = 2
"""Trials beside the untuned model's before it is said how long the run will go on."""
LATE_SHARE = 0.25
"""A search that may stop early is expected to stop after this share of the trials between the first at which it still
can and the last. Half of the replays of recorded tables stopped by this share, half later (decision 24)."""


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
        tried = [record for record in self._compiled() if record.counts]
        typical_s = typical_trial_s(tried) if tried else trial_s(untuned)
        confirmation_s = expected_s(self.session, likely_contestants(self.session)) if tried else 0.0
        reserved_s = confirmation_s if confirmation_s <= SAFETY * left_s else 0.0
        return left_s - reserved_s if left_s - reserved_s >= typical_s else None

    def spare_trial_s(self) -> float | None:
        """Seconds for a trial that an answer can do without; None where it would take the confirmation's time."""
        left_s = self.session.deadline.left_s()
        longest_s = self.next_trial_s()
        holds_confirmation = math.isinf(left_s) or expected_s(self.session, likely_contestants(self.session)) <= left_s
        return longest_s if holds_confirmation else None

    def has_time_for_noise_floor(self) -> bool:
        """It takes no more than its share of what is left."""
        session, untuned = self.session, self.session.study.untuned_record()
        assert untuned is not None, "asked once it is measured"
        plan, start_s = session.budget.noise_floor.fit_for(session.objective), process_start_s(untuned)
        times = block_times([untuned] * 2, plan, session.budget.sampling, start_s, cold=True)
        return times.of(plan.first_look) <= NOISE_FLOOR_SHARE * session.deadline.left_s()

    def has_time_for_drift_check(self) -> bool:
        """It takes no more than its share of what is left."""
        untuned = self.session.study.untuned_record()
        assert untuned is not None, "asked once it is measured"
        return trial_s(untuned) <= DRIFT_CHECK_SHARE * self.session.deadline.left_s()

    def require_untuned(self) -> None:
        """Raises InputError where the time was up before the untuned model was measured: there is no answer then."""
        if self.session.study.untuned_record() is None:
            raise InputError(
                f"the time of {self.session.budget.wall_s:g} s does not hold one trial of the untuned model",
                tip=f"give more with {asked('budget')}, e.g. {asked('budget', '10m')}; what was measured is kept",
            )

    def _compiled(self) -> list[TrialRecord]:
        untuned = self.session.study.manifest.space.untuned()
        return [record for record in self.session.study.records() if record.config != untuned]


class TimeLeft:
    """Passes the events of a run on, and after those that change it tells the time that is left.

    Trials to come take the mean of those of this run. Blocks take what they are expected to, and once some were
    measured the mean of the later ones. Nothing is decided by it. How good it is: docs/decisions/0024-time-left.md.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clock = session.deadline.clock
        self._since = 0.0
        self._trial_s: list[float] = []
        """From the end of one to the end of the next, the untuned model's left out."""
        self._block_s: list[float] = []
        self._num_looks = 0
        self._is_searching = self._goes_on = True

    def __call__(self, event: Event) -> None:
        self._session.notify(event)
        match event:
            case TrialStarted():
                self._since = self._since or self._clock()
            case NoiseFloorMeasured():
                self._since = self._clock()
            case TrialEnded():
                took_s = self._lap()
                if event.record.config != self._session.study.manifest.space.untuned():
                    self._trial_s.append(took_s)
                self._tell()
            case SearchEnded():
                self._is_searching = False
                self._tell()
            case ConfirmationStarted():
                self._lap()
                self._block_s, self._num_looks = [], 0
                self._tell()
            case BlockMeasured():
                self._block_s.append(self._lap())
                if len(self._block_s) != self._next_look:  # Else it is told with the look.
                    self._tell()
            case ConfirmationLooked():
                self._num_looks += 1
                self._goes_on = not event.is_clear and self._num_looks < self._session.budget.confirmation.num_looks
                self._tell()

    def _lap(self) -> float:
        since, self._since = self._since, self._clock()
        return self._since - since

    def _tell(self) -> None:
        left_s = self._expected_s()
        if left_s is not None and math.isfinite(left_s):
            self._session.notify(TimeLeftEstimated(left_s))

    def _expected_s(self) -> float | None:
        """None as long as too little is known; never more than there is time for."""
        study = self._session.study
        records, untuned = study.records(), study.untuned_record()
        took_s = self._trial_s
        if len(took_s) < FEWEST_TO_JUDGE:  # Of a study that goes on: as in its earlier runs.
            took_s = [*took_s, *(trial_s(record) for record in records if record.counts and record != untuned)]
        if len(took_s) < FEWEST_TO_JUDGE or untuned is None or not isinstance(untuned.outcome, Measurement):
            return None
        search_s = statistics.fmean(took_s) * self._num_trials_left(records) if self._is_searching else 0.0
        return min(search_s + self._confirmation_s(), max(self._session.deadline.left_s(), 0.0))

    def _num_trials_left(self, records: list[TrialRecord]) -> float:
        """Up to the rule that ends the search; infinite where nothing but the time does."""
        study, budget = self._session.study, self._session.budget
        num_done = study.num_recorded()
        limits = [limit for limit in (budget.num_trials, study.manifest.space.num_configs) if limit is not None]
        expected: float = min(limits, default=math.inf)
        if budget.stop_early and len(study.manifest.objectives) == 1:
            values = (
                self._session.value(record.measurement) if record.state == "measured" else math.inf
                for record in records
                if record.counts
            )
            earliest = max(FEWEST_TRIALS, num_done, num_done + FEWEST_IDLE - count_idle(values))
            latest = expected if math.isfinite(expected) else 2 * earliest
            expected = min(earliest, latest) + LATE_SHARE * max(latest - earliest, 0)
        return max(expected - num_done, 0)

    @property
    def _next_look(self) -> int:
        """Blocks by then: each look doubles them."""
        return self._session.budget.confirmation.fit_for(self._session.objective).first_look << self._num_looks

    def _confirmation_s(self) -> float:
        """Seconds of the blocks up to the next look."""
        if not self._goes_on:
            return 0.0
        if self._block_s:
            return (self._next_look - len(self._block_s)) * statistics.fmean(self._block_s[1:] or self._block_s)
        session, contestants = self._session, likely_contestants(self._session)
        times = confirmation_times(
            contestants, session.study.noise_floor, session.objective, session.budget, session.caches.holds
        )
        return times.of(self._next_look)
