"""Calls of compiled code: what PyTorch's own guards do not see, and what compiled code cannot do, is found here.

Dynamo guards a model's parameters, attributes and modules, but not what its classes are: a method `forward` that is
replaced in a class (as libraries do that patch models) would not be called. Hooks for all modules are not guarded
either. AOTAutograd has no second derivatives, which fail in the job's own line; and a checkpoint ends the second run
of its forward pass by an exception, which looks like a failure of the compiled code (PyTorch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch
from torch.nn.modules import module as all_modules

from autotune.errors import UnsuitableCallError

_forward = attrgetter("forward")
_saved_tensor_hooks: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)


class CompiledStep:
    """Raises UnsuitableCallError, before anything runs, for a call that is not what was compiled and measured."""

    def __init__(self, model: torch.nn.Module, step: Callable[..., Any]) -> None:
        self._step = step
        self._classes = list({type(each) for each in model.modules()})
        self._forwards = [*map(_forward, self._classes)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if [*map(_forward, self._classes)] != self._forwards:
            raise UnsuitableCallError(
                "a class of the model's modules was given another forward() after the config was applied",
                tip="apply the config again once the model is as it is to be used",
                lasting=True,
            )
        if any(map(_is_iterator, args)) or any(map(_is_iterator, kwargs.values())):
            raise UnsuitableCallError("an input is an iterator, of which a call that fails has used up a part")
        if all_modules._global_forward_hooks or all_modules._global_forward_pre_hooks:
            raise UnsuitableCallError("hooks for all modules are registered, and compiled code would not call them")
        if torch.is_grad_enabled():
            if any(each.requires_grad for each in tensors_in((*args, *kwargs.values()))):
                raise UnsuitableCallError("the call's inputs require gradients, and the config was measured without")
            if _saved_tensor_hooks(True) is not None:
                raise UnsuitableCallError("what the call saves for gradients goes through hooks, as in a checkpoint")
        return self._step(*args, **kwargs)


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """A call's inputs that are tensors, those in tuples, lists and dicts too."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            found += tensors_in(value.values())
        elif isinstance(value, (tuple, list)):
            found += tensors_in(value)
    return found
