"""A training trial of several ranks: processes that take every step together, as those of a data-parallel job do.

The trial's own process is rank 0. It starts the others once the model is to be built, measures, reports and is
measured; they do what it does, so that every collective of a step has all of them:

    rank 0                                   the others
    build, wait for the others, meet         build, say so, meet
    compile, first and second call, check    the same calls, in the same order; they compare nothing
    a timed step: tell, step, meet           hear, step, meet
    the last step: tell the end              end

All have the same batch, seeds and weights, so the mean of their gradients is what one process computes, and the
reference of the untuned model holds for every number of ranks. A timed step ends when the slowest rank has ended its
own; telling and meeting are in it, of the untuned model and of each config alike (gloo on one machine: 0.1 to 0.2 ms).

A rank that fails while it builds is seen to end. One that fails later closes its connections, upon which the others
fail within a collective. What it left is the cause, and rank 0 reports that (`Further`).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from autotune.apply.config_parts import ConfigParts
from autotune.backends.capabilities import Team, require
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.command_line import asked
from autotune.errors import SetupError
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import reference_tolerance
from autotune.trial.worker.calls.steps import Steps
from autotune.trial.worker.further import LOOK_S, Further
from autotune.trial.worker.subject import subject_of

ONLY = "rank"
"""Second argument of a worker that is a further rank of a trial, and measures nothing."""
RANK_VARIABLE = "AUTOTUNE_TRIAL_RANK"
_MEETING, _BUILT = "meeting", "built"


@dataclass(frozen=True)
class Others:
    """The further ranks of a trial, seen from rank 0."""

    further: Further
    meeting: Path

    @classmethod
    def start(cls, folder: TrialFolder, request: TrialRequest) -> Others:
        """Start them. They find the caches of rank 0, which all compile into."""
        meeting = folder.path / _MEETING
        meeting.unlink(missing_ok=True)
        for inner in folder.path.glob(f"{ONLY}-*"):
            (inner / _BUILT).unlink(missing_ok=True)
        starts = [partial(_start, rank) for rank in range(1, request.workload.ranks)]
        return cls(Further.start(ONLY, folder, request, starts), meeting)

    def join(self, backend: Backend) -> Team:
        """Meet them, once all have built their model. Raises what one of them raised."""
        folders, processes = self.further.folders, self.further.processes
        while not all((folder.path / _BUILT).exists() for folder in folders):
            if any(process.poll() is not None for process in processes):
                raise self.further.cause() or SetupError("a rank ended before its model was built")
            time.sleep(LOOK_S)
        return _joined(backend, 0, len(folders) + 1, self.meeting)


def _start(rank: int, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, RANK_VARIABLE: str(rank)}, stdout=log, stderr=log)


def serve(request: TrialRequest, folder: TrialFolder, backend: Backend, enter: Callable[[Stage], None]) -> None:
    """Be a further rank: make the calls that rank 0 makes, until it tells the end. Raises what they raise."""
    rank = int(os.environ[RANK_VARIABLE])
    enter(Stage.BUILD)
    backend.prepare(request.workload.device, request.workload.seed)
    subject = subject_of(request, backend)
    calls = Steps(request.workload, subject, backend)
    (folder.path / _BUILT).touch()
    calls.join(_joined(backend, rank, request.workload.ranks, folder.path.parent / _MEETING))
    settings = ConfigParts.of(request.config).settings
    enter(Stage.COMPILE)
    changes = UndoLog()
    for kind in request.without:
        require(backend.capture_despite, f"a graph break of kind {kind.value}")(kind, changes)
    step = calls.compile(request.config, changes)
    first = calls.first(step, settings, backend.clock, backend.clock())
    enter(Stage.CHECK)
    calls.observe(step, first, reference_tolerance=reference_tolerance(request, subject.dtypes))
    enter(Stage.RUN)
    calls.follow(step)


def _joined(backend: Backend, rank: int, num_ranks: int, meeting: Path) -> Team:
    training = require(backend.training, asked("task", "train"))
    return require(training.team, asked("ranks", num_ranks))(rank, num_ranks, meeting)
