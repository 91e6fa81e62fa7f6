"""Calls of compiled code: what PyTorch's own guards do not see, and what compiled code cannot do, is found here.

Dynamo guards a model's parameters, attributes and modules, attributes and properties of their classes too, but not
methods of classes: one that is replaced (as libraries do that patch models) would not be called. Hooks for all modules
are not guarded either. No trial has compared gradients of inputs; and a checkpoint ends the second run of its forward
pass by an exception, which looks like a failure of the compiled code (PyTorch 2.13). A release that does not tell of a
checkpoint's hooks (2.6) compiles such calls, and the exception is let through.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules import module as all_modules
from torch.utils import checkpoint

from autotune.backends.torch.containers import tensors_in
from autotune.errors import UnsuitableCallError, let_through

_saved_tensor_hooks: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)
_EndOfCheckpoint: Any = getattr(checkpoint, "_StopRecomputationError", ())


class CompiledStep:
    """Raises UnsuitableCallError, before anything runs, for a call that is not what was compiled and measured."""

    def __init__(self, model: torch.nn.Module, step: Callable[..., Any], *, input_gradients: bool = False) -> None:
        """`input_gradients`: it was measured with gradients of its inputs recorded."""
        self._step = step
        self._input_gradients = input_gradients
        self._methods = ClassMethods(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._methods.have_changed():
            raise UnsuitableCallError(
                "a class of the model's modules was given another method after the config was applied",
                tip="apply the config again once the model is as it is to be used",
                lasting=True,
            )
        if any(map(_is_iterator, args)) or any(map(_is_iterator, kwargs.values())):
            raise UnsuitableCallError("an input is an iterator: a call that fails would have consumed part of it")
        if (
            all_modules._global_forward_hooks
            or all_modules._global_forward_pre_hooks
            or all_modules._global_backward_hooks
            or all_modules._global_backward_pre_hooks
        ):
            raise UnsuitableCallError("hooks for all modules are registered, and compiled code would not call them")
        if torch.is_grad_enabled():
            if not self._input_gradients and any(each.requires_grad for each in tensors_in((*args, *kwargs.values()))):
                raise UnsuitableCallError(
                    "the call's inputs require gradients, and the config was measured without gradients"
                )
            if _saved_tensor_hooks(True) is not None:
                raise UnsuitableCallError("what the call saves for gradients goes through hooks, as in a checkpoint")
        try:
            return self._step(*args, **kwargs)
        except _EndOfCheckpoint as end:
            let_through(end)
            raise


class ClassMethods:
    """The methods of a model's classes and their bases. Of PyTorch's own classes only `forward` is looked at."""

    def __init__(self, model: torch.nn.Module) -> None:
        classes = dict.fromkeys(type(each) for each in model.modules())
        self._classes = [*dict.fromkeys(base for each in classes for base in each.__mro__)]
        self._then = [*map(_methods, self._classes)]
        self._held = [*map(vars, self._classes)]
        self._asks = [(itemgetter(*then), held) for then, held in zip(self._then, self._held, strict=True) if then]
        self._seen = [ask(held) for ask, held in self._asks]
        self._sizes = [*map(len, self._held)]

    def have_changed(self) -> bool:
        """Whether any was replaced, added or taken away. Quick: it is asked at each call."""
        try:
            if [ask(held) for ask, held in self._asks] != self._seen:
                return True
        except KeyError:
            return True
        sizes = [*map(len, self._held)]
        if sizes != self._sizes:  # An attribute of another kind may have come.
            if [*map(_methods, self._classes)] != self._then:
                return True
            self._sizes = sizes
        return False


def _methods(kind: type) -> dict[str, Any]:
    is_own = kind.__module__.partition(".")[0] not in ("torch", "builtins")
    return {
        name: each
        for name, each in vars(kind).items()
        if isinstance(each, (FunctionType, classmethod)) and (is_own or name == "forward")
    }


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")
