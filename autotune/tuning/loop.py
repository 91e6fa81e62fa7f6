"""The loop over a study: the untuned model, the noise floor, the search, and the confirmation.

The search is a tuple of phases that are gone through again and again. The first one that gives a reason to stop ends
it, and the verdict follows; one that raises ends the run. Each phase may ask the bench for fresh processes of any
config, in any number and at any time; what they measured is evidence wherever it was made. What a bench has to look at
for its own sake comes in as phases of its own.

Nothing here prints. One callback receives what happens as events, and the command line shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.bench.bench import Bench, Check
from autotune.config import Config
from autotune.measure.statistics import Verdict
from autotune.study.budget import Budget
from autotune.study.early_stop import FEWEST_TRIALS
from autotune.study.records import Confirmation, StopReason, TrialRecord
from autotune.study.sampler.sampler import Sampler
from autotune.study.study import AskedTrial, Study
from autotune.trial.deadline import Deadline
from autotune.tuning import priors, pruning
from autotune.tuning.attempts import Attempts, TrialQueue
from autotune.tuning.checks import (
    CircuitBreaker,
    check_drift,
    measure_noise_floor,
    require_same_machine,
    require_same_model,
    require_untuned_works,
)
from autotune.tuning.confirmation import confirm
from autotune.tuning.events import Notify, RuleLearned, SearchEnded, SearchStarted
from autotune.tuning.failure_rules import FailureRules
from autotune.tuning.finalists import EQUALLY_FAST, likely_finalists
from autotune.tuning.jobs import num_at_once
from autotune.tuning.session import Session
from autotune.tuning.time_budget import TimeBudget, TimeLeft

Phase = Callable[[], StopReason | None]


class Tuner:
    """The loop over one study: `run` searches up to the budget, confirms the winner and stores the verdict.

    A time budget starts when the Tuner is created, unless a `deadline` is given.
    """

    def __init__(
        self,
        study: Study,
        budget: Budget,
        bench: Bench,
        notify: Notify = lambda _: None,
        deadline: Deadline | None = None,
    ) -> None:
        self._study = study
        self._sampler = Sampler(study)
        self._budget = budget
        session = Session(study, budget, bench, notify, deadline or Deadline.after(budget.wall_s))
        self._notify = TimeLeft(session)
        self._session = replace(session, notify=self._notify)
        self._time = TimeBudget(self._session)
        self._attempts = Attempts(self._session)
        self._queue = TrialQueue(self._session, self._attempts)
        self._rules = FailureRules(
            study, self._sampler, lambda rule, num_excluded: notify(RuleLearned(rule, num_excluded))
        )
        self._breaker = CircuitBreaker(self._session, self._attempts)
        checks = bench.checks_for(self._session, self._time.has_time_for_noise_floor)
        self._checks: tuple[Phase, ...] = (
            self._require_untuned,
            self._measure_noise,
            *(self._once_untuned_is_known(check) for check in checks),
            *((self._check_drift,) if bench.is_here else ()),
        )
        self._phases: tuple[Phase, ...] = (
            *self._checks,
            self._look_at_the_time,
            self._rules.update,
            self._ask,
            self._run_one,
            self._look_for_one_cause,
        )
        self._longest_s = 0.0
        """Seconds that the next trial may take."""
        self._record: TrialRecord | None = None
        """Record of the trial that ran last; None: it was given back."""

    def run(self, sources: Sequence[priors.PriorSource] = ()) -> Confirmation:
        """Continue where an earlier run stopped, up to the verdict; configs of the `sources` are tried first.

        Raises NoUsableTrialError or HarnessError if there is nothing to decide on; recorded trials are kept.
        """
        study = self._study
        with study.writing() as given_back, self._session.caches.open():
            study.budget = self._budget
            study.stop_reason = None
            self._notify(self._start(given_back))
            goes_on = self._wants_more() or study.confirmation is None or not _stands(study.confirmation, study)
            if self._session.bench.is_here and goes_on:
                require_same_machine(study)
            priors.enqueue_priors(study, sources, self._notify)
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
            confirmation = confirm(self._session)
            if earlier is not None and confirmation.cut_short and not confirmation.blocks:
                return earlier  # It is outdated, but better than none.
            study.confirmation = confirmation
            return confirmation

    def _start(self, given_back: list[int]) -> SearchStarted:
        study, budget = self._study, self._budget
        return SearchStarted(
            study.num_recorded(),
            budget.num_trials,
            study.manifest.space.num_configs,
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
            self._attempts.tell_if_busy()
            if self._study.reference.exists():
                require_same_model(self._session, self._attempts)
        try:
            reason = self._go_through_phases()
        finally:
            self._queue.drop()
        # What the last trials were measured with is looked at, too, as long as there is time.
        for check in (self._require_untuned,) if reason is StopReason.TIME else self._checks:
            check()
        return reason

    def _go_through_phases(self) -> StopReason:
        while self._queue or self._wants_more():
            for phase in self._phases:
                reason = phase()
                if reason is not None:
                    return reason
        return StopReason.TRIALS

    def _wants_more(self) -> bool:
        num_tried = self._study.num_recorded() + len(self._queue)
        return self._budget.num_trials is None or num_tried < self._budget.num_trials

    # The phases, in their order.

    def _require_untuned(self) -> None:
        require_untuned_works(self._study)

    def _measure_noise(self) -> None:
        """Measure the noise floor once the untuned model works."""
        study = self._study
        if study.untuned_record() is None or study.noise_floor is not None or not self._time.has_time_for_noise_floor():
            return
        floor = measure_noise_floor(self._session)
        if floor is not None:
            study.noise_floor = floor

    def _once_untuned_is_known(self, check: Check) -> Phase:
        return lambda: None if self._study.untuned_record() is None else check()

    def _check_drift(self) -> None:
        check_drift(self._session, self._attempts, self._time.has_time_for_drift_check)

    def _look_at_the_time(self) -> StopReason | None:
        longest_s = self._time.next_trial_s()
        if longest_s is None:
            return StopReason.TIME
        self._longest_s = longest_s
        return None

    def _ask(self) -> StopReason | None:
        """Ask for as many trials as may run at the same time. What is queued is run before the search ends."""
        while len(self._queue) < self._num_at_once():
            reason = self._ask_for_one()
            if reason is not None:
                return None if self._queue else reason
        return None

    def _run_one(self) -> StopReason | None:
        queued = self._queue.pop()
        self._record = self._attempts.run_and_record(queued, self._longest_s, self._queue.numbers())
        if self._record is None:  # It was given back: its config comes last in the queue, as another trial.
            if not self._sampler.excludes(queued.asked.config):
                self._queue.add(self._opened(queued.asked.config), self._longest_s)
            return None
        return StopReason.TIME if self._record.was_cut_off else None

    def _look_for_one_cause(self) -> None:
        """An error that comes whatever the config is, ends the search."""
        if self._record is not None:
            self._breaker.check(self._study.ended(), self._record)

    # What they need.

    def _ask_for_one(self) -> StopReason | None:
        if not self._wants_more():
            return StopReason.TRIALS
        if self._gain_is_negligible():
            return StopReason.UNPROMISING
        config = self._sampler.suggest()
        if config is None:
            return StopReason.EXHAUSTED
        self._queue.add(self._opened(config), self._longest_s)
        return None

    def _opened(self, config: Config) -> AskedTrial:
        """A trial of this config in the study, where it counts as running for as long as it may take."""
        return self._study.ask(config, longest_s=self._budget.limits.total)

    def _num_at_once(self) -> int:
        places = self._session.num_jobs
        return num_at_once(places, self._study.num_recorded()) if self._budget.stop_early else places

    def _prune(self) -> None:
        """Measure the winner without settings that may have no effect, unless a trial shows it already."""
        study = self._study
        for _ in range(pruning.MOST_EXTRA):
            winner = next(iter(likely_finalists(self._session)), None)
            untuned = study.untuned_record()
            if winner is None or untuned is None or not self._beats(winner, untuned):
                return
            config = pruning.simpler_config(study.records(), winner, study.manifest, EQUALLY_FAST)
            longest_s = self._time.spare_trial_s()
            if config is None or longest_s is None or self._sampler.excludes(config):
                return
            self._queue.add(self._opened(config), longest_s)
            if self._attempts.run_and_record(self._queue.pop(), longest_s, ()) is None:
                return  # An answer can do without it.

    def _beats(self, winner: TrialRecord, untuned: TrialRecord) -> bool:
        """By the search's figures. A config that keeps all constraints beats an untuned model that breaks one."""
        value = self._session.value
        return bool(untuned.violations) or value(winner.measurement) < value(untuned.measurement)

    def _gain_is_negligible(self) -> bool:
        """Whether further trials are expected to gain too little. No forecast is made before it could end."""
        study = self._study
        if not self._budget.stop_early or study.num_recorded() < FEWEST_TRIALS:
            return False
        forecast = self._sampler.forecast()
        if forecast is None or not forecast.is_negligible:
            return False
        if not self._queue:  # What is not measured yet may show more.
            study.early_stop = forecast
        return True


def _stands(confirmation: Confirmation, study: Study) -> bool:
    """Whether it is complete, decided, and no trial was recorded since."""
    is_done = not confirmation.cut_short and confirmation.verdict is not Verdict.UNDECIDED
    return is_done and confirmation.num_trials == study.num_recorded()
