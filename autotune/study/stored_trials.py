"""What Optuna stores of a trial, read as a `TrialRecord`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.errors import StoreError
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason
from autotune.study.records import TrialRecord
from autotune.trial.folder import parse_outcome

RESULT = "result"
"""Trial attribute: the outcome."""


def failed_through_harness(trial: FrozenTrial) -> bool:
    """Whether it ended in a failure that says nothing about its config; running out of time is not a failure."""
    return trial.state is TrialState.FAIL and RESULT in trial.user_attrs and not _was_cut_off(trial)


def _was_cut_off(trial: FrozenTrial) -> bool:
    outcome = _parse(trial.user_attrs[RESULT], trial.number)
    return isinstance(outcome, Failure) and outcome.reason is Reason.OUT_OF_TIME


def record_of(trial: FrozenTrial, constraints: Sequence[Constraint]) -> TrialRecord:
    """The record of a trial, whatever its state. Raises StoreError for an outcome that cannot be read."""
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
        running=trial.state is TrialState.RUNNING,
    )


def _parse(result: dict[str, Any], number: int) -> Outcome:
    try:
        return parse_outcome(result["outcome"])
    except (ValueError, KeyError) as error:
        raise StoreError(
            f"trial {number} was recorded in a form that this version does not read: {str(error).splitlines()[0]}",
            tip="read the study with the version of autotune that its manifest.json names, or start another",
        ) from None
