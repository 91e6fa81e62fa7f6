"""`Inference`: a trial of the task `infer`. The model is called, and its outputs are compared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from autotune.apply.compile_model import compile_under, declared_functions
from autotune.backends.outputs import output_arrays
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.trial.worker.accuracy_check import Gate, OutputGate
from autotune.trial.worker.subject import Subject, why_unrepeatable
from autotune.workload.workload import Workload


class Inference:
    """See `TrialTask`."""

    def __init__(self, workload: Workload, subject: Subject, backend: Backend) -> None:
        self._subject = subject
        self._backend = backend
        self.gate: Gate = OutputGate(workload.model, partial(why_unrepeatable, subject, backend))

    def recording(self) -> AbstractContextManager[Any]:
        return self._backend.inference()

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
        """The outputs for each of the subject's inputs."""
        seen = [output_arrays(self._backend, first)]
        return seen + [output_arrays(self._backend, each.call(step)) for each in self._subject.inputs[1:]]

    def require_sound(self, step: Callable[..., Any]) -> None:
        """An output does not depend on the calls before."""
