"""What Optuna stores of a trial: written from an outcome, and read as a `TrialRecord`.

A failure that the config caused is a completed trial with the worst values so far and the constraint `ok` violated, so
that samplers learn to avoid it; one that is not its doing (`setup`) is a trial in state FAIL, and its config may be
tried again (docs/decisions/0003-study-storage.md). Every trial carries the same constraints, each as the share by which
its bound is missed.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterable
from typing import Any

import optuna
import psutil
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError

from autotune import environment
from autotune.config import Config
from autotune.errors import StoreError
from autotune.measure.measurement import Measurement, Outcome
from autotune.schema import MOST_SAID, Record, problem, read
from autotune.study.earlier import OUTCOME, STUDY
from autotune.study.manifest import Manifest
from autotune.study.records import OK, TrialRecord, Tried
from autotune.study.slots import TIP
from autotune.trial.folder import parse_outcome

RESULT = "result"
"""Trial attribute: the outcome."""
LEASE = "lease"
"""Trial attribute: who runs it."""
UNFINISHED = (TrialState.WAITING, TrialState.RUNNING)
TAKEN = (TrialState.COMPLETE, *UNFINISHED)
"""States of trials whose config is not tried again; one that was given up leaves its config free."""


class Lease(Record):
    """Who runs a trial, so that the next start can tell a dead run from a living one without a heartbeat: a process,
    identified beyond its number, and the moment after which it cannot be alive."""

    host: str
    boot_id: str
    pid: int
    pid_started: float
    deadline: float
    """Seconds since the epoch after which no run of this trial can be alive."""

    @classmethod
    def of_this_process(cls, longest_s: float) -> Lease:
        return cls(
            host=environment.hostname(),
            boot_id=environment.boot_id(),
            pid=os.getpid(),
            pid_started=psutil.Process().create_time(),
            deadline=time.time() + longest_s,
        )

    def is_dead(self, *, hosts_locked_out: bool = False) -> bool:
        """`hosts_locked_out`: the caller has a lock that no process of another machine can hold by now."""
        if self.host != environment.hostname():
            return hosts_locked_out or time.time() > self.deadline
        if self.boot_id != environment.boot_id():
            return True
        try:
            process = psutil.Process(self.pid)
            # A zombie is dead: its parent, a container's first process say, has not asked for its status.
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return is_zombie or abs(process.create_time() - self.pid_started) > 1.0
        except psutil.NoSuchProcess:
            return True


class StoredTrials:
    """The trials of a study. A finished one never changes and is parsed once."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._is_timed = manifest.objective.is_timed
        self._finished: dict[int, TrialRecord] = {}

    def record(self, trial: FrozenTrial) -> TrialRecord:
        """A trial in any state. Raises StoreError for an outcome that cannot be read."""
        if trial.number not in self._finished:
            record = _record_of(trial, self._manifest)
            if not trial.state.is_finished():
                return record
            self._finished[trial.number] = record
        return self._finished[trial.number]

    def counts(self, trial: FrozenTrial) -> bool:
        """See `TrialRecord.counts`. The state of a finished trial suffices; its outcome is long to parse."""
        if trial.state.is_finished():
            return trial.state is TrialState.COMPLETE and RESULT in trial.user_attrs
        return self.record(trial).counts

    def tried(self, trial: FrozenTrial) -> Tried:
        """What there is to be learned from a trial whose state is among `TAKEN`."""
        if trial.state is not TrialState.COMPLETE:
            return Tried(trial.number, Config(trial.params), None, {})
        record = self.record(trial)
        is_distrusted = self._is_timed and record.disturbed is not None
        value = trial.values[0]
        return Tried(trial.number, record.config, value, trial.constraints, is_distrusted, record.child_s)

    def values(self, outcome: Outcome, earlier: Iterable[FrozenTrial]) -> list[float]:
        """One value for each objective, of which an earlier release took several. A failure has the worst values of the
        earlier trials, finite and of the usual size, so that they do not distort a model of the values; so has what
        the framework cannot measure."""
        measured = self._manifest.values(outcome) if isinstance(outcome, Measurement) else None
        if measured is not None and all(map(math.isfinite, measured)):
            return list(measured)
        rows = [trial.values for trial in earlier if trial.state is TrialState.COMPLETE]
        worst = [max(column) for column in zip(*rows, strict=True)] or [1.0] * len(self._manifest.objectives)
        if measured is None:
            return worst
        return [value if math.isfinite(value) else most for value, most in zip(measured, worst, strict=True)]

    def violations(self, outcome: Outcome) -> dict[str, float]:
        """Constraint -> share by which it is missed (0 or less: kept). For a failure only `OK` is known."""
        measured = outcome if isinstance(outcome, Measurement) else None
        violations = {OK: 1.0 if measured is None else -1.0}
        for constraint in self._manifest.constraints:
            violations[constraint.text] = 0.0 if measured is None else constraint.violation(measured)
        return violations


def _record_of(trial: FrozenTrial, manifest: Manifest) -> TrialRecord:
    result = trial.user_attrs.get(RESULT)
    outcome = None if result is None else _parse(result, trial.number, manifest)
    misses = [bound.miss(outcome) for bound in manifest.constraints] if isinstance(outcome, Measurement) else []
    return TrialRecord(
        number=trial.number,
        config=Config(trial.params),
        outcome=outcome,
        violations={miss.constraint.text: miss for miss in misses if miss is not None},
        started=trial.datetime_start,
        ended=trial.datetime_complete,
        running=trial.state in UNFINISHED and not _is_abandoned(trial),
    )


def _is_abandoned(trial: FrozenTrial) -> bool:
    """The process that ran it is known to be dead. The next run of the study will record that."""
    lease = lease_of(trial)
    return lease is not None and lease.is_dead()


def lease_of(trial: FrozenTrial) -> Lease | None:
    """Who runs a trial; None: not known. Raises StoreError where what is stored does not say it."""
    lease = trial.user_attrs.get(LEASE)
    try:
        return None if lease is None else read(Lease.model_validate, lease)
    except ValidationError as error:
        raise StoreError(f"trial {trial.number} does not say who runs it: {problem(error)}", tip=TIP) from None


def _parse(result: Any, number: int, manifest: Manifest) -> Outcome:
    try:
        return parse_outcome(STUDY.current(result, manifest.schema_)[OUTCOME])
    except ValidationError as error:
        wrong = problem(error, manifest.written)
    except (ValueError, KeyError, TypeError) as error:
        wrong = f"{type(error).__name__}: {error}"[:MOST_SAID]
    raise StoreError(f"trial {number} cannot be read: {wrong}", tip=TIP)


def create_records(manifest: Manifest, storage: RDBStorage) -> optuna.Study:
    """Optuna's study of a new manifest's name. What is minimised has its name and unit there, for Optuna's dashboard.
    Raises DuplicatedStudyError."""
    directions = [StudyDirection.MINIMIZE] * len(manifest.objectives)
    made = optuna.create_study(storage=storage, study_name=manifest.name, directions=directions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        made.set_metric_names([objective.metric for objective in manifest.objectives])
    return made
