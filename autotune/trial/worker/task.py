"""`TrialTask`: what a trial does with its subject, by task. Everything else of a trial is the same for all of them."""

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
    """Made before the subject is touched; its methods are called in their order here, `require_sound` after timing."""

    gate: Gate
    """What is compared; asked after `observe`."""

    def recording(self) -> AbstractContextManager[Any]:
        """Where all calls are made."""

    def compile(self, config: Config, changes: UndoLog) -> Callable[..., Any]:
        """What is called with each of the subject's inputs, and timed."""

    def observe(self, step: Callable[..., Any], first: Any) -> list[list[Any]]:
        """What the gate compares, in arrays. `first` is what the first inputs gave; the other calls are made here."""

    def require_sound(self, step: Callable[..., Any]) -> None:
        """Raises WrongResultError where the timed calls have led astray."""


def task_for(workload: Workload, subject: Subject, backend: Backend) -> TrialTask:
    """The one of the workload's task."""
    kind = Training if workload.task == "train" else Inference
    return kind(workload, subject, backend)
