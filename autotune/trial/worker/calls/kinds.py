"""Which `Calls` a workload has."""

from __future__ import annotations

from autotune.backends.protocol import Backend
from autotune.trial.worker.calls.calls import Calls
from autotune.trial.worker.calls.continuations import Continuations
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.trial.worker.calls.steps import Steps
from autotune.trial.worker.calls.stream import Stream
from autotune.trial.worker.subject import Subject
from autotune.workload.workload import Workload


def calls_for(workload: Workload, subject: Subject, backend: Backend) -> Calls:
    """The calls of a trial of the workload. Its subject has not been changed yet."""
    if workload.task == "train":
        return Steps(workload, subject, backend)
    if workload.task == "generate":
        return Continuations(workload, subject, backend)
    return (OneShape if subject.stream is None else Stream)(workload, subject, backend)
