"""What the process of a trial, or of a probe, makes of the author's model, one module a kind of work.

A module here needs no entry anywhere: its `SubjectOf` is found by being here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.backends.capabilities import require
from autotune.backends.protocol import Backend
from autotune.errors import InputError, marked
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import num_compared
from autotune.trial.worker.built_ahead import take_over
from autotune.trial.worker.subject import Subject, SubjectOf
from autotune.workload.build import Built, build
from autotune.workload.kinds import Rows, kind_of
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    from autotune.space.declared import Declaration

LARGE_BYTES = 2**28
"""Weights of which trials share one build. Below, a process for it takes more than it spares."""
_ROWS: Rows[SubjectOf] = Rows(__name__, __path__, SubjectOf)


def build_subject(workload: Workload, backend: Backend) -> Subject:
    """Build the workload's model and inputs and put them on the device. Raises InputError or AutotuneError."""
    subject = _subject_of(workload, backend).subject()
    entry = type(subject.work).entry
    if entry is None:
        return subject
    return replace(subject, signature=subject.signature.model_copy(update={"work": entry}))


def subject_of(request: TrialRequest, backend: Backend) -> Subject:
    """The subject of a trial, with the inputs for which the reference holds outputs: without the derived one if the
    untuned model did not take it. Raises as `build_subject` does."""
    subject = build_subject(request.workload, backend)
    num_inputs = num_compared(Path(request.reference)) if request.judged else None
    if num_inputs is None:
        return subject
    paired = subject.without_derived() if num_inputs == len(subject.inputs) - 1 else subject
    return replace(paired, derived_may_fail=False)


def declared_by(workload: Workload, backend: Backend) -> Declaration:
    """Build the workload's model, and read what is declared of it. Raises as `build_subject` does."""
    subject = _subject_of(workload, backend)
    declared = subject.declared()  # A lazy module has its weights by then.
    writes_to_all = kind_of(workload).trains and workload.device == "cpu"  # A device has its own pages.
    is_large = subject.weight_bytes() >= LARGE_BYTES
    return declared.model_copy(update={"built_once": is_large and not writes_to_all})


def _subject_of(workload: Workload, backend: Backend) -> SubjectOf:
    built = take_over(workload) or built_for(workload, backend)
    model = backend.as_model(built.model)
    problem = backend.check_model(model)
    if problem is not None:
        raise InputError(f"{workload.model} returned as the model {problem}")
    return _ROWS.of(type(built.work))(workload, replace(built, model=model), built.model, backend)


def built_for(workload: Workload, backend: Backend) -> Built:
    """A workload's model, with the real calls of its file if it has one. Raises InputError for a file that cannot be
    used."""
    if workload.inputs is None:
        return build(workload)
    calls = require(backend.calls_file, marked("inputs")).read(Path(workload.inputs))
    return build(workload, calls)
