"""The wide reference: outputs of the untuned model in float32 or float64, written before anything is measured.

The worker starts another process for this, and then compares the untuned model with the reference like any config. In
the same process the wide model would leave memory and warm kernels behind: a ViT's peak was then 7 MiB instead of 35,
its first call 14 ms instead of 239 (torch, CPU). The other process builds the model from the study's seed, as every
trial does, so the weights are the same; a deep copy would not work for every model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.apply.config_parts import ConfigParts
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.errors import InputError, SetupError, marked, quoted
from autotune.measure.accuracy import WideType
from autotune.measure.measurement import Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import crash_alike, run_helper
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import read_reference, save, write_reference
from autotune.trial.worker.calls import calls_for
from autotune.trial.worker.calls.calls import Calls, Step
from autotune.trial.worker.subject import Subject, widen_subject
from autotune.trial.worker.subjects import build_subject

ONLY = "reference"
"""Second argument of a worker that writes the reference and measures nothing."""


def is_missing(request: TrialRequest) -> bool:
    """Whether a wide reference must be written before this run."""
    return request.untuned and request.reference_precision != "model" and not Path(request.reference).exists()


def write_in_child(folder: TrialFolder) -> int:
    """Run a worker that writes the reference, or a `Failure` as its outcome; returns its exit status.

    If that worker is killed by a signal, this process ends with the same signal, so that the crash is reported.
    """
    print("the untuned model is run first, for the reference", file=sys.stderr, flush=True)
    status = run_helper(folder, ONLY)
    crash_alike(status)
    return status


def write(request: TrialRequest, backend: Backend, enter: Callable[[Stage], None]) -> None:
    """Build the model, widen it, call it and save its outputs. Raises SetupError if it does not run in that type."""
    assert request.reference_precision != "model"
    dtype = request.reference_precision
    enter(Stage.BUILD)
    backend.prepare(request.workload.device, request.workload.seed)
    subject = build_subject(request.workload, backend)
    tolerance = request.tolerance_for(subject.dtypes)
    _refuse_narrowing(request, subject, dtype)
    enter(Stage.CHECK)
    calls, step, seen = _observed(request, backend, subject, dtype, tolerance)
    with calls.recording():
        write_reference(request, seen, tolerance, calls.gate)
        complete_reference(request, calls, step, tolerance)


def complete_reference(request: TrialRequest, calls: Calls, step: Step, tolerance: float | None) -> None:
    """Add to the reference what the process that wrote it can tell once nothing more is asked of it. `tolerance`: with
    which others are held to it; None in any other process."""
    if tolerance is None:
        return
    completed = calls.completed(read_reference(request, calls.gate), step, tolerance)
    if completed is not None:
        save(request, completed, calls.gate)


def _refuse_narrowing(request: TrialRequest, subject: Subject, dtype: WideType) -> None:
    if dtype == "float32" and "float64" in {name.lower() for name in subject.dtypes}:
        raise InputError(
            f"{marked('reference', 'float32')} would round the float64 tensors of {request.workload.model}",
            tip=f"use {marked('reference', 'model')} or float64",
        )


def _observed(
    request: TrialRequest, backend: Backend, subject: Subject, dtype: WideType, tolerance: float
) -> tuple[Calls, Step, Any]:
    try:
        wide = widen_subject(subject, backend, dtype)
        calls = calls_for(request.workload, wide, backend)
        with calls.recording():
            step = calls.compile(ConfigParts.of(request.config).settings, UndoLog())
            return calls, step, calls.observe(step, reference_tolerance=tolerance)
    except Exception as error:
        # Out of memory too: the message says that this reference cannot be made, and what to do.
        raise SetupError(
            f"{request.workload.model}: the untuned model does not run in {dtype}: {quoted(error, max_chars=300)}",
            tip=f"use {marked('reference', 'model')}",
        ) from error
