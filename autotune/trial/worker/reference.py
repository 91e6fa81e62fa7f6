"""The wide reference: what the untuned model gives in float32 or float64, written before anything is measured.

The worker lets another process do this and then goes on, with a reference to compare the untuned model with like any
config. In the same process the wide model would leave its memory and its warm kernels behind: a ViT's peak then read
7 MiB instead of 35, its first call 14 ms instead of 239 (torch, CPU). That process builds the model from the study's
seed, as every trial does, so it has the weights that every trial has; a deep copy would not work for every model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.apply.compile_model import without_variants
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.errors import HarnessError, InputError
from autotune.measure.accuracy import WideType
from autotune.measure.measurement import Stage
from autotune.trial.command import module_command
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import write_reference
from autotune.trial.worker.subject import Subject, build_subject, widen_subject
from autotune.trial.worker.task import TrialTask, task_for

ONLY = "reference"
"""Second argument of a worker that writes the reference and measures nothing."""


def is_missing(request: TrialRequest) -> bool:
    """Whether this run is the one that a wide reference must be written for."""
    return request.untuned and request.reference_precision != "model" and not Path(request.reference).exists()


def let_another_process_write(folder: TrialFolder) -> int:
    """Exit status of a worker that leaves the reference, or a `Failure` as its outcome.

    If that worker is killed, this process dies in the same way, so that the crash is seen for what it is.
    """
    print("the untuned model is run for --reference first", file=sys.stderr, flush=True)
    status = subprocess.run(module_command("trial.worker.main", str(folder.path), ONLY), check=False).returncode
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


def write(request: TrialRequest, backend: Backend, enter: Callable[[Stage], None]) -> None:
    """Build the model, widen it, call it and keep its outputs. Raises HarnessError where it does not run so wide."""
    assert request.reference_precision != "model"
    dtype = request.reference_precision
    enter(Stage.BUILD)
    backend.prepare(request.workload.device, request.workload.seed)
    subject = build_subject(request.workload, backend)
    tolerance = request.tolerance_for(subject.dtypes)
    _refuse_narrowing(request, subject, dtype)
    enter(Stage.CHECK)
    task, seen = _observed(request, backend, subject, dtype)
    with task.recording():
        write_reference(request, seen, tolerance, task.gate)


def _refuse_narrowing(request: TrialRequest, subject: Subject, dtype: WideType) -> None:
    if dtype == "float32" and "float64" in {each.lower() for each in subject.dtypes}:
        raise InputError(
            f"--reference float32 would round the float64 tensors of {request.workload.model}",
            tip="use --reference model or float64",
        )


def _observed(
    request: TrialRequest, backend: Backend, subject: Subject, dtype: WideType
) -> tuple[TrialTask, list[list[Any]]]:
    try:
        wide = widen_subject(subject, backend, dtype)
        task = task_for(request.workload, wide, backend)
        with task.recording():
            step = task.compile(without_variants(request.config), UndoLog())
            return task, task.observe(step, wide.inputs[0].call(step))
    except Exception as error:
        # Memory too: what counts is that this reference cannot be had, and what to do.
        raise HarnessError(
            f"{request.workload.model}: the untuned model does not run in {dtype}: {_first_line(error)}",
            tip="use --reference model",
        ) from error


def _first_line(error: Exception, max_chars: int = 300) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:max_chars]
