"""`UseOfStep`: a training step of a model under a config, which changes its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.apply.config_parts import ConfigParts
from autotune.apply.warm_start import WarmStart
from autotune.backends.capabilities import Updates, require
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of, framework_of, framework_that, load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError, marked
from autotune.job.fallback import MismatchError
from autotune.job.guard import Guard
from autotune.job.uses.use import Applying, Held, Use
from autotune.workload.kinds.train import Train


class UseOfStep(Use):
    """See the module."""

    what = "a training step"

    def __init__(self, applying: Applying, given: Any, recipe: Train, updates: Updates) -> None:
        """`updates`: how the step changes the weights."""
        super().__init__(applying, given)
        self._recipe = recipe
        self._updates = updates

    def take(self, backend: Backend) -> None:
        super().take(backend)
        problem = self._problem_of_optimizer(backend)
        if problem is not None:
            raise MismatchError(f"the optimizer of the training step is {problem}")
        tuned = self._applying.tuned
        if not tuned.is_untuned and not issubclass(tuned.kind, Train):
            raise MismatchError(
                f"{self._applying.loaded.path} was tuned for {tuned.kind.words}",
                tip=f"tune with {marked('task', 'train')}",
            )

    def _problem_of_optimizer(self, backend: Backend) -> str | None:
        return require(backend.training, "a training step").check_optimizer(self._recipe.optimizer)

    def tuned(self, backend: Backend, *, fits: bool) -> Held:
        start, tuned = self._warm_start(backend), self._applying.tuned
        terms = self._terms(backend, fits=fits, unchecked_caches=start is not None and start.unchecked)
        untuned = self._untuned(backend, tuned.framework)
        fallback = self._applying.fallback_to(untuned, repeats=False)
        backend.input_gradients = tuned.workload.signature.records_gradients
        with backend.watching_recompiles(False):
            step = self._step(backend, tuned.config, self._applying.changes)
        guard = Guard(backend, step, fallback, terms, self._applying.recorder, warm_start=start)
        return self._joined(backend, guard, fallback), fallback.release

    def _function(self, backend: Backend) -> tuple[Callable[..., Any], int]:
        """The loss, which is given the model first."""
        del backend
        return self._recipe.loss, 1

    def _effects(self, backend: Backend, settings: Config) -> None:
        """None is looked for."""

    def untouched(self) -> Held:
        framework = self._framework()
        if framework is None:
            raise InputError(f"training_step() was given a {type(self.model).__name__}, which no framework can train")
        backend = load_backend(framework)
        if self._backend is None:
            model = self.model if backend.is_model(self.model) else backend.as_model(self.model)
            if backend.is_model(model):
                backend.adopt(model)
            self._applying.watch(backend)
        return self._applying.monitored(self._untuned(backend, framework)), lambda: None

    def _warm_start(self, backend: Backend) -> WarmStart | None:
        """None also for a step that would be made twice, to compare: it would train twice. None is exported either."""
        artifact = self._applying.tuned.artifact
        return None if artifact is not None and artifact.check_first_call else super()._warm_start(backend)

    def _untuned(self, backend: Backend, framework: str) -> Callable[..., Any]:
        return self._step(backend, Config(entry_of(framework).untuned), UndoLog())

    def _step(self, backend: Backend, config: Config, changes: UndoLog) -> Callable[..., Any]:
        training = require(backend.training, "a training step")
        settings = ConfigParts.of(config).settings
        step: Callable[..., Any] = training.training_step(
            self.model, self._recipe.loss, self._recipe.optimizer, settings, changes, updates=self._updates
        )
        return step

    def _framework(self) -> str | None:
        """That of the model; of one that no config can be applied to, or of a function, as far as can be told."""
        if not callable(self.model):
            return None
        return framework_of(self.model) or framework_that(
            lambda backend: backend.is_model(self.model),
            lambda backend: backend.training is not None and self._problem_of_optimizer(backend) is None,
            lambda backend: backend.training is not None,
        )
