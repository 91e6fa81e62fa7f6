"""The circuit breaker: an error that repeats whatever the config is, comes from the environment."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.command_line import asked
from autotune.config import Config
from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.study.records import TrialRecord
from autotune.trial.folder import TrialFolder
from autotune.tuning.attempts import Attempts
from autotune.tuning.events import ConfigProbed
from autotune.tuning.failure_rules import signature_of
from autotune.tuning.session import Session, trial_request

ERRORS_IN_A_ROW = 3
"""After this many trials with the same error a config that worked before is run again."""
ERRORS_WITHOUT_SUCCESS = 5
"""After this many the environment is blamed if no compiled config ever worked."""
HARNESS_FAILURES_IN_A_ROW = 2
"""After this many the machine is at fault, and the search ends."""


class CircuitBreaker:
    """Stops a search in which one error ends trial after trial, whatever the config."""

    def __init__(self, session: Session, attempts: Attempts) -> None:
        self._session = session
        self._attempts = attempts
        self._excused: set[str] = set()
        """Errors that the configs cause, as a config that still works has shown."""

    def check(self, records: Sequence[TrialRecord], last: TrialRecord) -> None:
        """Raises HarnessError if trial after trial could not be run, or if the last ones end in one error and a config
        that worked before does so too."""
        if isinstance(last.outcome, Failure) and self._attempts.harness_failures >= HARNESS_FAILURES_IN_A_ROW:
            raise HarnessError(
                f"trial {last.number} could not be run: {last.outcome.error}",
                tip=f"full log: {last.outcome.evidence}",
            )
        streak = same_error_at_the_end(records)
        if not isinstance(last.outcome, Failure) or last not in streak or len(streak) < ERRORS_IN_A_ROW:
            return
        if last.outcome.reason is Reason.SLOW_COMPILE:
            return  # Others compiled faster: that is what it was measured by.
        signature = signature_of(last.outcome)
        worked = last_that_worked(records, self._session.study.manifest.space.untuned())
        if worked is None:
            is_environment = len(streak) >= ERRORS_WITHOUT_SUCCESS
        elif signature in self._excused:
            return
        else:
            is_environment = self._fails_now(signature, worked)
            self._excused.add(signature)
        if is_environment:
            raise HarnessError(
                f"{last.outcome.error}\n{len(streak)} trials in a row ended in this error, whatever the config: "
                "that is the environment, not the configs",
                tip=f"fix it, then tune under another {asked('study', 'NAME')}, since these trials blame their "
                "configs; "
                f"full log: {last.outcome.evidence}",
            )

    def _fails_now(self, signature: str, worked: TrialRecord) -> bool:
        """Whether a config that worked before fails in the same way now."""
        session = self._session
        session.notify(ConfigProbed(worked))
        folder = TrialFolder((session.study.folder / "again" / "probe").resolve())
        outcome = self._attempts.once(
            folder, trial_request(session.study, worked.number, worked.config, folder, session.budget)
        )
        return isinstance(outcome, Failure) and signature_of(outcome) == signature


def same_error_at_the_end(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials at the end of `records` that failed in the same way; empty if the last one did not fail."""
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
