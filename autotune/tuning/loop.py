"""The loop over a study: the untuned model, the noise floor, the search, and the confirmation.

Nothing here prints. One callback receives what happens as events, and the command line shows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autotune.bench.many_devices import ManyDevices, WorkerLostError
from autotune.bench.trials import PreparedTrials, Trials
from autotune.command_line import asked
from autotune.config import Config
from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Stage
from autotune.measure.statistics import Verdict
from autotune.study.budget import Budget
from autotune.study.records import Confirmation, DriftCheck, StopReason, TrialRecord
from autotune.study.sampler.early_stop import FEWEST_TRIALS
from autotune.study.study import Study
from autotune.trial.deadline import Deadline
from autotune.trial.request import TrialRequest
from autotune.tuning import priors, pruning
from autotune.tuning.baseline import require_baseline, require_same_machine
from autotune.tuning.busy_machine import BusyMachine
from autotune.tuning.circuit_breaker import CircuitBreaker
from autotune.tuning.confirmation import confirm
from autotune.tuning.crash_retry import retry_if_crashed
from autotune.tuning.events import (
    DriftChecked,
    ModelChecked,
    Notify,
    RuleLearned,
    SearchEnded,
    SearchStarted,
    TrialEnded,
    TrialStarted,
)
from autotune.tuning.failure_rules import FailureRules
from autotune.tuning.finalists import EQUALLY_FAST, likely_finalists
from autotune.tuning.jobs import num_at_once
from autotune.tuning.lost_workers import note_lost, until_no_worker_is_lost
from autotune.tuning.neighbours import NeighbourCheck
from autotune.tuning.noise_floor import check_drift, measure_noise_floor, note_drift
from autotune.tuning.reuse import keep_caches
from autotune.tuning.session import Session
from autotune.tuning.time_budget import TimeBudget
from autotune.tuning.time_left import TimeLeft
from autotune.tuning.trial_queue import QueuedTrial, TrialQueue

HARNESS_FAILURES_IN_A_ROW = 2
"""After this many the machine is at fault, and the search ends."""


class Tuner:
    """The loop over one study: `run` searches up to the budget, confirms the winner and stores the verdict.

    A time budget starts when the Tuner is created, unless a `deadline` is given. With `devices`, trials run on several
    devices side by side, and `trials` are the same.
    """

    def __init__(
        self,
        study: Study,
        budget: Budget,
        trials: Trials,
        notify: Notify = lambda _: None,
        *,
        deadline: Deadline | None = None,
        sources: Sequence[priors.PriorSource] = (),
        prepared_trials: PreparedTrials | None = None,
        devices: ManyDevices | None = None,
    ) -> None:
        self._study = study
        self._budget = budget
        deadline = deadline or Deadline.after(budget.wall_s)
        session = Session(study, budget, trials, notify, deadline, devices or prepared_trials, devices)
        self._notify = TimeLeft(session)
        self._session = replace(session, notify=self._notify)
        if devices is not None:
            devices.time_untuned_by(self._session.untuned_of_worker)
        self._num_lost: Counter[Config] = Counter()
        self._queue = TrialQueue(self._session)
        self._time = TimeBudget(self._session)
        self._neighbours = NeighbourCheck(self._session)
        self._quiet = BusyMachine(self._session)
        self._failure_rules = FailureRules(study, lambda rule, num_excluded: notify(RuleLearned(rule, num_excluded)))
        self._sources = sources
        self._breaker = CircuitBreaker(self._session)

    def run(self) -> Confirmation:
        """Continue where an earlier run stopped, up to the verdict.

        Raises NoUsableTrialError or HarnessError if there is nothing to decide on; recorded trials are kept.
        """
        study = self._study
        with study.writing() as given_back, self._session.caches.open():
            study.budget = self._budget
            study.stop_reason = None
            self._notify(self._start(given_back))
            is_here = self._session.devices is None
            if is_here and (self._wants_more() or study.confirmation is None or not _stands(study.confirmation, study)):
                require_same_machine(study)
            priors.enqueue_priors(study, self._sources, self._notify)
            reason = self._search()
            earlier = study.confirmation
            stands = earlier is not None and _stands(earlier, study)
            if not stands:
                self._prune()
            study.stop_reason = reason
            self._notify(SearchEnded(reason, study.early_stop))
            if reason is StopReason.TIME:
                self._time.require_untuned()
            if earlier is not None and stands:
                return earlier
            confirmation = until_no_worker_is_lost(lambda: confirm(self._session))
            if earlier is not None and confirmation.cut_short and not confirmation.blocks:
                return earlier  # It is outdated, but better than none.
            study.confirmation = confirmation
            return confirmation

    def _start(self, given_back: list[int]) -> SearchStarted:
        study, budget = self._study, self._budget
        return SearchStarted(
            study.num_recorded(),
            budget.num_trials,
            study.num_configs(),
            given_back,
            study.manifest.space,
            study.manifest.objective,
            budget.wall_s,
            study.manifest.workload.traffic,
        )

    def _search(self) -> StopReason:
        """Run trials until there is a reason to stop. The untuned model is measured first, time permitting."""
        if self._study.early_stop is not None:
            self._study.early_stop = None
        if self._wants_more():
            self._quiet.look()
            if self._study.reference.exists():
                self._require_same_model()
        reason = self._try_configs()
        require_baseline(self._study)
        if reason is not StopReason.TIME:
            self._check_noise_and_drift()
        return reason

    def _wants_more(self) -> bool:
        num_tried = self._study.num_recorded() + len(self._queue)
        return self._budget.num_trials is None or num_tried < self._budget.num_trials

    def _try_configs(self) -> StopReason:
        try:
            return self._run_until_stopped()
        finally:
            self._queue.drop()

    def _run_until_stopped(self) -> StopReason:
        harness_failures = 0
        while self._queue or self._wants_more():
            require_baseline(self._study)
            self._check_noise_and_drift()
            longest_s = self._time.next_trial_s()
            if longest_s is None:
                return StopReason.TIME
            self._failure_rules.update()
            no_more = self._ask_ahead(longest_s)
            if no_more is not None and not self._queue:
                return no_more
            queued = self._queue.pop()
            try:
                outcome = self._run_queued(queued, longest_s)
            except WorkerLostError as lost:
                self._try_again(queued, longest_s, lost)
                continue
            record = self._study.record(queued.asked.number)
            self._notify(TrialEnded(record))
            if record.was_cut_off:
                return StopReason.TIME
            was_lost = self._num_lost[queued.asked.config] > 0  # That another worker fails too says nothing of it.
            harness_failures = harness_failures + 1 if _is_harness(outcome) and not was_lost else 0
            if isinstance(outcome, Failure) and harness_failures >= HARNESS_FAILURES_IN_A_ROW:
                raise HarnessError(
                    f"trial {record.number} could not be run: {outcome.error}",
                    tip=f"full log: {outcome.evidence}",
                )
            self._breaker.check([each for each in self._study.records() if each.state != "running"], record)
        return StopReason.TRIALS

    def _try_again(self, queued: QueuedTrial, longest_s: float, lost: WorkerLostError) -> None:
        """Put the config of a lost trial at the end of the queue, as another trial."""
        note_lost(self._study, self._notify, queued.asked.number, lost)
        asked = self._study.ask_for(queued.asked.config, longest_s=self._budget.limits.total)
        if asked is not None:
            self._queue.add(asked, longest_s)

    def _ask_ahead(self, longest_s: float) -> StopReason | None:
        """Ask for as many trials as may run at the same time. Returns why there are fewer, if so."""
        while len(self._queue) < self._num_at_once():
            if not self._wants_more():
                return StopReason.TRIALS
            if self._gain_is_negligible():
                return StopReason.UNPROMISING
            asked = self._study.ask(longest_s=self._budget.limits.total)
            if asked is None:
                return StopReason.EXHAUSTED
            self._queue.add(asked, longest_s)
        return None

    def _num_at_once(self) -> int:
        places = self._session.num_jobs
        return num_at_once(places, self._study.num_recorded()) if self._budget.stop_early else places

    def _prune(self) -> None:
        """Measure the winner without settings that may have no effect, unless a trial shows it already."""
        study = self._study
        for _ in range(pruning.MOST_EXTRA):
            winner = next(iter(likely_finalists(self._session)), None)
            untuned = self._session.study.untuned_record()
            if winner is None or untuned is None or not self._beats(winner, untuned):
                return
            config = pruning.simpler_config(study.records(), winner, study.manifest, EQUALLY_FAST)
            longest_s = self._time.spare_trial_s()
            if config is None or longest_s is None:
                return
            asked = study.ask_for(config, longest_s=self._budget.limits.total)
            if asked is None:
                return
            self._queue.add(asked, longest_s)
            try:
                self._run_queued(self._queue.pop(), longest_s)
            except WorkerLostError:
                return  # An answer can do without it.
            self._notify(TrialEnded(study.record(asked.number)))

    def _beats(self, winner: TrialRecord, untuned: TrialRecord) -> bool:
        """By the search's figures. A config that keeps all constraints beats an untuned model that breaks one."""
        value = self._session.value
        return bool(untuned.violations) or value(winner.measurement) < value(untuned.measurement)

    def _gain_is_negligible(self) -> bool:
        """Whether further trials are expected to gain too little. No forecast is made before it could end."""
        study = self._study
        if not self._budget.stop_early or study.num_recorded() < FEWEST_TRIALS:
            return False
        forecast = study.forecast()
        if forecast is None or not forecast.is_negligible:
            return False
        if not self._queue:  # What is not measured yet may show more.
            study.early_stop = forecast
        return True

    def _require_same_model(self) -> None:
        """Raises HarnessError if the untuned model computes something else than when the study began.

        Its imports, weights or the machine may have changed; no config must be blamed for that. Its latency is one more
        drift check.
        """
        self._notify(ModelChecked())
        outcome = until_no_worker_is_lost(lambda: self._quiet.attempt(*self._session.untuned_again("untuned")))
        if isinstance(outcome, Failure) and outcome.reason is not Reason.OUT_OF_TIME:
            raise HarnessError(
                f"the untuned model does not give what it gave when the study began: {outcome.error}",
                tip="undo what changed (its imports, weights, the machine), or start another study with "
                f"{asked('study', 'NAME')}",
            )
        untuned = self._study.untuned_record()
        if isinstance(outcome, Measurement) and untuned is not None and isinstance(untuned.outcome, Measurement):
            check = DriftCheck(after=self._study.records()[-1].number, latency_s=outcome.latency.p50)
            Study.drift_checks.add(self._study, check)
            self._notify(DriftChecked(check, untuned.outcome.latency.p50))

    def _check_noise_and_drift(self) -> None:
        """Measure the noise floor once the untuned model works, then check for drift every few trials."""
        study = self._study
        untuned = study.untuned_record()
        if untuned is None:
            return
        if study.noise_floor is None and self._time.has_time_for_noise_floor():
            floor = until_no_worker_is_lost(lambda: measure_noise_floor(self._session))
            if floor is not None:
                study.noise_floor = floor
        if self._neighbours.is_due and self._time.has_time_for_noise_floor():
            self._neighbours.make()
        last = max((each.after for each in study.drift_checks), default=untuned.number)
        newest = max(each.number for each in study.records() if each.state != "running")
        if self._session.devices is not None:
            note_drift(self._session, self._session.devices, newest, untuned.measurement.latency.p50)
            return
        if newest - last >= self._budget.trials_per_sentinel and self._time.has_time_for_drift_check():
            first_s = untuned.measurement.latency.p50
            check = check_drift(self._session, self._quiet, newest, first_s)
            if check is not None:
                Study.drift_checks.add(study, check)

    def _run_queued(self, queued: QueuedTrial, longest_s: float) -> Outcome:
        """Run and store one trial, of at most `longest_s`. An interrupted trial is not left running in the study, nor
        one whose worker was lost: it has no outcome, and WorkerLostError is raised again. A config that loses a worker
        again is recorded as a failure of the harness, so that it cannot end all of them.
        """
        asked, folder, request = queued.asked, queued.folder, queued.request
        clock = self._session.deadline.clock
        ends = clock() + longest_s

        def attempt(request: TrialRequest) -> Outcome:
            return self._session.attempt(folder, request, ends - clock())

        try:
            self._notify(TrialStarted(asked.number, asked.config))
            outcome = self._quiet.attempt(folder, request, ends - clock())
            if isinstance(outcome, Failure) and outcome.blames_config and request.compiled_before is not None:
                # Another trial's caches must not be what a config is blamed for.
                outcome = attempt(request.from_empty_caches())
            outcome = retry_if_crashed(folder, request, outcome, attempt)
            if queued.compile_limit is not None:
                outcome = queued.compile_limit.named(outcome)
        except WorkerLostError as lost:
            self._num_lost[asked.config] += 1
            if self._num_lost[asked.config] == 1:
                self._study.abandon(asked)
                raise
            evidence = str(folder.stderr)
            outcome = Failure(reason=Reason.HARNESS, stage=Stage.START, error=str(lost), evidence=evidence)
        except BaseException:
            self._study.abandon(asked)
            raise
        self._study.tell(asked, outcome)
        wanted = [*(each.number for each in likely_finalists(self._session)), *self._queue.numbers()]
        keep_caches(self._study.record(asked.number), wanted, self._study, self._session.caches)
        return outcome


def _stands(confirmation: Confirmation, study: Study) -> bool:
    """Whether it is complete, decided, and no trial was recorded since."""
    is_done = not confirmation.cut_short and confirmation.verdict is not Verdict.UNDECIDED
    return is_done and confirmation.num_trials == study.num_recorded()


def _is_harness(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.reason is Reason.HARNESS
