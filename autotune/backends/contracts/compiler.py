"""`Compiler`: a model under a config, in trials and in jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from autotune.backends.undo import UndoLog
from autotune.config import Config, Scalar
from autotune.errors import InvalidConfigError
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import Reason
from autotune.workload.workload import Task


class Effects(Protocol):
    """One call, as it is looked at from before it."""

    def found(self) -> str | None:
        """After the call: what it has left behind that a compiled one would not, in words."""


EffectsOf = Callable[[tuple[Any, ...], dict[str, Any]], Effects]
"""Begins to look at a call with these arguments."""


class Compiler(Protocol):
    """The framework's compiler, and calls of what it compiles.

    `compile` is the same pure mapping from config to the framework's arguments that a job gets through
    `autotune.load(...).apply(model)`: what was measured is what is deployed.
    """

    warmup_calls: int
    """Calls after which this framework's runtime has settled at the earliest (its own measured fact)."""

    def compile(self, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
        """The model under `config`, ready to be called like the model itself; lazily compiled is fine.

        Sets what a config sets in the process (contexts, global switches), and notes in `changes` how that is undone.
        Where a region makes it rewrite modules, `model` is what `Regions.copy_modules` gave. What is returned raises
        UnsuitableCallError for a call that must be made untuned. Raises InvalidConfigError for a setting that the
        installed release does not take.
        """

    def effects(self, model: Any, config: Config) -> EffectsOf | None:
        """How to find out, from an untuned call, whether the model leaves something behind that its compiled calls
        would not. None where compiled calls leave what untuned ones do, or the code of the model writes to nothing that
        outlives a call."""
        return None

    def keeps_nan(self, config: Config) -> bool:
        """Whether each kernel under a config gives NaN for NaN where the framework's own do. One that computes
        max(x, 0) for a ReLU gives 0."""
        return True

    def copies_outputs(self, model: Any, config: Config) -> Callable[[Any], Any] | None:
        """What is done to the outputs of each call under a config that replays captured graphs, whose next call would
        write over them: it copies them, so that a job may keep them. Such a graph is recorded by the second call of a
        shape. None: nothing is captured and copied."""
        return None

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        """What the compiler did for all calls so far, from its own counters and reports."""

    def process_settings(self, config: Config) -> tuple[str, ...]:
        """The knobs of a config that set something for the whole process, where other models feel it too."""
        return ()

    def unfit_mode(self) -> tuple[str, str] | None:
        """The mode of this process in which no config was proven, and how a job leaves it; None: it is in none. To
        compile a model under a config is to leave the mode, for all models of the process."""
        return None

    def check_option(self, knob: str, value: Scalar) -> None:
        """Raises InvalidConfigError if `knob`, an option of the compiler by its own name (GROUP.NAME), is none that a
        config may set to `value`. See `BackendEntry.options`."""
        raise InvalidConfigError(f"knob {knob}: this framework's options are no knobs")

    def inference(self) -> AbstractContextManager[Any]:
        """Where a trial of the `infer` task calls the model: no gradients recorded."""
        return nullcontext()

    def noting_operators(self) -> AbstractContextManager[Collection[str]]:
        """Within: the names of the operators that uncompiled calls make and that are not the framework's own."""
        return nullcontext(())

    def cache_variables(self, folder: str) -> dict[str, str]:
        """Environment variables that put every compile cache of the framework under `folder`, and there too what the
        compiler is asked to dump for `program`."""
        return {}

    def classify(self, error: BaseException) -> Reason | None:
        """The reason behind an exception where its type tells (out of memory, invalid), else None."""
        return None

    def hint(self, error: BaseException, task: Task) -> str | None:
        """What to do about an exception that a trial of the task raised, where the framework does not say it."""
        return None
