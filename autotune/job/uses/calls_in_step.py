"""`UseOfCallsInStep`: the calls of a model in a job's own loop, under a config that was tuned as a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from autotune.apply.config_parts import ConfigParts
from autotune.backends.capabilities import Training, require
from autotune.backends.protocol import Backend
from autotune.job.fallback import Fallback
from autotune.job.guard import CallsOfAStep
from autotune.job.mismatch import text_of, without_axes
from autotune.job.uses.calls import UseOfCalls
from autotune.measure.measurement import TensorSpec
from autotune.tuned.tuned_config import TunedConfig
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.train import Train


class UseOfCallsInStep(UseOfCalls):
    """See the module. What trials compared is the step as a whole."""

    kind = Train
    is_measured = False
    takes_shapes = False

    def _tuned_calls(self, backend: Backend) -> TunedConfig:
        tuned = super()._tuned_calls(backend)
        return tuned.model_copy(update={"config": _training(backend).of_calls(tuned.config)})

    def _has_right_gradients(self, backend: Backend, tuned: TunedConfig) -> bool:
        """Those that trials compared: a step calls the very model that these calls do."""
        if super()._has_right_gradients(backend, tuned):
            return True
        parts = ConfigParts.of(tuned.config)
        return not parts.variants and _training(backend).calls_as_compiled(parts.settings)

    def _within(self, backend: Backend, call: Callable[..., Any], fallback: Fallback) -> CallsOfAStep:
        settings = ConfigParts.of(self._applying.tuned.config).settings
        return CallsOfAStep(_training(backend).unlike_the_step(self.model, settings), call, fallback)

    def _difference(self, backend: Backend) -> Callable[[Arguments], str | None]:
        return _CallsWithinAStep(self._applying.tuned, backend, self.model)


def _training(backend: Backend) -> Training:
    return require(backend.training, "task train")


class _CallsWithinAStep:
    """Why a call of the model is not for a config of training steps, whose trials compared the step as a whole: it has
    tensors that are no inputs of that. Where the step makes others of its inputs, the first call that records gradients
    shows which."""

    def __init__(self, tuned: TunedConfig, backend: Backend, model: Any) -> None:
        self._inputs = Counter(without_axes(tuned.workload.signature.inputs, ()))
        self._backend = backend
        self._model = model
        self._first: Counter[TensorSpec] | None = None

    def __call__(self, arguments: Arguments) -> str | None:
        leaves = arguments.leaves()
        specs = [spec for leaf in leaves if (spec := self._backend.spec(leaf)) is not None]
        here = Counter(without_axes(specs, ()))
        if self._first is None and self._backend.records_gradients(self._model, *leaves):
            self._first = here
        if here == self._first or not here - self._inputs:
            return None
        if self._first is not None:
            return f"inputs {text_of(self._first.elements())}, here {text_of(here.elements())}"
        # A later call may still show that such inputs are the step's.
        then = f"inputs {text_of(self._inputs.elements())}, or those" if self._inputs else "the inputs"
        return f"{then} of the first call that records gradients, here {text_of(here.elements())} before it"
