"""`RecordedCalls`: stands in front of a model that was tuned without gradients: calls that record them stay untuned.

A trial of inference compares outputs alone. Compiled code may lose a gradient, or give zeros where the untuned model
gives none, and nobody would have seen it (docs/decisions/0048-what-an-applied-model-is.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.backends.protocol import Backend
from autotune.command_line import asked
from autotune.errors import UnsuitableCallError
from autotune.job.fallback import Fallback
from autotune.job.stats import StatsRecorder


class RecordedCalls:
    """A callable: what the job's calls come to first."""

    def __init__(
        self,
        backend: Backend,
        model: Any,
        call: Callable[..., Any],
        fallback: Fallback,
        recorder: StatsRecorder,
    ) -> None:
        self._recorder = recorder
        self._backend = backend
        self._records = backend.records_gradients
        self._model = model
        self._call = call
        self._fallback = fallback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fallback.is_over:
            return self._call(*args, **kwargs)
        if self._records(self._model, args, kwargs):
            return self._untuned("the call records gradients, and the config was tuned without", args, kwargs)
        result = self._call(*args, **kwargs)
        if self._records(None, result) and not self._fallback.is_over:
            what = "outputs require gradients, though no parameter of the model and no input does"
            return self._untuned(what, args, kwargs, lasting=True)
        return result

    def _untuned(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, lasting: bool = False) -> Any:
        self._recorder.note_first_call()
        ways_out = (
            f"{self._backend.call_without_gradients}, or tune with {asked('task', 'train')} and use training_step"
        )
        return self._fallback.result_after(UnsuitableCallError(what, tip=ways_out, lasting=lasting), "", args, kwargs)
