"""`TrialQueue`: the trials that were asked for; and `Attempts`: the ladder of attempts at each, and what becomes of
one that goes wrong by no fault of its config.

One process is the rule. The rungs, from the lowest; each may let another process take its place:

    its worker was lost      it says nothing. A trial of the search is given back (`Study.abandon`: it leaves no record)
                             and its config tried by another trial; lost again, it is recorded as `setup`, which
                             blames no config. All else is run again, which ends: a worker that is lost twice gets
                             no further work
    the untuned model        any number of its crashes up to `UNTUNED_ATTEMPTS` processes: it worked before, and some
    crashed                  frameworks die now and then whatever they run (MindSpore's PyNative: 8 of 52 processes)
    the run's time ended it  nobody is blamed: the next run tries it again
    it found no memory on    given back as one that was lost, and from then on trials run one by one
    the device beside others
    others used the machine  once more, after a wait, a few times a run, time permitting; its first figures stand if the
                             second process says nothing of the config
    it failed, from a copy   once more from empty caches: another trial's caches must not be what a config is blamed for
    of caches
    it crashed               once more from empty caches; what the first process left is put aside. Figures:
                             docs/decisions/0019-random-crashes.md
    its compile was cut off  no further process, but a name: it is slow, which its timeout does not say

`once` climbs the first three, `run` all but the last, and `run_and_record` all, for a trial of the search, which it
also starts, records and tells of. Live processes of blocks have no ladder but a rule, `may_be_random`.
"""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from autotune.bench.bench import Bench, Lost, Running, StageCallback
from autotune.bench.workers import LOST_TRIALS
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.measure.disturbance import disturbance_of, taken_cores
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.own_folders import make_empty
from autotune.study.budget import BusyMachinePlan
from autotune.study.records import TrialRecord
from autotune.study.study import AskedTrial
from autotune.trial.folder import FIRST_CRASH, TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.tuning.cache_store import keep_caches, with_reuse
from autotune.tuning.compile_limit import CompileLimit, compile_limit
from autotune.tuning.events import MachineBusy, TrialDisturbed, TrialEnded, TrialLost, TrialStarted
from autotune.tuning.finalists import likely_finalists
from autotune.tuning.session import Session, picks_by_timing, trial_request

UNTUNED_ATTEMPTS = 4
"""MindSpore's PyNative sometimes crashes in its first operator (8 of 52 processes of one small model on CPU, 2.10);
that must not end a study."""
CONFIG_ATTEMPTS = 2
"""A config that crashes once may have hit the same random crash; one that crashes twice in a block is the cause."""
BUSY = 0.2
"""Cores that others use: below it is what any system does by itself."""
WAIT_SHARE = 0.05
"""Share of the time left in a run with a time budget that one wait may take at most."""
REPEAT_SHARE = 0.1
"""Share of it that a trial which is repeated may take. On a machine that stays busy the repeat is disturbed as well:
three of them took 99 of the 240 s of a run, which had no time for blocks any more, whose turns are interleaved."""


@dataclass(frozen=True)
class Ahead:
    """A process that was started before it is anybody's turn: when, and under which limits."""

    running: Running
    begun: float
    limits: Limits


@dataclass(frozen=True)
class QueuedTrial:
    """A trial to run: what the study asked for, its folder, and its request."""

    asked: AskedTrial
    folder: TrialFolder
    request: TrialRequest
    longest_s: float
    """Seconds that it may take, as the time stood when it was asked for."""
    ahead: Ahead | None = None
    """The trial was started already."""
    compile_limit: CompileLimit | None = None
    """Where it is stricter than the budget's."""


def how_busy(plan: BusyMachinePlan) -> MachineBusy | None:
    """What other programs use right now; None where that is nothing to speak of, or not known."""
    taken = taken_cores(plan.look_s)
    if taken is None or taken <= BUSY:
        return None
    return MachineBusy(taken, num_usable_cores(), os.getloadavg()[0] if hasattr(os, "getloadavg") else None)


class Attempts:
    """See above. Counts over one run what was repeated, whether waiting helped, and what was lost."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan = session.budget.quiet
        self._repeats_left = self._plan.max_repeats
        self._may_wait = True
        self._num_lost: Counter[Config] = Counter()
        self.setup_failures = 0
        """Trials in a row that ended in one, but for configs that were lost before."""
        self.has_room = True
        """On a device: for trials that compile side by side, as long as none has found none."""

    def tell_if_busy(self) -> None:
        """Tell whether other programs use this machine right now."""
        if self._session.bench.is_here and (busy := how_busy(self._plan)) is not None:
            self._session.notify(busy)

    def start_ahead(self, folder: TrialFolder, request: TrialRequest, longest_s: float) -> Ahead:
        """Start a trial ahead of its turn."""
        deadline = self._session.deadline
        begun, limits = deadline.clock(), deadline.cap(request.limits, longest_s)
        # A bench may wait first, such as for what its compiler needs: that is a part of the run's time, too.
        running = self._session.bench.start(folder, request.limited_to(limits), "gated")
        return Ahead(running, begun, limits)

    def once(
        self,
        folder: TrialFolder,
        request: TrialRequest,
        longest_s: float | None = None,
        ahead: Ahead | None = None,
        *,
        may_be_lost: bool = False,
    ) -> Outcome:
        """Run it, within the run's time and `longest_s`; where it must not be lost, until it is not."""
        session, deadline = self._session, self._session.deadline
        begun, limits = (deadline.clock(), None) if ahead is None else (ahead.begun, ahead.limits)
        limits = limits or deadline.cap(request.limits, longest_s)
        capped = request.limited_to(limits)
        running = session.bench.start(folder, capped) if ahead is None else ahead.running
        outcome = running.finish(session.notify_stage)
        outcome = run_through_crashes(session.bench, folder, capped, outcome, session.notify_stage)
        while isinstance(outcome, Lost) and not may_be_lost:
            outcome = session.bench.run(folder, capped, on_stage=session.notify_stage)
            outcome = run_through_crashes(session.bench, folder, capped, outcome, session.notify_stage)
        was_cut = limits.total < request.limits.total and deadline.clock() - begun >= limits.total
        return _cut_off(outcome) if was_cut else outcome

    def run(
        self,
        folder: TrialFolder,
        request: TrialRequest,
        longest_s: float | None = None,
        ahead: Ahead | None = None,
        *,
        may_be_lost: bool = False,
    ) -> Outcome:
        """Run it, and once more for each rung that asks for that."""
        clock = self._session.deadline.clock
        begun = clock()
        most_s = math.inf if longest_s is None else longest_s

        def again(request: TrialRequest) -> Outcome:
            return self.once(folder, request, most_s - (clock() - begun), may_be_lost=may_be_lost)

        outcome = self.once(folder, request, longest_s, ahead, may_be_lost=may_be_lost)
        why, taken_s, left_s = self._why_repeat(outcome), clock() - begun, self._session.deadline.left_s()
        # One that was started ahead had its start and its compile behind it when its turn came: a repeat has not.
        took_s = max(taken_s, sum(outcome.stage_s.values()) if isinstance(outcome, Measurement) else 0.0)
        spare_s = min(left_s, most_s - taken_s) - took_s
        if why is not None and spare_s >= 0 and took_s <= REPEAT_SHARE * left_s:
            self._repeats_left -= 1
            self._session.notify(TrialDisturbed(request.number, why))
            self.wait_until_quiet(spare_s)
            quieter = again(request)
            outcome = outcome if _says_nothing(quieter) else quieter
        if isinstance(outcome, Failure) and outcome.blames_config and request.compiled_before is not None:
            outcome = again(request.from_empty_caches())
        if isinstance(outcome, Failure) and outcome.reason is Reason.CRASH and not request.untuned:
            kept = _put_aside(folder)
            outcome = again(request.from_empty_caches()).model_copy(update={"first_crash": str(kept)})
        return outcome

    def run_and_record(self, queued: QueuedTrial, others: Sequence[int]) -> TrialRecord | None:
        """The record of a trial of the search; `others` are queued. None: its worker was lost and it was given back; an
        interrupted one is given back too.
        """
        session, study, asked = self._session, self._session.study, queued.asked
        try:
            session.notify(TrialStarted(asked.number, asked.config))
            outcome = self.run(queued.folder, queued.request, queued.longest_s, queued.ahead, may_be_lost=True)
        except BaseException:
            study.abandon(asked)
            raise
        if self._lacked_room(outcome, queued):
            study.abandon(asked)
            session.notify(TrialLost(asked.number, outcome.error))
            return None
        was_lost = asked.config in self._num_lost
        if isinstance(outcome, Lost):
            self._num_lost[asked.config] += 1
            if not was_lost:
                study.abandon(asked)
                session.notify(TrialLost(asked.number, outcome.error))
                LOST_TRIALS.write(study, [*LOST_TRIALS.read(study), outcome.worker])
                return None
            outcome = outcome.as_setup_failure(queued.folder)
        if queued.compile_limit is not None:
            outcome = queued.compile_limit.named(outcome)
        study.tell(asked, outcome)
        record = study.record(asked.number)
        keep_caches(record, [*(record.number for record in likely_finalists(session)), *others], study, session.caches)
        # That another worker fails too says nothing of this machine.
        is_setup = isinstance(outcome, Failure) and outcome.reason is Reason.SETUP and not was_lost
        self.setup_failures = self.setup_failures + 1 if is_setup else 0
        session.notify(TrialEnded(record))
        return record

    def _lacked_room(self, outcome: Outcome, queued: QueuedTrial) -> TypeGuard[Failure]:
        """It ran out of a device's memory while others may have held some."""
        is_full = isinstance(outcome, Failure) and outcome.reason is Reason.OUT_OF_MEMORY
        was_beside = queued.ahead is not None and self._session.in_batches
        self.has_room = self.has_room and not (is_full and was_beside)
        return is_full and was_beside

    def _why_repeat(self, outcome: Outcome) -> str | None:
        if self._repeats_left == 0 or not isinstance(outcome, Measurement):
            return None
        is_timed = self._session.study.manifest.objective.is_timed
        return disturbance_of(outcome) if is_timed else None

    def wait_until_quiet(self, spare_s: float = math.inf) -> None:
        """Wait, so long at most. Once that did not come in time, nothing is waited for any more."""
        session, plan = self._session, self._plan
        if not self._may_wait or not session.bench.is_here:
            return
        at_most_s = min(plan.max_wait_s, spare_s, WAIT_SHARE * session.deadline.left_s())
        for _ in range(math.ceil(at_most_s / plan.look_s)):
            taken = taken_cores(plan.look_s)
            if taken is None or taken <= BUSY:
                return
        self._may_wait = False


class TrialQueue:
    """The trials that were asked for and not run yet. While one is timed, the next ones are compiled already: what
    compiling costs is measured beside other compilations then, and steady calls alone (docs/measurement.md).

    What was started ahead comes out when it is ready to be timed; all else in the order in which it was put in.

    On a device nothing stands still, so trials are a batch there: all that compile side by side are ready, and wait,
    before the first is timed, and no other one starts until the last was. A config whose compiler times candidates
    itself takes several times as long as others, and is not started ahead.
    """

    def __init__(self, session: Session, attempts: Attempts) -> None:
        self._session = session
        self._attempts = attempts
        self._queued: deque[QueuedTrial] = deque()
        self.is_closed = False
        """The first trial of a batch was taken, and others are left."""

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, asked: AskedTrial, longest_s: float) -> None:
        """Put a trial at the end, and start it if others run at the same time."""
        session = self._session
        folder = session.study.trial_folder(asked.number)
        request = trial_request(session.study, asked.number, asked.config, folder, session.budget)
        most, limit = session.budget.limits, None
        if session.budget.cuts_slow_compiles:
            limit = compile_limit(session.study, asked.config, min(most.compile, most.total))
        if limit is not None:
            request = request.limited_to(limit.applied(request.limits))
        request = session.with_kernels(with_reuse(request, session.study, session.caches))
        try:
            is_ahead = session.num_jobs > 1
            if session.in_batches:
                is_ahead = self._attempts.has_room and not picks_by_timing(request)
            ahead = self._attempts.start_ahead(folder, request, longest_s) if is_ahead else None
        except BaseException:
            session.study.abandon(asked)
            raise
        self._queued.append(QueuedTrial(asked, folder, request, longest_s, ahead, limit))

    def take(self, ready: Running | None = None) -> QueuedTrial:
        """Take out the one whose process is `ready`; the next one where none was started ahead. Of a batch all are
        ready then."""
        for running in self.running() if self._session.in_batches else ():
            running.warm()
        chosen = self._queued[0]
        if ready is not None:
            chosen = next(queued for queued, process in self._running() if process is ready)
        self._queued.remove(chosen)
        self.is_closed = self._session.in_batches and len(self._queued) > 0
        return chosen

    def running(self) -> list[Running]:
        """Processes of those that were started ahead."""
        return [process for _, process in self._running()]

    def numbers(self) -> list[int]:
        """Numbers of the trials in it."""
        return [queued.asked.number for queued in self._queued]

    def drop(self) -> None:
        """End what was started, and give back what was asked for."""
        if running := self._running():
            self._session.bench.drop([process for _, process in running])
        while self._queued:
            self._session.study.abandon(self._queued.popleft().asked)

    def _running(self) -> list[tuple[QueuedTrial, Running]]:
        return [(queued, queued.ahead.running) for queued in self._queued if queued.ahead is not None]


def run_through_crashes(
    bench: Bench,
    folder: TrialFolder,
    request: TrialRequest,
    outcome: Outcome | None = None,
    on_stage: StageCallback | None = None,
) -> Outcome:
    """Run a trial to its end, unless the `outcome` is there; an untuned model that crashed gets further processes."""
    outcome = outcome or bench.run(folder, request, on_stage=on_stage)
    for _ in range(UNTUNED_ATTEMPTS - 1):
        if not (request.untuned and isinstance(outcome, Failure) and outcome.reason is Reason.CRASH):
            break
        outcome = bench.run(folder, request, on_stage=on_stage)
    return outcome


def may_be_random(request: TrialRequest, failure: Failure, num_failed: int) -> bool:
    """Whether another process may succeed after so many failures in a row: of the untuned model, which worked before,
    after any failure; of a config after a crash, since frameworks sometimes crash at random.
    """
    if request.untuned:
        return num_failed < UNTUNED_ATTEMPTS
    return failure.reason is Reason.CRASH and num_failed < CONFIG_ATTEMPTS


def _says_nothing(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.reason in (Reason.OUT_OF_TIME, Reason.SETUP, Reason.LOST)


def _cut_off(outcome: Outcome) -> Outcome:
    """A process that the end of the run's time ended. One that failed by itself just then is tried again as well."""
    if isinstance(outcome, Measurement) or outcome.reason not in (Reason.TIMEOUT, Reason.SETUP):
        return outcome
    error = "stopped: the run's time was used up"
    return outcome.model_copy(update={"reason": Reason.OUT_OF_TIME, "error": error})


def _put_aside(folder: TrialFolder) -> Path:
    """The next process starts from an empty record, so what this one said is moved."""
    kept = folder.path / FIRST_CRASH
    make_empty(kept)
    for file in (folder.outcome_file, folder.stdout, folder.stderr):
        if file.exists():
            file.replace(kept / file.name)
    return kept
