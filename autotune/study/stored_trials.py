"""What Optuna stores of a trial, read as a `TrialRecord`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.errors import StoreError
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.study.lease import Lease
from autotune.study.manifest import Manifest
from autotune.study.records import TrialRecord
from autotune.study.sampler.sampler import TrialFacts
from autotune.trial.folder import parse_outcome

RESULT = "result"
"""Trial attribute: the outcome."""
LEASE = "lease"
"""Trial attribute: who runs it."""


def failed_through_harness(trial: FrozenTrial) -> bool:
    """Whether it ended in a failure that says nothing about its config; running out of time is not a failure."""
    return trial.state is TrialState.FAIL and RESULT in trial.user_attrs and not _was_cut_off(trial)


def _was_cut_off(trial: FrozenTrial) -> bool:
    outcome = _parse(trial.user_attrs[RESULT], trial.number)
    return isinstance(outcome, Failure) and outcome.reason is Reason.OUT_OF_TIME


class StoredTrials(TrialFacts):
    """The trials of a study as records. A finished one never changes and is parsed once."""

    def __init__(self, manifest: Manifest) -> None:
        self._constraints = manifest.constraints
        self._is_timed = any(each.is_timed for each in manifest.objectives)
        self._finished: dict[int, TrialRecord] = {}

    def record(self, trial: FrozenTrial) -> TrialRecord:
        """Of a trial in any state. Raises StoreError for an outcome that cannot be read."""
        if trial.number not in self._finished:
            record = _record_of(trial, self._constraints)
            if not trial.state.is_finished():
                return record
            self._finished[trial.number] = record
        return self._finished[trial.number]

    def counts(self, trial: FrozenTrial) -> bool:
        """See `TrialRecord.counts`. The state of a finished trial suffices; its outcome is long to parse."""
        if trial.state.is_finished():
            return trial.state is TrialState.COMPLETE and RESULT in trial.user_attrs
        return self.record(trial).counts

    def is_distrusted(self, trial: FrozenTrial) -> bool:
        """Something disturbed its timing, and a time is minimised."""
        return self._is_timed and self.record(trial).disturbed is not None

    def seconds(self, trial: FrozenTrial) -> float | None:
        return self.record(trial).child_s


def _record_of(trial: FrozenTrial, constraints: Sequence[Constraint]) -> TrialRecord:
    result = trial.user_attrs.get(RESULT)
    outcome = None if result is None else _parse(result, trial.number)
    misses = [each.miss(outcome) for each in constraints] if isinstance(outcome, Measurement) else []
    return TrialRecord(
        number=trial.number,
        config=Config(trial.params),
        outcome=outcome,
        violations={miss.constraint.text: miss for miss in misses if miss is not None},
        started=trial.datetime_start,
        ended=trial.datetime_complete,
        running=trial.state is TrialState.RUNNING and not _is_abandoned(trial),
    )


def _is_abandoned(trial: FrozenTrial) -> bool:
    """The process that ran it is known to be dead. The next run of the study will record that."""
    lease = trial.user_attrs.get(LEASE)
    return lease is not None and Lease.model_validate(lease).is_dead()


def _parse(result: dict[str, Any], number: int) -> Outcome:
    try:
        return parse_outcome(result["outcome"])
    except (ValueError, KeyError) as error:
        raise StoreError(
            f"trial {number} was recorded in a form that this version does not read: {str(error).splitlines()[0]}",
            tip="read the study with the version of autotune that its manifest.json names, or start another",
        ) from None
