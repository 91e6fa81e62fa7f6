"""Exports put to use in a job that says nothing of them: `load(FILE).apply(module)` at the first call of each module
of the class and the parameters that a file names, and calls of what that gave in place of the module's.

A pipeline's file names several, its components. What a file of generated text is for is `generate`: each class of the
name has one of ours from its definition on, since a job may call it once only.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

import torch

from autotune.job.policy import LoadedFile
from autotune.plugins.watch.applying import AppliedFiles, class_of
from autotune.plugins.watch.torch import calls
from autotune.tuned.tuned_config import TunedConfig

AROUND = calls.AROUND
unhooked = calls.unhooked
_Module = torch.nn.Module
_ORIGINAL = calls.ORIGINAL
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_tracing_state: Callable[[], Any] = torch._C._get_tracing_state
_num_dispatch_modes, _transform = calls.num_dispatch_modes, calls.transform
_inside: set[int] = set()
"""Threads that are in a call of a tuned model."""


class _Modules(AppliedFiles):
    """See `AppliedFiles`."""

    def is_ready(self, model: Any) -> bool:
        return not any(map(torch.nn.parameter.is_lazy, (*model.parameters(), *model.buffers())))

    def found(self, model: Any, answer: TunedConfig) -> None:
        has_own = answer.texts is not None or calls.give_call(type(model), _called_of_class)
        if has_own and self.applied == self.files.keys() and _Module.__call__ is _called:
            # All are found: what is compiled from now on is compiled as without this module.
            _Module.__call__ = _ORIGINAL  # type: ignore[method-assign]


class _Applying:
    """What is applied in this process."""

    here = _Modules("torch", ())
    classes: frozenset[str] = frozenset()
    """Names of the classes whose calls the files are for."""
    text_classes: frozenset[str] = frozenset()
    """Names of those whose `generate` they are for."""


def use_with(use: Callable[[LoadedFile, Any], Any]) -> None:
    """Call something else in place of a module than what `load(FILE).apply(module)` gives."""
    _Applying.here.use = use


def is_looking() -> bool:
    """Models are looked for at each call of a module."""
    return bool(_Module.__call__ is _called)


def _stand_in(own_of: Callable[[Any], Callable[..., Any]]) -> Any:
    """A `__call__` of modules. One that has no tuned model in its place is called by what `own_of` gives."""

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return _ORIGINAL(self, *args, **kwargs)
        thread = get_ident()
        if thread in _inside:
            return own_of(self)(*args, **kwargs)
        known = _Applying.here.known.get(id(self))
        instead = _looked_for(self, own_of) if known is None else known[1]
        if instead is None or _tracing_state() is not None or _num_dispatch_modes() or _transform() is not None:
            return own_of(self)(*args, **kwargs)
        _inside.add(thread)  # Within the call of a tuned model no other is looked for.
        try:
            return instead(*args, **kwargs)
        finally:
            _inside.discard(thread)

    return called


def _looked_for(module: Any, own_of: Callable[[Any], Any]) -> Any:
    """What is called in place of a module that is not known yet; None: its own call, which `own_of` gives."""
    _Applying.here.has_calls = True
    if "_orig_mod" in vars(module).get("_modules", ()):  # The job compiles it.
        _Applying.here.note_compiled(module._orig_mod)
        return own_of(module)
    is_free = _tracing_state() is None and not calls.is_looked_into()
    is_wanted = type(module).__name__ in _Applying.classes and is_free
    return _tuned(module) if is_wanted else None


def own_of(module: Any) -> Callable[..., Any]:
    """What a module is called by without this."""
    call = _Module.__call__
    return calls.own_of(module) if call is _called or call is _ORIGINAL else call.__get__(module)


_called = _stand_in(calls.own_of)
"""In place of PyTorch's. Whoever has replaced `Module.__call__` since, and calls what was there, comes here."""
_called_of_class = _stand_in(own_of)
"""In a class that a file names: goes on to what modules are called by."""


def _give_generate(kind: Any) -> None:
    """Calls of `generate` of this class go to what the file gave."""
    generate = kind.generate

    @functools.wraps(generate)
    def generated(self: Any, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in _inside or type(self).generate is not generated or (instead := _tuned(self)) is None:
            return generate(self, *args, **kwargs)
        _inside.add(thread)
        try:
            return instead.generate(*args, **kwargs)
        finally:
            _inside.discard(thread)

    calls.pass_over(generated)
    kind.generate = generated


def _class_is_defined(kind: Any, /, **kwargs: Any) -> None:
    """In place of the method by which a class of modules is told of its subclasses."""
    super(_Module, kind).__init_subclass__(**kwargs)
    if kind.__name__ in _Applying.text_classes and hasattr(kind, "generate"):
        _give_generate(kind)


def _tuned(module: Any) -> Any:
    """What is called in place of the module; None: it stays as it is, for this call where it has no shapes yet."""
    known = _Applying.here.known.get(id(module))
    if known is not None:
        return known[1]
    compiling = calls.set_compiler(None)
    try:
        if callable(compiling):  # The call comes from code that the job compiles, whose compiler gets the module next.
            _Applying.here.note_compiled(module)
            return None
        return _Applying.here.instead_of(module)
    finally:
        calls.set_compiler(compiling)


def hook(wanted: Mapping[str, Any]) -> None:
    """Apply the files from now on."""
    applying = _Applying.here = _Modules("torch", wanted["files"])
    _Applying.text_classes = frozenset(class_of(answer) for answer in applying.answers if answer.texts is not None)
    _Applying.classes = frozenset(class_of(answer) for answer in applying.answers if answer.texts is None)
    if not applying.files:
        return
    if _Applying.text_classes:
        _Module.__init_subclass__ = classmethod(_class_is_defined)  # type: ignore[assignment]
    for function in (_called, _looked_for, _tuned, own_of, calls.own_of, calls.is_looked_into):
        calls.pass_over(function)
    calls.stand_ins.append(_called)
    _Module.__call__ = _called  # type: ignore[method-assign]
    atexit.register(applying.say_what_was_not_found)
