"""Exports put to use in a job that says nothing of them: what is called in place of each model whose class and
parameters a file names. A pipeline's file names several, its components.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from autotune.backends.registry import load_backend
from autotune.errors import quoted
from autotune.job.components import application_of, parts_of
from autotune.job.fallback import raise_interruption
from autotune.job.load import load
from autotune.job.policy import LoadedFile, Policy
from autotune.job.stats import recorder_of
from autotune.measure.measurement import structure_sha256
from autotune.tuned.tuned_config import TunedConfig

_LOG = logging.getLogger("autotune")


def apply(loaded: LoadedFile, model: Any) -> Any:
    """What the job is to call in place of a model that the file is for."""
    given, _ = application_of(loaded, model, Policy()).applied()
    return given


class AppliedFiles:
    """What is applied in this process to models of one framework."""

    def __init__(self, framework: str, paths: Sequence[str]) -> None:
        """A file that cannot be read costs a warning."""
        self._framework = framework
        self.files: dict[str, LoadedFile] = {}
        """By their paths; those of a pipeline by the paths of its components, too."""
        for path in paths:
            loaded = load(path)
            if loaded.problem is not None:
                _LOG.warning("autotune: %s; the job runs untuned", loaded.problem)
            elif loaded.answer is not None and loaded.answer.framework == framework:
                self.files |= _files_of(loaded, loaded.answer)
        self.applied: set[str] = set()
        self.use: Callable[[LoadedFile, Any], Any] = apply
        self.has_calls = False
        self.compiled: set[str] = set()
        """Names of the classes of which the job compiles a model by itself, which stays."""
        self._failed: set[str] = set()
        """Names of the classes of which a model could not be looked at, and it was said."""
        self.known: dict[int, tuple[Any, Any]] = {}
        """What is called in place of each model that was looked at, by its identity, with the model, which lives as
        long then; None: itself."""
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # A model may be called by a signal's handler, or where one is looked at.

    @property
    def answers(self) -> Sequence[TunedConfig]:
        """What is in the files."""
        return [loaded.answer for loaded in self.files.values() if loaded.answer is not None]

    def instead_of(self, model: Any) -> Any:
        """What is called in place of a model of a class that a file names; None: it stays as it is. No call of the job
        fails because of this."""
        known = self.known.get(id(model))
        if known is None:
            with self._lock:
                known = self.known.get(id(model)) or self._looked_at(model)
        return known and known[1]

    def is_ready(self, model: Any) -> bool:
        """False: the model is to be looked at again at its next call."""
        del model
        return True

    def found(self, model: Any, answer: TunedConfig) -> None:
        """A file is for this model."""

    def note_compiled(self, model: Any) -> None:
        """The job compiles this model by itself, or has a line for it."""
        name = type(model).__name__
        if recorder_of(model) is None:
            self.compiled.add(name)
        else:
            self.applied |= {path for path, each in self.files.items() if each.answer and class_of(each.answer) == name}

    def say_what_was_not_found(self) -> None:
        """For the end of the job."""
        for path in self.files.keys() - self.applied:
            answer = self.files[path].answer
            if answer is not None and self.has_calls:
                name = class_of(answer)
                what = f"no {name} with the parameters that it was tuned with was called: the job ran untuned"
                if name in self.compiled:
                    what = f"the job compiles its {name} by itself, and the config is not used; leave that out"
                _LOG.warning("autotune: %s: %s", path, what)

    def _looked_at(self, model: Any) -> tuple[Any, Any] | None:
        """What `known` holds from now on; None where it is not ready."""
        try:
            if not self.is_ready(model):
                return None
            instead = self._applied(model)
        except Exception as problem:
            raise_interruption(problem)
            instead, name = None, type(model).__name__
            if name not in self._failed:
                self._failed.add(name)
                _LOG.warning("autotune: a %s stays untuned, since it cannot be looked at: %s", name, quoted(problem))
        held = self.known[id(model)] = (None if instead is None else model, instead)
        if instead is None:
            weakref.finalize(model, self.known.pop, id(model), None).atexit = False
        return held

    def _applied(self, model: Any) -> Any:
        structure = structure_sha256(load_backend(self._framework).parameters(model))
        for path, loaded in self.files.items():
            answer = loaded.answer
            if answer is None or class_of(answer) != type(model).__name__:
                continue
            if answer.workload.signature.structure_sha256 == structure:
                self.applied.add(path)
                if recorder_of(model) is not None:  # The job has a line for it.
                    return None
                self.found(model, answer)
                given = self.use(loaded, model)
                return None if given is model else given
        return None


def _files_of(loaded: LoadedFile, answer: TunedConfig) -> dict[str, LoadedFile]:
    if not answer.components:
        return {loaded.path: loaded}
    return {part.path: part for part in parts_of(loaded.path, answer).values()}


def class_of(answer: TunedConfig) -> str:
    """The name alone: a job's own class is of `__main__` in the job, and of a copy's module in the study."""
    return answer.workload.signature.model_class.rpartition(".")[2]
