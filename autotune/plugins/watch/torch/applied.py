"""Exports put to use in a job that says nothing of them: `load(FILE).apply(module)` at the first call of each module
of the class and the parameters that a file names, and calls of what that gave in place of the module's.

A pipeline's file names several, its components. What a file of generated text is for is `generate`: each class of the
name has one of ours from its definition on, since a job may call it once only.
"""

from __future__ import annotations

import atexit
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, ClassVar

import torch

from autotune.backends.registry import load_backend
from autotune.errors import quoted
from autotune.job.components import application_of, parts_of
from autotune.job.load import load
from autotune.job.policy import LoadedFile, Policy
from autotune.measure.measurement import structure_sha256
from autotune.plugins.watch.torch import calls
from autotune.tuned.tuned_config import TunedConfig

AROUND = calls.AROUND
unhooked = calls.unhooked
_LOG = logging.getLogger("autotune")
_Module = torch.nn.Module
_ORIGINAL = calls.ORIGINAL
_inside: set[int] = set()
"""Threads that are in a call of a tuned model."""


def apply(loaded: LoadedFile, module: Any) -> Any:
    """What the job is to call in place of a module that the file is for."""
    given, _ = application_of(loaded, module, Policy()).applied()
    return given


class _Applying:
    """What is applied in this process."""

    files: dict[str, LoadedFile] = {}
    """By their paths; those of a pipeline by the paths of its components, too."""
    classes: frozenset[str] = frozenset()
    """Names of the classes whose calls the files are for."""
    text_classes: frozenset[str] = frozenset()
    """Names of those whose `generate` they are for."""
    applied: set[str] = set()
    failed: set[str] = set()
    """Names of the classes of which a module could not be looked at, and it was said."""
    has_calls = False
    tuned: dict[int, tuple[Any, Any]] = {}
    """What is called in place of each module that was looked at, by its identity, with the module, which lives as long
    then; None: itself."""
    lock = threading.Lock()
    use: ClassVar[Callable[[LoadedFile, Any], Any]] = apply


def use_with(use: Callable[[LoadedFile, Any], Any]) -> None:
    """Call something else in place of a module than what `apply` gives."""
    _Applying.use = use


def is_looking() -> bool:
    """Models are looked for at each call of a module."""
    return bool(_Module.__call__ is _called)


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return _ORIGINAL(self, *args, **kwargs)
    call = own_call()
    _Applying.has_calls = True
    thread = get_ident()
    if thread in _inside or torch._C._get_tracing_state() is not None:
        return call(self, *args, **kwargs)
    if hasattr(self, "_orig_mod"):  # The job compiles it.
        instead = call.__get__(self)
    elif type(self).__name__ not in _Applying.classes or (instead := _tuned(self)) is None:
        return call(self, *args, **kwargs)
    return _within(thread, instead, args, kwargs)


def _within(thread: int, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of a tuned model, within which no other is looked for."""
    _inside.add(thread)
    try:
        return call(*args, **kwargs)
    finally:
        _inside.discard(thread)


def own_call() -> Any:
    """What calls a module as it is called without this."""
    call = _Module.__call__
    return _ORIGINAL if call is _called else call


def _give_generate(kind: Any) -> None:
    """Calls of `generate` of this class go to what the file gave."""
    generate = kind.generate

    @functools.wraps(generate)
    def generated(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in _inside or type(self).generate is not generated or (instead := _tuned(self)) is None:
            return generate(self, *args, **kwargs)
        return _within(thread, instead.generate, args, kwargs)

    calls.pass_over(generated)
    kind.generate = generated


def _class_is_defined(kind: Any, /, **kwargs: Any) -> None:
    """In place of the method by which a class of modules is told of its subclasses."""
    super(_Module, kind).__init_subclass__(**kwargs)
    if kind.__name__ in _Applying.text_classes and hasattr(kind, "generate"):
        _give_generate(kind)


def _tuned(module: Any) -> Any:
    """What is called in place of the module; None: it stays as it is, for this call where it has no shapes yet."""
    known = _Applying.tuned.get(id(module))
    if known is not None:
        return known[1]
    compiling = calls.set_compiler(None)
    try:
        with _Applying.lock:
            known = _Applying.tuned.get(id(module)) or _looked_at(module)
            return known and known[1]
    finally:
        calls.set_compiler(compiling)


def _looked_at(module: Any) -> tuple[Any, Any] | None:
    """What `_Applying.tuned` holds from now on; None: the module is to be looked at again at its next call. No call of
    the job fails because of this."""
    try:
        if any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers()))):
            return None
        instead = _applied(module)
    except Exception as problem:
        instead, name = None, type(module).__name__
        if name not in _Applying.failed:
            _Applying.failed.add(name)
            _LOG.warning("autotune: a %s stays untuned, since it cannot be looked at: %s", name, quoted(problem))
    held = _Applying.tuned[id(module)] = (instead and module, instead)
    if instead is None:
        weakref.finalize(module, _Applying.tuned.pop, id(module), None).atexit = False
    return held


def _applied(module: Any) -> Any:
    structure = structure_sha256(load_backend("torch").parameters(module))
    kind = type(module)
    for path, loaded in _Applying.files.items():
        answer = loaded.answer
        if answer is None or _class_of(answer) != kind.__name__:
            continue
        if answer.workload.signature.structure_sha256 == structure:
            _Applying.applied.add(path)
            has_own = answer.texts is not None or calls.give_call(kind, _called)
            if has_own and _Applying.applied == _Applying.files.keys() and _Module.__call__ is _called:
                # All are found: what is compiled from now on is compiled as without this module.
                _Module.__call__ = _ORIGINAL  # type: ignore[method-assign]
            given = _Applying.use(loaded, module)
            return None if given is module else given
    return None


def hook(wanted: Mapping[str, Any]) -> bool:
    """Apply the files from now on. False: it is done already."""
    if _Applying.files:
        return False
    for path in wanted["files"]:
        loaded = load(path)
        if loaded.problem is not None:
            _LOG.warning("autotune: %s; the job runs untuned", loaded.problem)
        elif loaded.answer is not None and loaded.answer.components:
            _Applying.files |= {part.path: part for part in parts_of(path, loaded.answer).values()}
        else:
            _Applying.files[path] = loaded
    answers = [loaded.answer for loaded in _Applying.files.values() if loaded.answer is not None]
    _Applying.text_classes = frozenset(_class_of(answer) for answer in answers if answer.texts is not None)
    _Applying.classes = frozenset(_class_of(answer) for answer in answers if answer.texts is None)
    if not answers:
        return True
    if _Applying.text_classes:
        _Module.__init_subclass__ = classmethod(_class_is_defined)  # type: ignore[assignment]
    for function in (_called, own_call):
        calls.pass_over(function)
    _Module.__call__ = _called  # type: ignore[method-assign]
    atexit.register(_say_what_was_not_found)
    return True


def _class_of(answer: TunedConfig) -> str:
    """The name alone: a job's own class is of `__main__` in the job, and of a copy's module in the study."""
    return answer.workload.signature.model_class.rpartition(".")[2]


def _say_what_was_not_found() -> None:
    for path in _Applying.files.keys() - _Applying.applied:
        answer = _Applying.files[path].answer
        if answer is not None and _Applying.has_calls:
            _LOG.warning(
                "autotune: %s: no %s with the parameters that it was tuned with was called: the job ran untuned",
                path,
                _class_of(answer),
            )
