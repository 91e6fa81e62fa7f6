"""What a trial calls: one shape, a stream of many shapes, or training steps. See `calls.Calls`.

A module here needs no entry anywhere: its `Calls` is found by being here.
"""

from __future__ import annotations

from autotune.backends.protocol import Backend
from autotune.trial.worker.calls.calls import Calls
from autotune.trial.worker.subject import Subject
from autotune.workload.kinds import Rows
from autotune.workload.workload import Workload

_ROWS: Rows[Calls] = Rows(__name__, __path__, Calls)


def calls_for(workload: Workload, subject: Subject, backend: Backend) -> Calls:
    """The calls of a trial of the workload. Its subject has not been changed yet."""
    return _ROWS.of(type(subject.work))(workload, subject, backend)
