"""The circuit breaker: the same error over and over, whatever the config, is the environment's and not the configs'."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement
from autotune.study.records import TrialRecord

ERRORS_IN_A_ROW = 3
"""So many trials with one and the same error raise the suspicion; a config that worked before is then run again."""
ERRORS_WITHOUT_SUCCESS = 5
"""So many are proof where no compiled config has ever worked, so that there is none to be run again."""

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|(?:/[\w.+-]+)+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""Addresses, paths and numbers: what differs between two reports of one error."""


def signature_of(failure: Failure) -> str:
    """The same for two failures that tell the same story: reason, stage, and the error's text without its numbers."""
    return f"{failure.reason}|{failure.stage}|{_CHANGING.sub('#', failure.error)}"


def same_error_at_the_end(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials at the end of `records` that failed in the very same way; empty if the last one did not fail."""
    streak: list[TrialRecord] = []
    for record in reversed(records):
        if not isinstance(record.outcome, Failure):
            break
        if streak and signature_of(record.outcome) != signature_of(_failure(streak[0])):
            break
        streak.append(record)
    return streak[::-1]


def last_that_worked(records: Sequence[TrialRecord], untuned: Config) -> TrialRecord | None:
    """The last measured trial of a compiled config: the untuned model proves no compiler."""
    compiled = (each for each in reversed(records) if each.config != untuned)
    return next((each for each in compiled if isinstance(each.outcome, Measurement)), None)


def _failure(record: TrialRecord) -> Failure:
    assert isinstance(record.outcome, Failure)
    return record.outcome
