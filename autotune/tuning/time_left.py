"""`TimeLeft`: tells how long a run will go on, after each trial and each block of the confirmation."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.measure.measurement import Measurement
from autotune.study.records import TrialRecord
from autotune.study.sampler.early_stop import FEWEST_IDLE, FEWEST_TRIALS, count_idle
from autotune.tuning.confirmation import likely_contestants
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
from autotune.tuning.expected_time import block_times_s, process_start_s, trial_s
from autotune.tuning.remaining_work import RemainingWork
from autotune.tuning.session import Session
from autotune.tuning.warm_compile import block_shares

FEWEST_TO_JUDGE = 2
"""Trials beside the untuned model's before anything is said."""


class TimeLeft:
    """Passes the events of a run on, and after those that change it tells the time that is left."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._clock = session.deadline.clock
        self._since = 0.0
        self._trial_s: list[float] = []
        self._work: RemainingWork | None = None

    def __call__(self, event: Event) -> None:
        self._session.notify(event)
        match event:
            case TrialStarted():
                self._since = self._since or self._clock()
            case NoiseFloorMeasured():
                self._since = self._clock()
            case TrialEnded():
                self._note_trial(event.record)
            case SearchEnded():
                self._tell(is_searching=False)
            case ConfirmationStarted():
                self._since = self._clock()
                self._tell(is_searching=False, block_s=(), num_looked=0)
            case BlockMeasured() if self._work is not None:
                self._note_block(self._work)
            case ConfirmationLooked() if self._work is not None:
                self._tell(num_looked=self._work.num_looked + 1, is_clear=event.is_clear)

    def _note_trial(self, record: TrialRecord) -> None:
        now = self._clock()
        if record.config != self._session.study.manifest.space.untuned():
            self._trial_s.append(now - self._since)
        self._since = now
        self._work = self._remaining()
        self._tell()

    def _note_block(self, work: RemainingWork) -> None:
        """A block after which there is a look is told with it."""
        now = self._clock()
        block_s, self._since = (*work.block_s, now - self._since), now
        self._work = replace(work, block_s=block_s)
        if len(block_s) != work.first_look << work.num_looked:
            self._tell()

    def _tell(self, **changes: object) -> None:
        if self._work is None:
            return
        left_s = self._session.deadline.left_s()
        limit_s = left_s if math.isfinite(left_s) else None
        self._work = replace(self._work, limit_s=limit_s, **changes)  # type: ignore[arg-type]
        if math.isfinite(self._work.left_s):
            self._session.notify(TimeLeftEstimated(self._work))

    def _remaining(self) -> RemainingWork | None:
        """None as long as too little is known."""
        study, budget = self._session.study, self._session.budget
        records, untuned = study.records(), study.untuned_record()
        config = study.manifest.space.untuned()
        took_s = self._trial_s
        if len(took_s) < FEWEST_TO_JUDGE:  # Of a study that goes on: as in its earlier runs.
            took_s = [*took_s, *(trial_s(each) for each in records if each.counts and each.config != config)]
        if len(took_s) < FEWEST_TO_JUDGE or untuned is None or not isinstance(untuned.outcome, Measurement):
            return None
        plan = budget.confirmation.fit_for(self._session.objective)
        contestants = likely_contestants(self._session)
        first_s, later_s = block_times_s(
            [each.measurement for each in contestants],
            plan,
            budget.sampling,
            process_start_s(untuned, study.noise_floor),
            [block_shares(self._session, each) for each in contestants],
        )
        limits = [each for each in (budget.num_trials, study.num_configs()) if each is not None]
        return RemainingWork(
            trial_s=tuple(took_s),
            num_done=study.num_recorded(),
            num_most=min(limits, default=None),
            num_fewest=self._num_fewest(records),
            first_look=plan.first_look,
            num_looks=plan.num_looks,
            first_block_s=first_s,
            later_block_s=later_s,
        )

    def _num_fewest(self, records: list[TrialRecord]) -> int | None:
        study = self._session.study
        if not self._session.budget.stop_early or len(study.manifest.objectives) > 1:
            return None
        counted = [each for each in records if each.counts]
        idle = count_idle(
            self._session.value(each.measurement) if each.state == "measured" else math.inf for each in counted
        )
        return max(FEWEST_TRIALS, len(counted) + FEWEST_IDLE - idle)
