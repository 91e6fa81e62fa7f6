"""The loop over a study: one race from the untuned model to the verdict.

What is done next is decided by `race.Standing`, from what is known at that moment; here it is done. Places for
processes are filled (`_fill`), then whichever process is ready first is looked after: a trial is timed and recorded, a
block's process waits for the others of its block, and a block that is complete takes its turns and becomes a row. When
nothing is under way any more, and nothing is worth starting, the verdict follows from all that is stored.

Nothing here prints. One callback receives what happens as events, and the command line shows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from autotune.bench.bench import Bench, Check, Running
from autotune.config import Config
from autotune.measure.statistics import Verdict
from autotune.study.budget import Budget
from autotune.study.records import AnswerStep, Confirmation, StopReason
from autotune.study.sampler.sampler import Sampler
from autotune.study.study import AskedTrial, Study
from autotune.trial.deadline import Deadline
from autotune.tuning import priors, pruning
from autotune.tuning.attempts import Attempts, TrialQueue
from autotune.tuning.beside import SecondBeside, UntunedBeside, plan_second_baseline
from autotune.tuning.blocks import Block
from autotune.tuning.checks import (
    CircuitBreaker,
    measure_floor_between,
    measure_noise_floor,
    require_same_machine,
    require_same_model,
    require_untuned_works,
    wrong_again,
)
from autotune.tuning.confirmation import conclude
from autotune.tuning.engines import tell_of_missing, time_after_verdict, to_be_timed
from autotune.tuning.events import (
    AnswerProven,
    ModelChecked,
    Notify,
    RuleLearned,
    SearchEnded,
    SearchStarted,
    TrialsCompiling,
)
from autotune.tuning.evidence import evidence_of
from autotune.tuning.failure_rules import FailureRules
from autotune.tuning.field import Field, record_verdict
from autotune.tuning.finalists import EQUALLY_FAST
from autotune.tuning.jobs import may_compile_ahead, num_at_once
from autotune.tuning.race import End, Prove, Standing, Try, UnderWay
from autotune.tuning.session import Session, note_what_is_apart
from autotune.tuning.time_budget import TimeBudget, TimeLeft


class Tuner:
    """The loop over one study: `run` searches up to the budget, proves the winner and stores the verdict.

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
        self._given = budget
        self._budget = budget = _with_further_looks(study, budget)
        session = Session(study, budget, bench, notify, deadline or Deadline.after(budget.wall_s))
        self._begun = session.deadline.clock()
        self._time = TimeBudget(session, len(to_be_timed(session)))
        self._notify: Notify = TimeLeft(session, self._time)
        self._session = replace(session, notify=self._notify)
        self._attempts = Attempts(self._session)
        self._queue = TrialQueue(self._session, self._attempts)
        self._field = Field(self._session)
        self._beside = UntunedBeside(self._session)
        self._second = SecondBeside(self._session)
        self._rules = FailureRules(
            study, self._sampler, lambda rule, num_excluded: notify(RuleLearned(rule, num_excluded))
        )
        self._breaker = CircuitBreaker(self._session, self._attempts)
        floor = partial(
            measure_floor_between, self._session, self._time, self._queue, self._field, self._waits_for_proof
        )
        self._checks: Sequence[Check] = (*bench.checks_for(self._session, self._time.has_time_for_noise_floor), floor)
        self._reason: StopReason | None = None
        """Why no further config is tried."""
        self._needed_settings = pruning.NeededSettings(study.manifest, EQUALLY_FAST)
        self._num_extra = 0
        """Trials that were spent on a simpler form of the leader."""

    def run(self, sources: Sequence[priors.PriorSource] = ()) -> Confirmation:
        """Continue where an earlier run stopped, up to the verdict; configs of the `sources` are tried first.

        Raises NoUsableTrialError or SetupError if there is nothing to decide on; recorded trials are kept.
        """
        study, bench = self._study, self._session.bench
        with study.writing() as given_back, self._session.caches.open():
            study.budget = self._given
            study.stop_reason = None
            _tell_start(self._session, given_back)
            earlier = study.confirmation
            plan_second_baseline(study)
            priors.enqueue_priors(study, sources, self._notify)
            goes_on = self._wants_more() or earlier is None or not _stands(earlier, study)
            if bench.is_here and goes_on:
                require_same_machine(study)
            if goes_on and (may_compile_ahead(study) or study.manifest.workload.device != "cpu"):
                bench.prepare(study.manifest.workload, self._time.left_s)
            try:
                self._race(goes_on=goes_on)
            finally:
                self._queue.drop()
                self._field.end()
                self._beside.end()
                self._second.end()
                note_what_is_apart(study, bench)
            study.stop_reason = self._reason
            if earlier is not None and earlier.candidate in study.refused:
                earlier = None
            if earlier is not None and _stands(earlier, study):
                return earlier
            confirmation = conclude(self._session, self._standing(), self._field, self._reason)
            if earlier is not None and confirmation.cut_short and not confirmation.blocks:
                return earlier  # It is outdated, but better than none.
            record_verdict(study, confirmation)
            return time_after_verdict(self._session, self._time, confirmation)

    def _race(self, *, goes_on: bool) -> None:
        """Do what is worth doing, until nothing is, or the time is up."""
        study = self._study
        if study.early_stop is not None:
            study.early_stop = None
        if not goes_on:
            self._end_search(StopReason.TRIALS)
            return
        self._attempts.tell_if_busy()
        was_begun = study.reference.exists()
        while study.untuned_record() is None:
            if not self._try_untuned():
                self._end_search(StopReason.TIME)
                self._time.require_untuned()
        require_untuned_works(study)
        self._look_at_untuned(is_again=was_begun)
        while self._go_on():
            require_untuned_works(study, self._field.lost)

    def _try_untuned(self) -> bool:
        """Run the trial of the untuned model. False where the time was up."""
        if (longest_s := self._time.next_trial_s(None)) is None:
            return False
        self._queue.add(self._opened(self._study.manifest.space.untuned()), longest_s)
        record = self._attempts.run_and_record(self._queue.take(), ())
        return record is None or not record.was_cut_off

    def _look_at_untuned(self, *, is_again: bool) -> None:
        """Once it works: what the time allows, and the untuned model in a second process, whose output must be that of
        the first and that of an earlier run. The first configs compile while it becomes warm; in a later run none does
        before it is known that the model is the same."""
        session = self._session
        if (shortage := self._time.shortage()) is not None:
            self._notify(shortage)
        self._field.plan(session.room)
        if self._field.has_guests and session.has_beside and (is_again or self._time.has_time_for_beside()):
            if is_again:
                self._notify(ModelChecked())
            if self._time.has_time_for_second():
                self._second.start()  # It becomes warm beside the other one.
            self._beside.start()
            if session.mixes and not is_again:
                self._rules.update()
                self._fill()
            failure = self._beside.warm(is_later_run=is_again)
            if failure is not None:
                raise wrong_again(failure, is_later_run=is_again)
            if self._beside.process is not None:
                self._second.warm()
                return
            self._second.end()
        if is_again and self._wants_more():
            require_same_model(session, self._attempts)
        is_alone = not session.has_beside and not session.in_batches
        if is_alone and self._study.noise_floor is None and self._time.has_time_for_noise_floor():
            self._study.noise_floor = measure_noise_floor(session)

    def _go_on(self) -> bool:
        """Fill the places, and look after the process that is ready first. False when nothing is under way any more."""
        for check in self._checks:
            check()
        self._rules.update()
        self._fill()
        block = self._field.block
        if block is not None and (block.is_warm or self._time.left_s <= 0):
            self._measure_block()
            return True
        warming = [] if block is None else block.on_their_way
        started: list[Running] = [*self._queue.running(), *warming]
        if not started:
            if not len(self._queue):
                return False
            self._run_trial(None)
            return True
        if (numbers := self._queue.numbers()) and len(started) > 1 and self._session.bench.is_here:
            self._notify(TrialsCompiling(tuple(numbers)))
        ready = self._session.bench.first_ready(started) if len(started) > 1 else started[0]
        if block is not None and ready in warming:
            block.note_ready(ready)
        else:
            self._run_trial(ready)
        return True

    def _fill(self) -> None:
        """Start what is worth starting, as long as there is a place for one more process.

        A block gets one place more: what it proves is waited for, and what compiles beside it is not.
        """
        while (num_free := self._num_places() - self._num_under_way()) >= 0:
            block, has_place = self._field.block, num_free > 0
            if block is not None and block.can_start and (has_place or self._warms_more(block)):
                block.start_next()
                continue
            if self._field.lost is not None or not (has_place or (block is None and self._session.mixes)):
                return  # Without the untuned model nothing can be compared any more.
            way = self._under_way(has_place=has_place)
            match (standing := self._standing()).next(way, self._budget, self._time, self._sampler):
                case End(reason, forecast):
                    if forecast is not None:
                        self._study.early_stop = forecast
                    self._end_search(reason)
                case Prove(finalists):
                    block = self._field.open(finalists, self._beside.process, self._second.process)
                    self._field.ahead.let_follow(block, self._field, num_needed=standing.blocks_needed(finalists[0]))
                    block.was_beside |= len(self._queue) > 0
                case Try(config, longest_s, is_extra) if has_place:
                    self._num_extra += is_extra
                    self._field.ahead.drop()
                    if block is not None:
                        block.was_beside = True
                    self._queue.add(asked := self._opened(config), longest_s)
                    self._field.warm_beside(asked)
                case _:
                    return

    def _warms_more(self, block: Block) -> bool:
        """One more process of the block may become warm beside those that do."""
        return self._session.mixes or (len(block.on_their_way) < self._session.num_warming and self._field.has_room)

    def _num_under_way(self) -> int:
        """Places that are taken; where trials run one by one, one for all processes of a block."""
        num_warming = 0 if self._field.block is None else len(self._field.block.on_their_way)
        return len(self._queue) + (num_warming if self._session.mixes else min(num_warming, 1))

    def _num_places(self) -> int:
        if self._queue.is_closed:
            return len(self._queue)
        is_apart = self._session.in_batches and (self._field.block is not None or not self._attempts.has_room)
        places = 1 if is_apart or self._time.goes_alone() else self._session.num_jobs
        return num_at_once(places, self._study.num_recorded()) if self._budget.stop_early else places

    def _under_way(self, *, has_place: bool) -> UnderWay:
        finalists = None if self._field.block is None else self._field.finalists
        return UnderWay(len(self._queue), finalists, has_place, self._session.mixes, self._num_extra, self._reason)

    def _run_trial(self, ready: Running | None) -> None:
        """Time a trial that is ready, or run one that was not started; and look at what it says."""
        self._field.ahead.rest()
        queued = self._queue.take(ready)
        with self._session.bench.quiet():
            record = self._attempts.run_and_record(queued, self._queue.numbers())
            if record is not None:
                self._beside.read(record.number)
        if record is None:  # It was given back: its config comes last in the queue, as another trial.
            self._field.ahead.drop()
            if not self._sampler.excludes(queued.asked.config):
                self._queue.add(self._opened(queued.asked.config), queued.longest_s)
            return
        if record.was_cut_off:
            self._end_search(StopReason.TIME)
        self._breaker.check(self._study.ended(), record)

    def _measure_block(self) -> None:
        """Let the open block take its turns, and look at what the row says."""
        block = self._field.block
        assert block is not None, "it is open"
        finalists = self._field.finalists
        row = self._field.close()
        if not self._field.has_room:
            self._second.end()
        if row is None:
            return
        took_s = self._session.deadline.clock() - block.begun
        self._time.note_block(finalists, took_s, was_beside=block.was_beside)
        if row.disturbed is not None:
            self._attempts.wait_until_quiet()
        self._note_answer(self._standing())

    def _note_answer(self, standing: Standing) -> None:
        """Store an answer that takes the place of the one before."""
        before = next(iter(self._study.answers[-1:]), None)
        answer = standing.answer_after(None if before is None else before.trial)
        if answer is None:
            return
        evidence, after_s = standing.evidence, self._session.deadline.clock() - self._begun
        speedup, num_blocks = evidence.speedup(answer), evidence.num_blocks(answer)
        step = AnswerStep(after_s=after_s, trial=answer.number, speedup=speedup, num_blocks=num_blocks)
        self._study.answers = [*self._study.answers, step]
        # A run that is interrupted from here on keeps it.
        record_verdict(self._study, conclude(self._session, standing, self._field, self._reason, is_interim=True))
        self._notify(AnswerProven(step, answer, before))

    def _end_search(self, reason: StopReason) -> None:
        """No further config is tried."""
        if self._reason is None:
            self._reason = reason
            self._notify(SearchEnded(reason, self._study.early_stop))

    def _standing(self) -> Standing:
        plan = self._budget.confirmation.fit_for(self._session.objective)
        evidence = evidence_of(self._study, plan, list(self._field.failed), self._needed_settings)
        assert evidence is not None, "the untuned model is measured first"
        blocks_s = self._time.blocks_s
        block_s = 0.0 if math.isfinite(self._time.left_s) else blocks_s / max(self._field.num_measured, 1)
        return Standing(evidence, self._field.most_finalists, blocks_s, block_s)

    def _waits_for_proof(self) -> bool:
        return self._standing().to_prove_at_once(has_plans=self._sampler.has_plans()) is not None

    def _wants_more(self) -> bool:
        return self._study.num_recorded() + len(self._queue) < (self._budget.num_trials or math.inf)

    def _opened(self, config: Config) -> AskedTrial:
        """A trial of this config in the study, where it counts as running for as long as it may take."""
        return self._study.ask(config, longest_s=self._budget.limits.total)


def _tell_start(session: Session, given_back: list[int]) -> None:
    study, budget = session.study, session.budget
    started = SearchStarted(
        study.num_recorded(),
        budget.num_trials,
        study.manifest.space.num_configs,
        given_back,
        study.manifest.space,
        study.manifest.objective,
        budget.wall_s,
        study.manifest.workload.traffic,
        next(iter(study.answers[-1:]), None),
    )
    session.notify(started)
    tell_of_missing(session)


def _with_further_looks(study: Study, budget: Budget) -> Budget:
    """The budget, with a look more where the blocks of an undecided run have had all of them: they stay evidence."""
    earlier = study.confirmation
    if earlier is None or earlier.verdict is not Verdict.UNDECIDED:
        return budget
    return budget.model_copy(update={"confirmation": budget.confirmation.beyond(len(earlier.pairs))})


def _stands(confirmation: Confirmation, study: Study) -> bool:
    """Whether it is complete, decided, and no trial was recorded since."""
    is_done = not confirmation.cut_short and confirmation.verdict is not Verdict.UNDECIDED
    return is_done and confirmation.num_trials == study.num_recorded()
