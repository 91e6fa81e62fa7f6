"""A second object for the same module: what a job holds while its calls go through the compiled code.

`torch.compile` wraps a module, and a wrapper puts `_orig_mod.` before each name in a checkpoint and is of another
class. A proxy is of a subclass of the model's own class and shares its `__dict__`: parameters, buffers, modes, hooks'
registers and attributes are the model's own, and only its calls go elsewhere.

Some calls stay with the model. Those that PyTorch records (in a function that the job compiles, by `torch.export`,
`torch.jit.trace` or `torch.fx`): the job's own compiler gets all of it, as it sees through `torch.compile`. And those
under a dispatch mode, which acts on operators, where compiled code has kernels: under `FakeTensorMode` these end the
process (measured, 2.13).

Libraries call `forward` as well, past the hooks of the model: `proxy.forward(x)` goes where `proxy(x)` goes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import _symbolic_trace
from torch.nn.modules import module as all_modules

from autotune.backends.proxy_object import method_of, original, proxy_of
from autotune.backends.undo import UndoLog

__all__ = ["direct", "original", "proxy"]

_has_global_hooks: Callable[[], bool] = all_modules._has_any_global_hook
_num_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def proxy(model: torch.nn.Module, step: Any, call: Callable[..., Any], changes: UndoLog) -> torch.nn.Module:
    """See `ModelProxies`."""

    def called(*args: Any, **kwargs: Any) -> Any:
        if _is_recorded():
            # The object that is being recorded: exported weights get their names by it.
            return type(model).__call__(other, *args, **kwargs)
        return call(*args, **kwargs)

    other: torch.nn.Module = proxy_of(
        model, called, object.__new__, is_read=_is_read_by_dynamo, forward=_Forward(model, call)
    )
    return other


def direct(step: Callable[..., Any]) -> Callable[..., Any]:
    """See `ModelProxies`."""
    return step


class _Forward:
    """The method `forward` of a proxy; of its class, and of other objects of that class, it is the author's."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]) -> None:
        self._model = model
        self._call = call
        self._author: Any = None
        self._function: Any = None

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        if instance is None:
            return type(self._model).forward
        if torch.compiler.is_dynamo_compiling():
            return functools.partial(type(self._model).forward, instance)
        if original(instance) is not self._model:
            return instance.forward  # It has its author's class now.
        author = method_of(type(self._model), "forward")
        if not isinstance(author, FunctionType) or author is torch.nn.Module.forward:
            return self._model.forward
        if author is not self._author:
            self._author, self._function = author, self._around(author)
        return MethodType(self._function, instance)

    def _around(self, author: FunctionType) -> Callable[..., Any]:
        model, call = self._model, self._call

        @functools.wraps(author)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_recorded():
                return author(self, *args, **kwargs)
            # What took the place of the method may call it, as a wrapper does; and it is called without hooks.
            if "forward" in vars(model) or method_of(type(model), "forward") is not author or _has_hooks(model):
                return author(model, *args, **kwargs)
            return call(*args, **kwargs)

        return forward


def _is_read_by_dynamo() -> bool:
    return TracingContext.try_get() is not None


def _is_recorded() -> bool:
    return bool(
        torch.compiler.is_dynamo_compiling()
        or _symbolic_trace._is_fx_tracing_flag  # Asked by its function (2.13), PyTorch writes a warning.
        or torch._C._is_tracing()
        or _num_dispatch_modes()
    )


def _has_hooks(model: torch.nn.Module) -> bool:
    return bool(
        model._forward_hooks
        or model._forward_pre_hooks
        or model._backward_hooks
        or model._backward_pre_hooks
        or _has_global_hooks()
    )
