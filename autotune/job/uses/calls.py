"""`UseOfCalls`: the calls of a model under a config, or those of a method of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from autotune.apply.compile_model import compile_under, given_functions
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.job.fallback import Fallback, MismatchError
from autotune.job.guard import Guard, RecordedCalls
from autotune.job.stats import expect_calls
from autotune.job.uses.use import Applying, Held, Use, releasing
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.kinds.infer import Infer
from autotune.workload.kinds.work import Work


class UseOfCalls(Use):
    """See the module."""

    kind: ClassVar[type[Work]] = Infer
    takes_shapes = True

    def __init__(self, applying: Applying, given: Any) -> None:
        super().__init__(applying, given)
        self._method: str | None = None
        """The method of the model that is tuned in place of its calls."""

    def _find_model(self, backend: Backend) -> None:
        """Where a method was tuned, that is the model, and what was given is what it is put back into."""
        super()._find_model(backend)
        method = self._applying.tuned.workload.signature.method
        if method is None or not backend.is_model(self.given):
            return
        if not callable(getattr(self.model, method, None)):
            raise MismatchError(
                f"this config was tuned for the method {method}, which a {type(self.model).__name__} lacks"
            )
        self.given, self._method = self.model, method
        self.model = backend.as_model(getattr(self.given, method))

    def tuned(self, backend: Backend, *, fits: bool) -> Held:
        start, tuned = self._warm_start(backend), self._tuned_calls(backend)
        terms = self._terms(backend, fits=fits, unchecked_caches=start is not None and start.unchecked)
        fallback = self._applying.fallback_to(backend.proxies.direct(self.model), repeats=True)
        functions = given_functions(tuned.config, tuned.variants, self._applying.policy.variants)
        backend.input_gradients = tuned.workload.signature.records_gradients
        with backend.watching_recompiles(tuned.shapes is not None):
            changes, shapes = self._applying.changes, tuned.shapes
            step = compile_under(backend, self.model, tuned.config, functions, changes, shapes=shapes)
        recorder, of_a_step = self._applying.recorder, not self.is_measured
        calls: Callable[..., Any]
        calls = Guard(backend, backend.proxies.direct(step), fallback, terms, recorder, warm_start=start)
        if not (step is self.model or self._has_right_gradients(backend, tuned)):
            calls = RecordedCalls(backend, self.model, calls, fallback, recorder, of_a_step=of_a_step)
        return self._stand_in(backend, step, self._within(backend, calls, fallback), fallback)

    def _tuned_calls(self, backend: Backend) -> TunedConfig:
        """What is in the file, as it is for these calls."""
        del backend
        return self._applying.tuned

    def _has_right_gradients(self, backend: Backend, tuned: TunedConfig) -> bool:
        """Calls that record gradients give those of the untuned model: they were recorded in each call of a trial,
        since the model differentiates within itself."""
        del backend
        return tuned.workload.signature.records_gradients

    def _within(self, backend: Backend, call: Callable[..., Any], fallback: Fallback) -> Callable[..., Any]:
        """The call, in what decides first whether it is for the config."""
        del backend, fallback
        return call

    def untouched(self) -> Held:
        if not self._applying.policy.monitor or self._backend is None:
            return self.given, lambda: None
        holding = UndoLog()
        call = self._applying.monitored(self._backend.proxies.direct(self.model))
        return self._proxy(self._backend, self.model, call, holding), holding.undo

    def _stand_in(self, backend: Backend, step: Any, call: Callable[..., Any], fallback: Fallback) -> Held:
        """What the job holds for a `call` that stands in front of the model."""
        joined = self._joined(backend, call, fallback)
        self._applying.recorder.note_first_call = expect_calls(self._applying.loaded.path)
        holding = UndoLog()
        given = self._proxy(backend, step, joined, holding)
        return given, releasing(holding, fallback)

    def _proxy(self, backend: Backend, step: Any, call: Callable[..., Any], holding: UndoLog) -> Any:
        """It stands for what the job gave, whose names its checkpoints have, or for a function's model."""
        held = self.given if backend.check_model(self.given) is None else self.model
        return backend.proxies.proxy(held, step, call, holding, self._method)
