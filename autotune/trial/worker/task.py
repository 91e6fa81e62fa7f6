"""`TrialTask`: what a trial does with its subject, by task. Everything else is the same for all tasks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.trial.worker.accuracy_check import Gate
from autotune.trial.worker.inference import Inference
from autotune.trial.worker.subject import Subject
from autotune.trial.worker.training import Training
from autotune.workload.workload import Workload


class TrialTask(Protocol):
    """Created before the subject is changed. Its methods are called in this order, `require_sound` after timing."""

    gate: Gate
    """What is compared; used after `observe`."""

    @property
    def not_varied(self) -> tuple[str, ...]:
        """What the inputs that were seen leave as it is, each as a sentence."""

    def recording(self) -> AbstractContextManager[Any]:
        """The context in which all calls are made."""

    def compile(self, config: Config, changes: UndoLog) -> Callable[..., Any]:
        """The function that is called with each of the subject's inputs, and timed."""

    def observe(self, step: Callable[..., Any], first: Any, *, reference_tolerance: float | None = None) -> Any:
        """What the gate compares. `first` is the output for the first inputs; this makes the other calls.

        With a `reference_tolerance` they are to be the reference, to which others are held with that tolerance.
        """

    def require_sound(self, step: Callable[..., Any]) -> None:
        """Raises WrongResultError if the timed calls have corrupted the model."""

    def completed(self, reference: Any, step: Callable[..., Any], tolerance: float) -> Any:
        """The reference with what rounding may do to it, at the very end: the model's weights are others afterwards.
        None if there is nothing to add."""


def task_for(workload: Workload, subject: Subject, backend: Backend) -> TrialTask:
    """The task of the workload."""
    kind = Training if workload.task == "train" else Inference
    return kind(workload, subject, backend)
