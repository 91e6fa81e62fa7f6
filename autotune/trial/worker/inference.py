"""`Inference`: a trial of the task `infer`. The model is called, and its outputs are compared."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from autotune.apply.compile_model import compile_under, declared_functions
from autotune.backends.outputs import output_arrays
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.trial.worker.accuracy_check import Gate, OutputGate
from autotune.trial.worker.subject import Subject, why_unrepeatable
from autotune.workload.arguments import Arguments
from autotune.workload.workload import Workload


class Inference:
    """See `TrialTask`."""

    def __init__(self, workload: Workload, subject: Subject, backend: Backend) -> None:
        self._subject = subject
        self._backend = backend
        self.gate: Gate = OutputGate(workload.model, partial(why_unrepeatable, subject, backend))

    def recording(self) -> AbstractContextManager[Any]:
        """Gradients are recorded if an input of the author's requires them, and else not."""
        return nullcontext() if self._subject.signature.records_gradients else self._backend.inference()

    def compile(self, config: Config, changes: UndoLog) -> Callable[..., Any]:
        functions = declared_functions(config, self._subject.variants)
        return compile_under(
            self._backend, self._subject.model, config, functions, changes, shapes=self._subject.shapes
        )

    def observe(
        self,
        step: Callable[..., Any],
        first: Any,
        *,
        reference_tolerance: float | None = None,  # noqa: ARG002 -- Outputs are held to that tolerance, however it is.
    ) -> list[list[Any]]:
        """The outputs for each of the subject's inputs; none for a derived one that the model does not take, where no
        reference says that it does."""
        seen = [output_arrays(self._backend, first)]
        for each in self._subject.inputs[1:]:
            call = partial(self._outputs, step, each)
            may_fail = each is self._subject.derived and self._subject.derived_may_fail
            outputs = outputs_if_taken(call, seen[0]) if may_fail else call()
            seen += [] if outputs is None else [outputs]
        return seen

    def _outputs(self, step: Callable[..., Any], inputs: Arguments) -> list[Any]:
        return output_arrays(self._backend, inputs.call(step))

    def require_sound(self, step: Callable[..., Any]) -> None:
        """An output does not depend on the calls before."""


def outputs_if_taken(call: Callable[[], list[Any]], example: list[Any]) -> list[Any] | None:
    """What the model gives for an input that was made up; None where it fails, or gives NaN where the example
    gave none. The reason goes to the log."""
    try:
        outputs = call()
    except Exception:
        traceback.print_exc()
        return None
    is_outside = any(np.isnan(y).any() and not np.isnan(r).any() for r, y in zip(example, outputs, strict=False))
    if is_outside:
        print("the further input, made of the example, gives NaN", file=sys.stderr)
    return None if is_outside else outputs
