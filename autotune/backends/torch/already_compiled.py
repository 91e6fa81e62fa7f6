"""A model that is compiled already when it is given: what it is without that, which is what is tuned.

`torch.compile(model)`, `model.compile()`, and a `forward` or a function under `@torch.compile`. Compiled once more it
would be the baseline of its own tuning. TorchScript and exported programs are not taken apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from autotune.backends.proxy_object import method_of, proxy_of

_IN_PLACE = "_compiled_call_impl"
_MARK = "get_compiler_config"


def uncompiled(given: Any) -> tuple[Any, str | None]:
    """A model or a function as it is without the compiler, and a sentence if that is another one. Nothing is changed
    in what is given."""
    if not isinstance(given, torch.nn.Module):
        function = _plain_function(given)
        return function, None if function is given else _sentence("the function", "torch.compile")
    if _is_optimized(given):
        model, _ = uncompiled(given._orig_mod)
        return model, _sentence("the model", "torch.compile(model)")
    decorated = method_of(type(given), "forward")
    forward = _plain_function(decorated)
    if forward is not decorated:
        return _called_by(given, forward=forward), _sentence("the model", "@torch.compile at its forward()")
    if vars(given).get(_IN_PLACE) is not None:
        return _called_by(given), _sentence("the model", "model.compile()")
    parts = [path for path, each in given.named_modules() if path and _is_compiled(each)]
    if not parts:
        return given, None
    return given, f"parts of the model are compiled already, and so they are in the untuned model: {', '.join(parts)}"


def _sentence(what: str, by: str) -> str:
    return f"{what} is compiled already, by {by}: what is tuned, and called untuned, is the uncompiled one"


def _is_compiled(module: torch.nn.Module) -> bool:
    return (
        hasattr(method_of(type(module), "forward"), _MARK)
        or vars(module).get(_IN_PLACE) is not None
        or _is_optimized(module)
    )


def _is_optimized(module: torch.nn.Module) -> bool:
    """Dynamo takes a second to import, and has compiled nothing before."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _plain_function(function: Any) -> Any:
    """Of what `torch.compile` made, and not `torch.compiler.disable`, which leaves the same mark."""
    while hasattr(function, _MARK):
        owner, inner = getattr(function, "__self__", None), getattr(function, "_torchdynamo_orig_callable", None)
        if inner is None:
            break
        function = inner if owner is None else MethodType(inner, owner)
    return function


def _called_by(model: torch.nn.Module, **methods: Callable[..., Any]) -> torch.nn.Module:
    """The model with other methods, whose calls are those of a module that is not compiled in place."""

    def called(*args: Any, **kwargs: Any) -> Any:
        call: Callable[..., Any] = other._call_impl
        return call(*args, **kwargs)

    other: torch.nn.Module = proxy_of(model, called, object.__new__, **methods)
    return other
