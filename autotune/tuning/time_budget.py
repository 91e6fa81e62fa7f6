"""The clock of a run: how long a time budget lets it try configs (`TimeBudget`), and how long it will go on
(`TimeLeft`). Both ask `estimate` what trials and blocks take; only the first decides anything.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.errors import InputError, marked
from autotune.measure.measurement import Failure, Measurement, Stage
from autotune.study.early_stop import count_idle
from autotune.study.records import TrialRecord
from autotune.tuning.estimate import (
    block_times,
    confirmation_times,
    process_start_s,
    proof_s,
    trial_s,
    typical_trial_s,
)
from autotune.tuning.events import (
    AnswerProven,
    BlockMeasured,
    BlockStarted,
    BudgetShort,
    Event,
    NoiseFloorMeasured,
    SearchEnded,
    StageEntered,
    TimeLeftEstimated,
    TrialEnded,
    TrialStarted,
)
from autotune.tuning.race import Standing
from autotune.tuning.session import Session

SECOND_SHARE = 0.03
"""Share of the time that is left that a process of the second baseline may take at most."""
NOISE_FLOOR_SHARE = 0.15
"""Share of the time that is left that the noise floor may take at most; else the study goes without."""
SAFETY = 1.25
"""A block is expected to take so many times what its parts took in the search, as long as none was measured."""
MOST_PACE = 3.0
HOPE = 0.5
"""Share of what its parts took in the search in which a block may end: where the time left is of no other use, it is
tried. The search's compiled beside each other, and longer for it."""
SHORT = 6.0
"""Blocks of which the time left must hold so many, else nothing compiles beside a block: what compiles takes a core,
and often three times as long as the config before it."""
FIRST_ALONE_S = 60.0
"""Where less than this is left, the first config compiles alone: it is the one that is known best, and a second compile
beside it takes the time in which it would be proven."""
MOST_NEEDED = 2
"""Blocks for which another config needs time where an answer is proven already."""
FEWEST_TO_JUDGE = 2
"""Trials beside the untuned model's before it is said how long the run will go on."""
BLOCKS_EXPECTED = 4
"""Blocks that a run without a proven answer is expected to take in all."""
LATE_SHARE = 0.25
"""A search that may stop early is expected to stop after this share of the trials between the first at which it still
can and the last. Half of the replays of recorded tables stopped by this share, half later (decision 24)."""


class TimeBudget:
    """Reads the study anew at each question; without a time budget there is time for everything."""

    def __init__(self, session: Session, num_engines: int = 0) -> None:
        """`num_engines`: so many engines are timed beside the answer at the end."""
        self._session = session
        self._num_engines = num_engines
        self._pace = SAFETY
        """How many times as long as estimated blocks take: a guess until one was measured."""
        self._is_pace_known = False
        """One was measured, and nothing compiled beside it."""
        self._is_told = False
        """Whether it was said that the time is short."""
        self.blocks_s = 0.0
        """Seconds that the blocks of this run have taken."""

    @property
    def left_s(self) -> float:
        """Seconds until the end of the run."""
        return self._session.deadline.left_s()

    @property
    def free_s(self) -> float:
        """Seconds that are left without those of the engines, which are held back from all that follows a proven
        answer. Its proof goes first, and what does not fit any more is not waited for."""
        left_s, study = self.left_s, self._session.study
        if not self._num_engines or not study.answers:
            return left_s
        best = next((record for record in study.records() if record.number == study.answers[-1].trial), None)
        needed_s = self.engines_s(best)
        return left_s - needed_s if needed_s <= left_s else left_s

    def engines_s(self, best: TrialRecord | None) -> float:
        """Seconds of a block of the engines and the answer, if there is one. An export takes about as long as a
        compile."""
        return self.block_s([*([] if best is None else [best]), *[best or self._session.untuned] * self._num_engines])

    def next_trial_s(self, standing: Standing | None) -> float | None:
        """Seconds that the next trial may take; None where the time is better used for blocks.

        What proves the leader comes first. With a proven answer another trial needs time for two blocks of its own,
        without which it could not take the answer's place. Where not even one block fits, all is for trials: then the
        answer is the fastest of them, unconfirmed. The first config may take all that is left.
        """
        if math.isinf(self.left_s):
            return math.inf
        if standing is None:
            return self.left_s if self.left_s > 0 else None
        left_s = self.free_s
        leader = standing.evidence.leader
        tried = self._tried()
        typical_s = typical_trial_s(tried) if tried else trial_s(standing.evidence.untuned)
        reserved_s = 0.0
        if leader is not None and standing.is_within_reach:
            block_s = self.block_s([leader])
            needed = standing.blocks_needed(leader) or MOST_NEEDED
            fitting = min(needed, max(math.floor(left_s / block_s), 0)) if block_s > 0 else needed
            reserved_s = fitting * block_s
        return left_s - reserved_s if left_s - reserved_s >= typical_s else None

    def spare_trial_s(self, standing: Standing) -> float | None:
        """Seconds for a trial that an answer can do without; None where it would take the time of the blocks."""
        leader = standing.evidence.leader
        if leader is not None and not self.holds([leader]):
            return None
        return self.next_trial_s(standing)

    def holds(self, finalists: Sequence[TrialRecord]) -> bool:
        """A block of these is expected to end in time."""
        return self.block_s(finalists) <= self.free_s

    def fitting(self, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
        """As many of them as there is time for in one block, the more important ones first."""
        fitting: list[TrialRecord] = []
        for record in finalists:
            if self.holds([*fitting, record]):
                fitting.append(record)
        return fitting

    def may_hold(self, finalist: TrialRecord) -> bool:
        """A block of it may end in time, if it takes less than expected, which nobody knows as long as none was
        measured."""
        return not self._is_pace_known and HOPE * self._estimated_s([finalist]) <= self.free_s

    def block_s(self, finalists: Sequence[TrialRecord]) -> float:
        """Seconds that a block of these is expected to take."""
        return self._pace * self._estimated_s(finalists)

    def note_block(self, finalists: Sequence[TrialRecord], took_s: float, *, was_beside: bool) -> None:
        """A block of these has taken so long; one that a trial compiled beside takes less without that."""
        self.blocks_s += took_s
        estimated_s = self._estimated_s(finalists)
        if estimated_s > 0:
            pace = min(max(took_s / estimated_s, 1 / MOST_PACE), MOST_PACE)
            self._pace = min(pace, self._pace) if was_beside else pace
            self._is_pace_known |= not was_beside

    def is_short(self, finalists: Sequence[TrialRecord]) -> bool:
        """So little time is left that a block of these is not to be slowed down by what compiles beside it."""
        return self.left_s < SHORT * self.block_s(finalists)

    def goes_alone(self) -> bool:
        """So little time is left that nothing compiles beside the first config. On a device, where the timing of one
        waits for all that compile beside it, nothing does beside the first one in any case, nor near the end."""
        is_late, is_first = self.left_s < FIRST_ALONE_S, not self._tried()
        return is_late or is_first if self._session.in_batches else is_late and is_first

    def shortage(self) -> BudgetShort | None:
        """Said once the untuned model is measured: the time is not expected to hold a trial and a block."""
        untuned = self._session.study.untuned_record()
        if untuned is None or self._is_told or math.isinf(self.left_s):
            return None
        needed_s = trial_s(untuned) + self.block_s([untuned])
        return self._short(needed_s, untuned.measurement.steady_call_s) if needed_s > self.left_s else None

    def shortage_by_call(self, ready_s: float, call_s: float) -> BudgetShort | None:
        """Said once the untuned model has made its first call, `ready_s` after its trial began."""
        session = self._session
        # What was spent so far is paid once, and `proof_s` counts it.
        needed_s = proof_s(ready_s, call_s, session.budget, session.objective) - ready_s - call_s
        return self._short(needed_s, call_s) if needed_s > self.left_s else None

    def _short(self, needed_s: float, call_s: float) -> BudgetShort:
        self._is_told, wall_s = True, self._session.budget.wall_s or 0.0
        return BudgetShort(needed_s + wall_s - self.left_s, wall_s, call_s)

    def has_time_for_beside(self) -> bool:
        """Another process of the untuned model takes no more than its share of what is left."""
        return trial_s(self._session.untuned) <= NOISE_FLOOR_SHARE * self.left_s

    def has_time_for_second(self) -> bool:
        """A process of the second baseline takes next to nothing of what is left."""
        return trial_s(self._session.untuned) <= SECOND_SHARE * self.left_s

    def has_time_for_noise_floor(self) -> bool:
        """It takes no more than its share of what is left."""
        session, untuned = self._session, self._session.untuned
        plan, start_s = session.budget.noise_floor.fit_for(session.objective), process_start_s(untuned)
        times = block_times([untuned] * 2, plan, session.budget.sampling, start_s, cold=True)
        return times.of(plan.first_look) <= NOISE_FLOOR_SHARE * self.left_s

    def require_untuned(self) -> None:
        """Raises InputError where the time was up before the untuned model was measured: there is no answer then."""
        study = self._session.study
        if study.untuned_record() is None:
            cut = [record.outcome for record in study.records() if isinstance(record.outcome, Failure)]
            was_built = not cut or cut[-1].stage not in (Stage.START, Stage.BUILD)
            rest = "" if was_built else ": it was over before the model was built"
            raise InputError(
                f"the time of {self._session.budget.wall_s:.3g} s does not hold one trial of the untuned model{rest}",
                tip=f"give more with {marked('budget')}, e.g. {marked('budget', '10m')}; what was measured is kept",
            )

    def _estimated_s(self, finalists: Sequence[TrialRecord]) -> float:
        session = self._session
        times = confirmation_times(
            [session.untuned, *finalists],
            session.study.noise_floor,
            session.objective,
            session.budget,
            has_caches=session.caches.holds,
            num_at_once=session.num_warming,
        )
        compared = {number for row in session.study.blocks for number in row.values}
        is_later = all(record.number in compared for record in finalists)
        return times.later_s if is_later else times.first_s

    def _tried(self) -> list[TrialRecord]:
        """Trials that ended and count, but for the untuned model's."""
        untuned = self._session.study.manifest.space.untuned()
        return [record for record in self._session.study.records() if record.config != untuned and record.counts]


class TimeLeft:
    """Passes the events of a run on, and after those that change it tells the time that is left.

    Trials to come take the mean of those of this run. Blocks take what they are expected to, and once some were
    measured the mean of the later ones; `BLOCKS_EXPECTED` are. Nothing is decided by it. How good it is:
    docs/decisions/0024-time-left.md. It also tells of a time that is too short, as soon as one call shows it.
    """

    def __init__(self, session: Session, time: TimeBudget) -> None:
        self._session = session
        self._time = time
        self._clock = session.deadline.clock
        self._since = 0.0
        self._trial_s: list[float] = []
        """From the end of one to the end of the next, the untuned model's left out."""
        self._block_s: list[float] = []
        self._is_searching = True
        self._is_proven = False
        self._first_call = 0.0
        """When the untuned model's first call began."""

    def __call__(self, event: Event) -> None:
        self._session.notify(event)
        match event:
            case TrialStarted() | BlockStarted():
                self._since = self._since or self._clock()
            case StageEntered() if self._session.study.untuned_record() is None:
                self._note_stage(event.stage)
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
            case BlockMeasured():
                self._block_s.append(self._lap())
                self._tell()
            case AnswerProven():
                self._is_proven = True
                self._tell()

    def _note_stage(self, stage: Stage) -> None:
        """A stage of the untuned model's trial: its first call lies between two of them."""
        if stage is Stage.COMPILE:
            self._first_call = self._clock()
        elif stage is Stage.CHECK and self._first_call:
            ready_s, call_s = self._first_call - self._since, self._clock() - self._first_call
            self._first_call = 0.0
            if (short := self._time.shortage_by_call(ready_s, call_s)) is not None:
                self._session.notify(short)

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
        return min(search_s + self._blocks_s(records), max(self._session.deadline.left_s(), 0.0))

    def _num_trials_left(self, records: list[TrialRecord]) -> float:
        """Up to the rule that ends the search; infinite where nothing but the time does."""
        study, budget = self._session.study, self._session.budget
        num_done = study.num_recorded()
        limits = [limit for limit in (budget.num_trials, study.manifest.space.num_configs) if limit is not None]
        expected: float = min(limits, default=math.inf)
        if budget.stop_early:
            values = (
                self._session.value(record.measurement) if record.state == "measured" else math.inf
                for record in records
                if record.counts
            )
            rule = study.stop_rule
            earliest = max(rule.fewest_trials, num_done, num_done + rule.fewest_idle - count_idle(values))
            latest = expected if math.isfinite(expected) else 2 * earliest
            expected = min(earliest, latest) + LATE_SHARE * max(latest - earliest, 0)
        return max(expected - num_done, 0)

    def _blocks_s(self, records: list[TrialRecord]) -> float:
        """Seconds of the blocks to come."""
        num_done = len(self._session.study.blocks)
        num_left = max(BLOCKS_EXPECTED - num_done, 0) if not self._is_proven else int(self._is_searching)
        if self._block_s:
            return num_left * statistics.fmean(self._block_s[1:] or self._block_s)
        untuned = self._session.study.untuned_record()
        feasible = [record for record in records if record.state == "measured" and record != untuned]
        best = min(feasible, key=lambda record: self._session.value(record.measurement), default=None)
        return num_left * self._time.block_s([best]) if best is not None else 0.0
