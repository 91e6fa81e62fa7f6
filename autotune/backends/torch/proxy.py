"""A second object for the same module: what a job holds while its calls go through the compiled code.

`torch.compile` wraps a module, and a wrapper puts `_orig_mod.` before each name in a checkpoint and is of another
class. A proxy is of a subclass of the model's own class and shares its `__dict__`: parameters, buffers, modes, hooks'
registers and attributes are the model's own, and only its calls go elsewhere.

Some calls stay with the model. Those that PyTorch records (in a function that the job compiles, by `torch.export`,
`torch.jit.trace` or `torch.fx`): the job's own compiler gets all of it, as it sees through `torch.compile`. And those
under a dispatch mode, which acts on operators, where compiled code has kernels: under `FakeTensorMode` these end the
process (measured, 2.13).

Libraries call `forward` as well, past the hooks of the model: `proxy.forward(x)` goes where `proxy(x)` goes. Where
another method was tuned, it alone goes elsewhere, also where the model's own methods call it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import _symbolic_trace
from torch.nn.modules import module as all_modules

from autotune.backends.proxy_object import function_of, method_of, original, proxy_of
from autotune.backends.torch.given_model import FunctionModel
from autotune.backends.undo import UndoLog

__all__ = ["direct", "original", "proxy"]

_has_global_hooks: Callable[[], bool] = all_modules._has_any_global_hook
_is_dynamo_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
_is_tracing: Callable[[], bool] = torch._C._is_tracing
_num_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def proxy(
    model: torch.nn.Module,
    step: Any,
    call: Callable[..., Any],
    changes: UndoLog,
    method: str | None = None,
    *,
    around: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """See `ModelProxies`. `around`: method -> what is called in its place, with the method before its arguments."""
    if isinstance(model, FunctionModel):

        def tuned(*args: Any, **kwargs: Any) -> Any:
            return model.function(*args, **kwargs) if _is_recorded() else call(*args, **kwargs)

        return function_of(model.function, model.__name__, tuned)

    replaced: dict[str, Any] = {method or "forward": _Method(model, method, call)}
    replaced |= {name: _Around(model, name, function) for name, function in (around or {}).items()}
    # Exported weights get their names by the object that is being recorded.
    is_recorded = _is_recorded if method is None else lambda: True
    other: torch.nn.Module = proxy_of(
        model, call, object.__new__, is_read=_is_read_by_dynamo, is_recorded=is_recorded, **replaced
    )
    return other


def direct(step: Callable[..., Any]) -> Callable[..., Any]:
    """See `ModelProxies`."""
    return step


class _Method:
    """A method of a proxy; of its class, and of other objects of that class, it is the author's."""

    def __init__(self, model: torch.nn.Module, method: str | None, call: Callable[..., Any]) -> None:
        """`method` None: `forward`, where a call of it goes as a call of the whole model."""
        self._model = model
        self._name = method or "forward"
        self._has_hooks = _has_hooks if method is None else lambda _: False
        self._call = call
        self._author: Any = None
        self._function: Any = None

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        if instance is None:
            return getattr(type(self._model), self._name)
        if torch.compiler.is_dynamo_compiling():
            return functools.partial(getattr(type(self._model), self._name), instance)
        if original(instance) is not self._model:
            return getattr(instance, self._name)  # It has its author's class now.
        author = method_of(type(self._model), self._name)
        if not isinstance(author, FunctionType) or author is torch.nn.Module.forward:
            return getattr(self._model, self._name)
        if author is not self._author:
            self._author, self._function = author, self._around(author)
        return MethodType(self._function, instance)

    def _around(self, author: FunctionType) -> Callable[..., Any]:
        model, name, call, has_hooks = self._model, self._name, self._call, self._has_hooks

        @functools.wraps(author)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_recorded():
                return author(self, *args, **kwargs)
            # What took the place of the method may call it, as a wrapper does; and it is called without hooks.
            if name in vars(model) or method_of(type(model), name) is not author or has_hooks(model):
                return author(model, *args, **kwargs)
            return call(*args, **kwargs)

        return method


class _Around:
    """A method of a proxy that something stands around; of its class, and of other objects, it is the author's."""

    def __init__(self, model: torch.nn.Module, name: str, function: Callable[..., Any]) -> None:
        self._model = model
        self._name = name
        self._function = function

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        author = getattr(type(self._model), self._name)
        if instance is None:
            return author
        own = MethodType(author, instance)
        return functools.wraps(own)(functools.partial(self._function, own)) if self._is_ours(instance) else own

    def _is_ours(self, instance: Any) -> bool:
        return original(instance) is self._model


def asks_fx(private: Any) -> Callable[[], bool]:
    """What asks this module of `torch.fx` whether it is at work. Its own function writes a warning (2.13). From 2.14 on
    each thread has a flag."""
    asks: Callable[[], bool] | None = getattr(private, "_get_is_fx_tracing", None)
    return asks or functools.partial(vars(private).__getitem__, "_is_fx_tracing_flag")


_is_fx_tracing = asks_fx(_symbolic_trace)


def _is_read_by_dynamo() -> bool:
    return TracingContext.try_get() is not None


def _is_recorded() -> bool:
    """Quick: it is asked at each call."""
    return _is_dynamo_compiling() or _is_fx_tracing() or _is_tracing() or _num_dispatch_modes() > 0


def _has_hooks(model: torch.nn.Module) -> bool:
    return bool(
        model._forward_hooks
        or model._forward_pre_hooks
        or model._backward_hooks
        or model._backward_pre_hooks
        or _has_global_hooks()
    )
