"""A plain function as a model, as `torch.compile` takes functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


class FunctionModel(torch.nn.Module):
    """A module whose calls are those of a function. The module of a bound method is a part of it; tensors and modules
    that a function takes from around it are not: they stay where they are, and are no parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            self.owner = owner
            self.train(owner.training)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def surroundings(self) -> dict[str, Any]:
        """Variables of its module that a plain function uses, by name: tensors, modules and other data."""
        function = inspect.unwrap(self.function)
        names, module = (function.__code__.co_names, function.__globals__) if inspect.isfunction(function) else ((), {})
        used = {name: module[name] for name in names if name in module}
        return {name: each for name, each in used.items() if not (inspect.isroutine(each) or inspect.isclass(each))}

    def around(self) -> list[Any]:
        """What the function takes from outside of its arguments: globals, variables of enclosing functions, and the
        attributes of the object whose method it is."""
        function = inspect.unwrap(self.function)
        owner = getattr(function, "__self__", None)
        enclosed = [content for each in getattr(function, "__closure__", None) or () for content in _contents(each)]
        return [*self.surroundings().values(), *enclosed, *getattr(owner, "__dict__", {}).values()]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _contents(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # The variable is not set yet.
        return []


def is_function(value: Any) -> bool:
    """A function of Python or torch, a lambda or a method; not an object that can be called."""
    return inspect.isroutine(value)
