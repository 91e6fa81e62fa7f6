"""What a run looks at between its trials: does the untuned model work, is it the same machine, how noisy is it, does it
drift, and do trials fail for one cause that is none of the configs'."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from autotune import environment
from autotune.config import Config
from autotune.errors import InputError, NoUsableTrialError, SetupError, marked
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.measure.statistics import spread_of_pairs
from autotune.own_folders import absolute, remove
from autotune.study.own_files import clear_runs
from autotune.study.records import NoiseFloor, TrialRecord
from autotune.study.study import Study
from autotune.trial.folder import TrialFolder
from autotune.tuning.attempts import Attempts, TrialQueue
from autotune.tuning.blocks import blocked_run
from autotune.tuning.estimate import setting_up_s
from autotune.tuning.events import ConfigProbed, ModelChecked, NoiseFloorMeasured, NoiseFloorStarted
from autotune.tuning.failure_rules import signature_of
from autotune.tuning.field import Field
from autotune.tuning.session import Session, setup_error, trial_request
from autotune.tuning.time_budget import TimeBudget


def require_same_machine(study: Study) -> None:
    """Raises InputError if earlier trials ran on another machine or under other settings of it.

    Where workers measure, they are compared with the worker of the untuned trial (`Members.primary`).
    """
    untuned = study.untuned_record()
    if untuned is None or not isinstance(untuned.outcome, Measurement):
        return
    then = untuned.outcome.environment
    differences = then.differences(environment.describe(device=then.device, variables=study.manifest.variables))
    if differences:
        raise InputError(
            f"study {study.name!r} was measured on another machine or under other settings of it: "
            f"{'; '.join(differences)}",
            tip=f"tune here under another {marked('study', 'NAME')}, or restore what differs and run the same command "
            "again",
        )


def require_untuned_works(study: Study, lost: Failure | None = None) -> None:
    """Raises the error of the untuned model if it failed: there is nothing to compare with. Raises SetupError for an
    objective that cannot be measured here, and where the untuned model was `lost` since its first block showed that its
    processes do not agree."""
    if lost is not None and lost.reason is Reason.WRONG_RESULT and not study.blocks:
        raise _failed(lost)
    untuned = study.untuned_record()
    if untuned is None:
        return
    if isinstance(untuned.outcome, Measurement):
        objective = study.manifest.objective
        if not math.isfinite(objective.value(untuned.outcome)):
            raise SetupError(
                f"{marked('objective', objective.name)}: it cannot be measured here",
                tip=f"choose another objective under another {marked('study', 'NAME')}",
            )
        return
    failure = untuned.outcome
    assert isinstance(failure, Failure)
    kind = NoUsableTrialError if failure.blames_config else SetupError
    raise kind(
        f"the untuned model failed ({failure.reason} at {failure.stage}): {failure.error}",
        tip=f"{_remedy(failure.reason)}, then run the same command again; full log: {failure.evidence}",
    )


def _remedy(reason: Reason) -> str:
    match reason:
        case Reason.OUT_OF_MEMORY:
            return "give it smaller inputs or a machine with more memory"
        case Reason.TIMEOUT:
            return f"give it more time with {marked('compile_timeout')} or {marked('trial_timeout')}"
        case Reason.CRASH:
            return "find the cause of the crash in the log"
    return "mend that"


def require_same_model(session: Session, attempts: Attempts) -> None:
    """Raises SetupError if the untuned model computes something else than when the study began.

    Its imports, weights or the machine may have changed; no config must be blamed for that. Its latency is one more
    drift check.
    """
    session.notify(ModelChecked())
    outcome = attempts.run(*session.untuned_again("untuned"))
    if isinstance(outcome, Failure) and outcome.reason is not Reason.OUT_OF_TIME:
        raise _changed(outcome)
    untuned = session.study.untuned_record()
    if isinstance(outcome, Measurement) and untuned is not None and isinstance(untuned.outcome, Measurement):
        session.note_drift(outcome.latency.p50)


def measure_noise_floor(session: Session) -> NoiseFloor | None:
    """The untuned model in two live processes, in two blocks, the starting order swapped; None if the time was up.

    What the two differ by is what a single pair of processes of any config shows by chance. Their outputs are compared
    with the reference as well: what differs here is the model's own nondeterminism. Raises SetupError.
    """
    study = session.study
    untuned = study.manifest.space.untuned()
    folder = study.folder / "noise_floor"
    entries = [("untuned-1", 0, untuned), ("untuned-2", 0, untuned)]
    plan = session.budget.noise_floor
    clear_runs(folder)
    blocked = blocked_run(session, folder, entries, plan, on_begin=lambda: session.notify(NoiseFloorStarted()))
    try:
        comparison = blocked.run(is_clear=lambda _: True)
    finally:
        remove(folder / "cache")
    wrong = [failure for _, failure in blocked.mishaps if failure.reason is Reason.WRONG_RESULT]
    if failures := [*wrong, *blocked.failures.values()]:  # A process that is right does not undo one that was wrong.
        raise _failed(failures[0])
    if comparison is None:
        return None
    pairs = tuple((one, other) for one, other in comparison.blocks.values if one is not None and other is not None)
    processes = [process for block in blocked.blocks for process in block.values()]
    errors = [process.relative_error for process in processes]
    floor = NoiseFloor(
        pairs=pairs,
        spread=spread_of_pairs(pairs),
        relative_error=max((error for error in errors if error is not None), default=0.0),
        start_s=max(map(setting_up_s, processes)),
    )
    session.notify(NoiseFloorMeasured(floor))
    return floor


def measure_floor_between(
    session: Session, time: TimeBudget, queue: TrialQueue, field: Field, waits_for_proof: Callable[[], bool]
) -> None:
    """The noise floor on a device where trials compile side by side: once nothing is under way behind the first config,
    unless that is a large gain which waits for its proof."""
    study = session.study
    is_open = session.in_batches and study.noise_floor is None and len(study.ended()) > 1
    if not is_open or len(queue) or field.block is not None or not time.has_time_for_noise_floor() or waits_for_proof():
        return
    field.ahead.drop()
    study.noise_floor = measure_noise_floor(session)


def wrong_again(failure: Failure, *, is_later_run: bool) -> SetupError:
    """The error of an untuned model that fails in another process: one of this run, or of a later one."""
    return _changed(failure) if is_later_run else _failed(failure)


def _changed(failure: Failure) -> SetupError:
    return SetupError(
        f"the untuned model does not give what it gave when the study began: {failure.error}",
        tip="undo what changed (its imports, weights, the machine), or start another study with "
        f"{marked('study', 'NAME')}",
    )


def _failed(failure: Failure) -> SetupError:
    if failure.reason is not Reason.WRONG_RESULT:
        return setup_error("the untuned model against itself", failure)
    return SetupError(
        f"the untuned model gives another output in another process, nothing can be compared with it: {failure.error}",
        tip=f"fix the seeds of everything random in it, or raise {marked('tolerance')} if that much is its nature",
    )


ERRORS_IN_A_ROW = 3
"""After this many trials with the same error a config that worked before is run again."""
ERRORS_WITHOUT_SUCCESS = 5
"""After this many the environment is blamed if no compiled config ever worked."""
SETUP_FAILURES_IN_A_ROW = 2
"""After this many the machine is at fault, and the search ends."""


class CircuitBreaker:
    """Stops a search in which one error ends trial after trial, whatever the config."""

    def __init__(self, session: Session, attempts: Attempts) -> None:
        self._session = session
        self._attempts = attempts
        self._excused: set[str] = set()
        """Errors that the configs cause, as a config that still works has shown."""

    def check(self, records: Sequence[TrialRecord], last: TrialRecord) -> None:
        """Raises SetupError if trial after trial could not be run, or if the last ones end in one error and a config
        that worked before does so too."""
        if isinstance(last.outcome, Failure) and self._attempts.setup_failures >= SETUP_FAILURES_IN_A_ROW:
            raise SetupError(
                f"trial {last.number} could not be run: {last.outcome.error}",
                tip=f"full log: {last.outcome.evidence}",
            )
        streak = same_error_at_the_end(records)
        if not isinstance(last.outcome, Failure) or last not in streak or len(streak) < ERRORS_IN_A_ROW:
            return
        if last.outcome.reason in (Reason.SLOW_COMPILE, Reason.OUT_OF_MEMORY):
            return  # Others compiled faster, which is what it was measured by; or the model fits, and no config does.
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
            raise SetupError(
                f"{last.outcome.error}\n{len(streak)} trials in a row ended in this error, whatever the config: "
                "that is the environment, not the configs",
                tip=f"fix it, then tune under another {marked('study', 'NAME')}, since these trials blame their "
                "configs; "
                f"full log: {last.outcome.evidence}",
            )

    def _fails_now(self, signature: str, worked: TrialRecord) -> bool:
        """Whether a config that worked before fails in the same way now."""
        session = self._session
        session.notify(ConfigProbed(worked))
        folder = TrialFolder(absolute(session.study.folder / "again" / "probe"))
        outcome = self._attempts.once(
            folder, trial_request(session.study, worked.number, worked.config, folder, session.budget)
        )
        return isinstance(outcome, Failure) and signature_of(outcome) == signature


def same_error_at_the_end(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials at the end of `records` that failed in the same way; empty if the last one did not fail."""
    signatures = {signature_of(record.outcome) for record in records[-1:] if isinstance(record.outcome, Failure)}
    streak = itertools.takewhile(
        lambda record: isinstance(record.outcome, Failure) and signature_of(record.outcome) in signatures,
        reversed(records),
    )
    return list(streak)[::-1]


def last_that_worked(records: Sequence[TrialRecord], untuned: Config) -> TrialRecord | None:
    """The last measured trial of a compiled config: the untuned model proves no compiler."""
    compiled = (record for record in reversed(records) if record.config != untuned)
    return next((record for record in compiled if isinstance(record.outcome, Measurement)), None)
