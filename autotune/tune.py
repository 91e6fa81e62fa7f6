"""The main job: the untuned model, the framework's default, the search, and the confirmation of the winner.

Nothing here prints: what happens is told through one callback, as events, and the command line shows them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PositiveInt

from autotune.config import Config
from autotune.errors import HarnessError, NoUsableTrialError
from autotune.measurement import Failure, Measurement, Outcome, Reason, Record, Stage
from autotune.record import Confirmation, TrialRecord
from autotune.runner import Runner
from autotune.statistics import Verdict, speedup_over_pairs, verdict_of
from autotune.study import Asked, Study
from autotune.timing import SamplingPlan
from autotune.trial import Limits, TrialFolder, TrialRequest

EQUALLY_FAST = 0.02
"""Configs within this share of the best are taken for equals in the search; the simplest of them is confirmed."""
OUT_OF_REACH = 0.10
"""A best config this much slower than the untuned model in the search need not be compared with it again."""
MAX_CANDIDATES = 3
"""Candidates that fail in the confirmation before none is tried any more."""
UNTUNED_ATTEMPTS = 4
"""MindSpore's PyNative dies by itself in its first operator now and then (8 of 52 processes of one small model on CPU,
2.10); that must not cost a study. A candidate that dies is given no second chance: a job would have none."""
HARNESS_FAILURES_IN_A_ROW = 2
"""So many mean that the machine is at fault; going on would only repeat them."""


class Budget(Record):
    """How much a run of the loop may spend. Limits and counts are no part of the question: they may change."""

    num_trials: PositiveInt = 12
    """Trials of the whole study, earlier runs included, that say something about a config."""
    num_pairs: Annotated[int, Field(ge=2)] = 4
    """Fresh process pairs behind the verdict; even, so that either order of starting comes equally often."""
    limits: Limits = Limits()
    sampling: SamplingPlan = SamplingPlan()


@dataclass(frozen=True)
class SearchStarted:
    """The study is open: trials recorded so far, trials wanted, configs there are (None: uncountably many)."""

    num_done: int
    num_trials: int
    num_configs: int | None
    given_back: list[int]


@dataclass(frozen=True)
class ModelChecked:
    """The study goes on: the untuned model is about to be compared with the recorded reference."""


@dataclass(frozen=True)
class TrialStarted:
    """A child is about to run this config."""

    number: int
    config: Config


@dataclass(frozen=True)
class StageEntered:
    """What the child does now."""

    stage: Stage


@dataclass(frozen=True)
class TrialEnded:
    """A trial has been recorded."""

    record: TrialRecord


@dataclass(frozen=True)
class ConfirmationStarted:
    """The candidate is about to be compared with the untuned model in fresh processes."""

    candidate: TrialRecord
    num_pairs: int


@dataclass(frozen=True)
class PairMeasured:
    """One pair of fresh processes, in seconds a call."""

    untuned_s: float
    candidate_s: float


Event = SearchStarted | ModelChecked | TrialStarted | StageEntered | TrialEnded | ConfirmationStarted | PairMeasured
Notify = Callable[[Event], None]


class UnconfirmedError(Exception):
    """The candidate did not repeat its success in a fresh process."""


@dataclass(frozen=True)
class Tuner:
    """The loop over one study: `run` searches up to the budget, confirms the winner and records the verdict."""

    study: Study
    budget: Budget
    runner: Runner
    notify: Notify = lambda _: None

    def run(self) -> Confirmation:
        """Go on where an earlier run stopped, to the verdict.

        Raises NoUsableTrialError or HarnessError when there is nothing to decide on; what was recorded stays.
        """
        study = self.study
        with study.writing() as given_back:
            study.remember_budget(self.budget.model_dump(mode="json"))
            self.notify(SearchStarted(study.num_recorded(), self.budget.num_trials, study.num_configs(), given_back))
            self._search()
            earlier = study.confirmation
            if earlier is not None and earlier.num_trials == study.num_recorded():
                return earlier
            confirmation = self._confirm()
            study.confirm(confirmation)
            return confirmation

    def _search(self) -> None:
        """Run trials until the study has as many as wanted or no untried config is left."""
        harness_failures = 0
        if self.study.reference.exists() and self.study.num_recorded() < self.budget.num_trials:
            self._require_same_model()
        while self.study.num_recorded() < self.budget.num_trials:
            _require_baseline(self.study)
            asked = self.study.ask(longest_s=self.budget.limits.total)
            if asked is None:
                break
            outcome = self._run_asked(asked)
            self.notify(TrialEnded(self.study.record(asked.number)))
            harness_failures = harness_failures + 1 if _is_harness(outcome) else 0
            if isinstance(outcome, Failure) and harness_failures >= HARNESS_FAILURES_IN_A_ROW:
                raise HarnessError(
                    f"trial {asked.number} could not be run: {outcome.error}",
                    tip=f"the whole story: {outcome.evidence}",
                )
        _require_baseline(self.study)

    def _require_same_model(self) -> None:
        """A model whose imports, weights or machine changed computes something else: no config must be blamed."""
        folder = TrialFolder((self.study.folder / "again" / "untuned").resolve())
        request = trial_request(self.study, 0, self.study.manifest.space.untuned(), folder, self.budget)
        self.notify(ModelChecked())
        outcome = self._attempt(folder, request, fresh=False)
        if isinstance(outcome, Failure):
            raise HarnessError(
                f"the untuned model does not give what it gave when the study began: {outcome.error}",
                tip="undo what changed (its imports, weights, the machine), or start another study with --study NAME",
            )

    def _run_asked(self, asked: Asked) -> Outcome:
        """Run and record one trial. If it is interrupted, nothing of it is left running in the study."""
        self.notify(TrialStarted(asked.number, asked.config))
        folder = self.study.trial_folder(asked.number)
        request = trial_request(self.study, asked.number, asked.config, folder, self.budget)
        try:
            outcome = self._attempt(folder, request, fresh=False)
        except BaseException:
            self.study.give_back(asked)
            raise
        self.study.tell(asked, outcome)
        return outcome

    def _confirm(self) -> Confirmation:
        """Compare the best config with the untuned model in pairs of fresh processes, and give the verdict."""
        study, num_trials = self.study, self.study.num_recorded()
        feasible = [each for each in study.records() if each.state == "measured"]
        if not feasible:
            return Confirmation(verdict=Verdict.INFEASIBLE, num_trials=num_trials, note=_why_infeasible(study))
        untuned = study.untuned_record()
        assert untuned is not None, "the search does not end without it"
        candidates = ranked(study, feasible)
        if not candidates or _value(study, candidates[0]) > (1 + OUT_OF_REACH) * _value(study, untuned):
            note = f"no other config came within {OUT_OF_REACH:.0%} of the untuned model"
            return _without_winner(untuned, num_trials, note if candidates else "no other config gave a measurement")
        notes: list[str] = []
        for candidate in candidates[:MAX_CANDIDATES]:
            self.notify(ConfirmationStarted(candidate, self.budget.num_pairs))
            try:
                pairs, warm_s = self._measure_pairs(untuned, candidate)
            except UnconfirmedError as error:
                notes.append(f"trial {candidate.number} failed in a fresh process: {error}")
                continue
            return _judge(untuned, candidate, pairs, warm_s=warm_s, num_trials=num_trials, notes=notes)
        return _without_winner(untuned, num_trials, "; ".join(notes))

    def _measure_pairs(
        self, untuned: TrialRecord, candidate: TrialRecord
    ) -> tuple[list[tuple[float, float]], list[float]]:
        """Pairs of fresh processes, one after the other, the order swapped from pair to pair; and warm compile times.

        The caches of earlier pairs stand, so from the second pair on the first call shows the warm compile time.
        """
        pairs: list[tuple[float, float]] = []
        warm_compiles_s: list[float] = []
        value = self.study.manifest.objective.value
        try:
            for number in range(self.budget.num_pairs):
                order = [untuned, candidate] if number % 2 == 0 else [candidate, untuned]
                measured = {each.number: self._run_fresh(each, number) for each in order}
                pairs.append((value(measured[untuned.number]), value(measured[candidate.number])))
                if number > 0:
                    warm_compiles_s.append(measured[candidate.number].compile_s)
                self.notify(PairMeasured(*pairs[-1]))
        finally:
            shutil.rmtree(self.study.folder / "confirm" / "cache", ignore_errors=True)
        return pairs, warm_compiles_s

    def _run_fresh(self, record: TrialRecord, pair: int) -> Measurement:
        home = self.study.folder / "confirm"
        folder = TrialFolder(home / f"pair-{pair + 1}-trial-{record.number:04d}")
        cache = home / "cache" / record.config.fingerprint
        request = trial_request(self.study, record.number, record.config, folder, self.budget).model_copy(
            update={"cache": str(cache.resolve()), "cold": False}
        )
        outcome = self._attempt(folder, request, fresh=True)
        if isinstance(outcome, Measurement):
            return outcome
        if outcome.blames_config and not request.untuned:
            raise UnconfirmedError(f"{outcome.reason}: {outcome.error}")
        raise HarnessError(
            f"the confirmation could not be run: {outcome.error}", tip=f"the whole story: {outcome.evidence}"
        )

    def _attempt(self, folder: TrialFolder, request: TrialRequest, *, fresh: bool) -> Outcome:
        """Run once; an untuned model that crashes gets further processes."""
        outcome = self.runner.run(folder, request, fresh=fresh, on_stage=self._tell_stage)
        for _ in range(UNTUNED_ATTEMPTS - 1):
            if isinstance(outcome, Measurement) or outcome.reason is not Reason.CRASH or not request.untuned:
                break
            outcome = self.runner.run(folder, request, fresh=fresh, on_stage=self._tell_stage)
        return outcome

    def _tell_stage(self, stage: Stage) -> None:
        self.notify(StageEntered(stage))


def _without_winner(untuned: TrialRecord, num_trials: int, note: str) -> Confirmation:
    """Keep the untuned model, if it may be kept: a constraint that it breaks rules it out like any other config."""
    if not untuned.violations:
        return Confirmation(verdict=Verdict.KEEP_UNTUNED, num_trials=num_trials, note=note)
    broken = ", ".join(untuned.violations)
    note = f"the untuned model breaks {broken}; {note}"
    return Confirmation(verdict=Verdict.INFEASIBLE, num_trials=num_trials, note=note)


def _judge(
    untuned: TrialRecord,
    candidate: TrialRecord,
    pairs: list[tuple[float, float]],
    *,
    warm_s: list[float],
    num_trials: int,
    notes: list[str],
) -> Confirmation:
    speedup = speedup_over_pairs(pairs)
    verdict = verdict_of(speedup)
    if verdict is not Verdict.FASTER and untuned.violations:
        verdict = Verdict.INFEASIBLE
        broken = ", ".join(untuned.violations)
        notes = [*notes, f"the untuned model breaks {broken}; trial {candidate.number} keeps all, and is not faster"]
    return Confirmation(
        verdict=verdict,
        candidate=candidate.number,
        pairs=tuple(pairs),
        speedup=speedup,
        compile_warm_s=min(warm_s, default=None),
        num_trials=num_trials,
        note="; ".join(notes) or None,
    )


def trial_request(study: Study, number: int, config: Config, folder: TrialFolder, budget: Budget) -> TrialRequest:
    """The request of a trial with empty caches of its own."""
    manifest = study.manifest
    return TrialRequest(
        number=number,
        workload=manifest.workload,
        config=config,
        untuned=config == manifest.space.untuned(),
        tolerance=manifest.tolerance,
        reference_precision=manifest.reference_precision,
        reference=str(study.reference.resolve()),
        cache=str((folder.path / "cache").resolve()),
        cold=True,
        sampling=budget.sampling,
        limits=budget.limits,
        variables=manifest.variables,
    )


def ranked(study: Study, feasible: list[TrialRecord]) -> list[TrialRecord]:
    """The compiled configs, fastest first; those as fast as the best are ordered by simplicity instead.

    Simpler means fewer knobs away from the framework's default, then cheaper to compile.
    """
    space = study.manifest.space
    fastest = sorted((r for r in feasible if r.config != space.untuned()), key=lambda each: _value(study, each))
    if not fastest:
        return []
    bound = (1 + EQUALLY_FAST) * _value(study, fastest[0])
    equals = [each for each in fastest if _value(study, each) <= bound]
    equals.sort(key=lambda each: (space.num_changes(each.config), each.measurement.compile_s))
    return equals + fastest[len(equals) :]


def _require_baseline(study: Study) -> None:
    """Without the untuned model there is nothing to compare with: stop at once, with the child's own error."""
    untuned = study.untuned_record()
    if untuned is None or not isinstance(untuned.outcome, Failure):
        return
    failure = untuned.outcome
    kind = NoUsableTrialError if failure.blames_config else HarnessError
    raise kind(
        f"the untuned model failed ({failure.reason} at {failure.stage}): {failure.error}",
        tip=f"mend the model, then run the same command again; the whole story: {failure.evidence}",
    )


def _why_infeasible(study: Study) -> str:
    """The closest miss among the measured trials, or the failures counted by reason."""
    missed = [each for each in study.records() if each.state == "infeasible"]
    if missed:
        closest = min(missed, key=lambda each: (len(each.violations), sum(each.violations.values())))
        terms = ", ".join(f"{name} (missed by {amount:.4g})" for name, amount in closest.violations.items())
        return f"closest: trial {closest.number}, {terms}"
    counted = failures_by_reason(study.records())
    return ", ".join(f"{count} {reason}" for reason, count in counted.items())


def failures_by_reason(records: list[TrialRecord]) -> Counter[str]:
    """How many trials failed for each reason."""
    return Counter(each.outcome.reason.value for each in records if isinstance(each.outcome, Failure))


def _is_harness(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and not outcome.blames_config


def _value(study: Study, record: TrialRecord) -> float:
    return study.manifest.objective.value(record.measurement)
