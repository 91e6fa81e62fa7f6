"""The main job: the untuned model, how noisy the machine is, the search, and the confirmation.

Nothing here prints: what happens is told through one callback, as events, and the command line shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune import environment
from autotune.errors import HarnessError, InputError, NoUsableTrialError
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.measure.statistics import Verdict
from autotune.study.budget import Budget
from autotune.study.records import Confirmation, DriftCheck, StopReason, TrialRecord
from autotune.study.study import Asked, Study
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.runner.deadline import Deadline
from autotune.trial.runner.runner import Trials
from autotune.tuning import priors, pruning
from autotune.tuning.busy_machine import BusyMachine
from autotune.tuning.circuit_breaker import (
    ERRORS_IN_A_ROW,
    ERRORS_WITHOUT_SUCCESS,
    last_that_worked,
    same_error_at_the_end,
    signature_of,
)
from autotune.tuning.confirmation import EQUALLY_FAST, confirm, likely_finalists
from autotune.tuning.crash_retry import once_more_if_crashed
from autotune.tuning.cross_framework import require_same_function, require_unchanged
from autotune.tuning.events import (
    ConfigProbed,
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
from autotune.tuning.noise_floor import check_drift, measure_noise_floor
from autotune.tuning.reuse import from_empty_caches, shelve, with_reuse
from autotune.tuning.session import Session, trial_request
from autotune.tuning.time_budget import TimeBudget

CLEARLY_BEYOND_NOISE = 3.0
"""So many times the noise floor must a config be slower before its sampling is cut short."""
HARNESS_FAILURES_IN_A_ROW = 2
"""So many mean that the machine is at fault; going on would only repeat them."""


class Tuner:
    """The loop over one study: `run` searches up to the budget, confirms the winner and records the verdict.

    A time budget counts from when this was made, or as the `deadline` says.
    """

    def __init__(
        self,
        study: Study,
        budget: Budget,
        trials: Trials,
        notify: Notify = lambda _: None,
        *,
        deadline: Deadline | None = None,
        sources: Sequence[priors.Source] = (),
    ) -> None:
        self._study = study
        self._budget = budget
        self._notify = notify
        self._bench = Session(study, budget, trials, notify, deadline or Deadline.after(budget.wall_s))
        self._time = TimeBudget(self._bench)
        self._quiet = BusyMachine(self._bench)
        self._failure_rules = FailureRules(study, lambda rule, num_excluded: notify(RuleLearned(rule, num_excluded)))
        self._sources = sources
        self._excused: set[str] = set()
        """Errors that were shown to be the configs' own."""

    def run(self) -> Confirmation:
        """Go on where an earlier run stopped, to the verdict.

        Raises NoUsableTrialError or HarnessError when there is nothing to decide on; what was recorded stays.
        """
        study = self._study
        with study.writing() as given_back, self._bench.caches.open():
            study.remember_budget(self._budget.model_dump(mode="json"))
            study.remember_stop(None)
            self._notify(self._start(given_back))
            if self._wants_more() or study.confirmation is None or not _stands(study.confirmation, study):
                self._require_same_machine()
            priors.begin(study, self._sources, self._notify)
            reason = self._search()
            earlier = study.confirmation
            stands = earlier is not None and _stands(earlier, study)
            if not stands:
                self._prune()
            study.remember_stop(reason)
            self._notify(SearchEnded(reason, study.early_stop))
            if reason is StopReason.TIME:
                self._time.require_the_untuned()
            if earlier is not None and stands:
                return earlier
            confirmation = confirm(self._bench)
            if earlier is not None and confirmation.cut_short and not confirmation.blocks:
                return earlier  # Outdated, and better than none.
            study.confirm(confirmation)
            return confirmation

    def _start(self, given_back: list[int]) -> SearchStarted:
        study, budget = self._study, self._budget
        return SearchStarted(
            study.num_recorded(),
            budget.num_trials,
            study.num_configs(),
            given_back,
            study.manifest.objective,
            budget.wall_s,
            study.manifest.traffic,
        )

    def _search(self) -> StopReason:
        """Run trials until there is a reason to stop; the untuned model has been measured then, time permitting."""
        if self._study.early_stop is not None:
            self._study.remember_early_stop(None)
        if self._wants_more():
            self._quiet.look()
            if self._study.reference.exists():
                self._require_same_model()
        reason = self._try_configs()
        _require_baseline(self._study)
        require_same_function(self._study)
        if reason is not StopReason.TIME:
            self._watch_the_machine()
        return reason

    def _wants_more(self) -> bool:
        return self._budget.num_trials is None or self._study.num_recorded() < self._budget.num_trials

    def _try_configs(self) -> StopReason:
        harness_failures = 0
        while self._wants_more():
            _require_baseline(self._study)
            require_same_function(self._study)
            self._watch_the_machine()
            longest_s = self._time.next_trial_s()
            if longest_s is None:
                return StopReason.TIME
            self._failure_rules.update()
            if self._cannot_pay():
                return StopReason.UNPROMISING
            asked = self._study.ask(longest_s=self._budget.limits.total)
            if asked is None:
                return StopReason.EXHAUSTED
            outcome = self._run_asked(asked, longest_s)
            record = self._study.record(asked.number)
            self._notify(TrialEnded(record))
            if record.was_cut_off:
                return StopReason.TIME
            harness_failures = harness_failures + 1 if _is_harness(outcome) else 0
            if isinstance(outcome, Failure) and harness_failures >= HARNESS_FAILURES_IN_A_ROW:
                raise HarnessError(
                    f"trial {asked.number} could not be run: {outcome.error}",
                    tip=f"the whole story: {outcome.evidence}",
                )
            self._break_if_hopeless(record)
        return StopReason.TRIALS

    def _prune(self) -> None:
        """Measure the winner without the settings that may do nothing, where no trial tells."""
        study = self._study
        for _ in range(pruning.MOST_EXTRA):
            winner = next(iter(likely_finalists(self._bench)), None)
            untuned = self._bench.study.untuned_record()
            if winner is None or untuned is None or not self._beats(winner, untuned):
                return
            config = pruning.to_try(study.records(), winner, study.manifest, EQUALLY_FAST)
            longest_s = self._time.spare_trial_s()
            if config is None or longest_s is None:
                return
            asked = study.ask_for(config, longest_s=self._budget.limits.total)
            if asked is None:
                return
            self._run_asked(asked, longest_s)
            self._notify(TrialEnded(study.record(asked.number)))

    def _beats(self, winner: TrialRecord, untuned: TrialRecord) -> bool:
        """As far as the search tells; an untuned model that breaks a constraint is beaten by any that keeps them."""
        value = self._bench.value
        return bool(untuned.violations) or value(winner.measurement) < value(untuned.measurement)

    def _cannot_pay(self) -> bool:
        """Further trials promise too little. A space that the budget holds whole is tried whole."""
        study, budget = self._study, self._budget
        num_configs = study.num_configs()
        wanted = math.inf if budget.num_trials is None else budget.num_trials
        if not budget.stop_early or (num_configs is not None and num_configs <= wanted):
            return False
        outlook = study.outlook()
        if outlook is None or not outlook.is_bleak:
            return False
        study.remember_early_stop(outlook)
        return True

    def _require_same_machine(self) -> None:
        """What an earlier run measured elsewhere, or with other threads, makes no ranking with this one."""
        study = self._study
        untuned = study.untuned_record()
        if untuned is None or not isinstance(untuned.outcome, Measurement):
            return
        then = untuned.outcome.environment
        differences = then.differences(environment.describe(device=then.device, variables=study.manifest.variables))
        if differences:
            raise InputError(
                f"study {study.name!r} was measured on another machine or under other settings of it: "
                f"{'; '.join(differences)}",
                tip="tune here under another --study NAME, or restore what differs and run the same command again",
            )

    def _require_same_model(self) -> None:
        """A model whose imports, weights or machine changed computes something else: no config must be blamed.

        Its latency is one more reading of the machine.
        """
        self._notify(ModelChecked())
        outcome = self._quiet.attempt(*self._bench.untuned_again("untuned"))
        if isinstance(outcome, Failure) and outcome.reason is not Reason.OUT_OF_TIME:
            raise HarnessError(
                f"the untuned model does not give what it gave when the study began: {outcome.error}",
                tip="undo what changed (its imports, weights, the machine), or start another study with --study NAME",
            )
        require_unchanged(self._bench)
        untuned = self._study.untuned_record()
        if isinstance(outcome, Measurement) and untuned is not None and isinstance(untuned.outcome, Measurement):
            sentinel = DriftCheck(after=self._study.records()[-1].number, latency_s=outcome.latency.p50)
            self._study.add_sentinel(sentinel)
            self._notify(DriftChecked(sentinel, untuned.outcome.latency.p50))

    def _watch_the_machine(self) -> None:
        """The noise floor as soon as the untuned model is known to work; then a sentinel every few trials."""
        study = self._study
        untuned = study.untuned_record()
        if untuned is None:
            return
        if study.noise_floor is None and self._time.has_time_for_noise_floor():
            floor = measure_noise_floor(self._bench)
            if floor is not None:
                study.remember_noise_floor(floor)
        last = max((each.after for each in study.sentinels), default=untuned.number)
        newest = study.records()[-1].number
        if newest - last >= self._budget.trials_per_sentinel and self._time.has_time_for_sentinel():
            first_s = untuned.measurement.latency.p50
            sentinel = check_drift(self._bench, self._quiet, newest, first_s)
            if sentinel is not None:
                study.add_sentinel(sentinel)

    def _run_asked(self, asked: Asked, longest_s: float) -> Outcome:
        """Run and record one trial, of `longest_s` at most. An interrupted one is not left running in the study."""
        self._notify(TrialStarted(asked.number, asked.config))
        folder = self._study.trial_folder(asked.number)
        request = trial_request(self._study, asked.number, asked.config, folder, self._budget)
        request = with_reuse(request, self._study, self._bench.caches).model_copy(update=self._early_stop())
        clock = self._bench.deadline.clock
        ends = clock() + longest_s

        def attempt(request: TrialRequest) -> Outcome:
            return self._bench.attempt(folder, request, ends - clock())

        try:
            outcome = self._quiet.attempt(folder, request, ends - clock())
            if isinstance(outcome, Failure) and outcome.blames_config and request.compiled_before is not None:
                # Another trial's caches must not be what a config is blamed for.
                outcome = attempt(from_empty_caches(request))
            outcome = once_more_if_crashed(folder, request, outcome, attempt)
        except BaseException:
            self._study.give_back(asked)
            raise
        self._study.tell(asked, outcome)
        shelve(self._study.record(asked.number), likely_finalists(self._bench), self._study, self._bench.caches)
        return outcome

    def _early_stop(self) -> dict[str, object]:
        """The latency to beat, and how much slower is clearly slower on a machine as noisy as this one.

        None where something else than the latency is wanted, or something else as well: a slow config may have that.
        """
        fastest, floor = self._bench.fastest(), self._study.noise_floor
        if fastest is None or floor is None or len(self._study.manifest.objectives) > 1:
            return {}
        incumbent_s = self._bench.objective.incumbent_s(fastest.measurement)
        if incumbent_s is None:
            return {}
        plan = self._budget.sampling
        clearly = max(plan.clearly_slower, CLEARLY_BEYOND_NOISE * floor.spread)
        return {
            "incumbent_s": incumbent_s,
            "sampling": plan.model_copy(update={"clearly_slower": clearly}),
        }

    def _break_if_hopeless(self, last: TrialRecord) -> None:
        """Stop when one error ends trial after trial and a config that worked before ends in it too."""
        records = self._study.records()
        streak = same_error_at_the_end(records)
        if not isinstance(last.outcome, Failure) or last not in streak or len(streak) < ERRORS_IN_A_ROW:
            return
        signature = signature_of(last.outcome)
        worked = last_that_worked(records, self._study.manifest.space.untuned())
        if worked is None:
            is_environment = len(streak) >= ERRORS_WITHOUT_SUCCESS
        elif signature in self._excused:
            return
        else:
            is_environment = self._ends_in(signature, worked)
            self._excused.add(signature)
        if is_environment:
            raise HarnessError(
                f"{last.outcome.error}\n{len(streak)} trials in a row ended in this error, whatever the config: "
                "that is the environment, not the configs",
                tip=f"mend it, then tune under another --study NAME, since these trials blame their configs; "
                f"the whole story: {last.outcome.evidence}",
            )

    def _ends_in(self, signature: str, worked: TrialRecord) -> bool:
        """Run a config again that worked before: does it fail like the others now?"""
        self._notify(ConfigProbed(worked))
        folder = TrialFolder((self._study.folder / "again" / "probe").resolve())
        outcome = self._bench.attempt(
            folder, trial_request(self._study, worked.number, worked.config, folder, self._budget)
        )
        return isinstance(outcome, Failure) and signature_of(outcome) == signature


def _stands(confirmation: Confirmation, study: Study) -> bool:
    """No trial came since, there was time for it, and the machine was quiet enough to decide."""
    is_done = not confirmation.cut_short and confirmation.verdict is not Verdict.UNDECIDED
    return is_done and confirmation.num_trials == study.num_recorded()


def _require_baseline(study: Study) -> None:
    """Without the untuned model there is nothing to compare with: stop at once, with the child's own error."""
    untuned = study.untuned_record()
    if untuned is None:
        return
    if isinstance(untuned.outcome, Measurement):
        _require_values(study, untuned.outcome)
        return
    failure = untuned.outcome
    assert isinstance(failure, Failure)
    kind = NoUsableTrialError if failure.blames_config else HarnessError
    raise kind(
        f"the untuned model failed ({failure.reason} at {failure.stage}): {failure.error}",
        tip=f"mend the model, then run the same command again; the whole story: {failure.evidence}",
    )


def _require_values(study: Study, untuned: Measurement) -> None:
    """What cannot be measured here cannot be made less."""
    for objective in study.manifest.objectives:
        if not math.isfinite(objective.value(untuned)):
            raise HarnessError(
                f"--objective {objective.name}: it cannot be measured here",
                tip="choose another objective under another --study NAME",
            )


def _is_harness(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.reason is Reason.HARNESS
