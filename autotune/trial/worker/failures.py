"""Exceptions of the child as a `Failure`: reason, stage and message."""

from __future__ import annotations

import errno

import numpy as np

from autotune.backends.protocol import Backend
from autotune.errors import AutotuneError, InvalidConfigError, quoted
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.trial.processes import lacks_process_resources
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import WrongResultError

_REASONS: dict[type[BaseException], Reason] = {
    WrongResultError: Reason.WRONG_RESULT,
    InvalidConfigError: Reason.INVALID,
    AutotuneError: Reason.HARNESS,
}
"""The first match wins, so subclasses come before their bases."""


def failure_of(
    error: BaseException, stage: Stage, request: TrialRequest, backend: Backend | None, evidence: str
) -> Failure:
    """A `Failure` whose reason follows from the exception's type, or else from the stage in which it was raised."""
    return Failure(
        reason=_reason(error, stage, request, backend),
        stage=stage,
        error=_with_hint(error, request, backend),
        evidence=evidence,
        relative_error=_finite(getattr(error, "relative_error", None)),
    )


def _reason(error: BaseException, stage: Stage, request: TrialRequest, backend: Backend | None) -> Reason:
    by_type = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), None)
    if by_type is not None:
        return by_type
    if stage in (Stage.START, Stage.BUILD) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return Reason.HARNESS
    if lacks_process_resources(error):
        return Reason.HARNESS
    by_backend = backend.classify(error) if backend is not None else None
    if by_backend is not None:
        return by_backend
    if isinstance(error, MemoryError):
        return Reason.OUT_OF_MEMORY
    return Reason.COMPILE_ERROR if stage is Stage.COMPILE and not request.untuned else Reason.RUN_ERROR


def _with_hint(error: BaseException, request: TrialRequest, backend: Backend | None) -> str:
    """Sentences of this package's own say what to do, and where a config fails, there is nothing to do."""
    if backend is None or isinstance(error, AutotuneError) or not request.untuned:
        return message_of(error)
    hint = backend.hint(error, request.workload.task)
    return message_of(error) + (f" ({hint})" if hint else "")


def message_of(error: BaseException) -> str:
    """What is told of an exception in a line or a few."""
    if isinstance(error, AutotuneError):
        return f"{error} ({error.tip})" if error.tip else str(error)
    return quoted(error, max_lines=4, max_chars=600)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
