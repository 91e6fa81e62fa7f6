"""`Arguments`: one set of inputs of a model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.nesting import leaves, with_leaves


@dataclass(frozen=True)
class Arguments:
    """One set of inputs, as positional and keyword arguments of a call."""

    positional: tuple[Any, ...] = ()
    keyword: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, inputs: Any) -> Arguments:
        """A tensor, a tuple or list of positional arguments, a dict of keyword arguments, or `((...), {...})`: both."""
        if isinstance(inputs, Mapping):
            return cls(keyword=dict(inputs))
        if _is_whole_call(inputs):
            return cls(tuple(inputs[0]), dict(inputs[1]) or None)
        if isinstance(inputs, (tuple, list)):
            return cls(positional=tuple(inputs))
        return cls(positional=(inputs,))

    def call(self, function: Callable[..., Any]) -> Any:
        return function(*self.positional, **(self.keyword or {}))

    def extended_by(self, more: Arguments) -> Arguments:
        """A call with the arguments of both, positional ones in this order."""
        keyword = {**(self.keyword or {}), **(more.keyword or {})}
        return Arguments((*self.positional, *more.positional), keyword or None)

    def leaves(self) -> list[Any]:
        """What is in the arguments, positional ones first: tensors and other values, also within containers."""
        return [leaf for _, leaf in self.named_leaves()]

    def named_leaves(self) -> list[tuple[str, Any]]:
        """The leaves with what a message calls them: `argument 1['boxes']`, `mask`."""
        named = [(f"argument {place}", value) for place, value in enumerate(self.positional, start=1)]
        named += (self.keyword or {}).items()
        return [found for name, value in named for found in leaves(value, name)]

    def with_leaves(self, values: list[Any]) -> Arguments:
        """This call with other values, in the order of `leaves()`."""
        left = iter(values)
        positional, keyword = with_leaves((self.positional, dict(self.keyword or {})), lambda _: next(left))
        return Arguments(positional, keyword or None)


def _is_whole_call(inputs: Any) -> bool:
    """A tuple of positional and a dict of keyword arguments. Two positional arguments that are a tuple and a dict are
    written within another such pair: `((tuple, dict), {})`."""
    return (
        isinstance(inputs, tuple)
        and len(inputs) == 2
        and isinstance(inputs[0], tuple)
        and isinstance(inputs[1], Mapping)
        and all(isinstance(name, str) for name in inputs[1])
    )


_BY_PLACE = re.compile(r"argument (\d+)(.*)", re.DOTALL)


def named(name: str, names: Sequence[str]) -> str:
    """`argument 2['a']` as `mask['a']`, if the second parameter is called `mask`."""
    found = _BY_PLACE.fullmatch(name)
    if found is None or int(found[1]) > len(names):
        return name
    return f"{names[int(found[1]) - 1]}{found[2]}"


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Those of what may be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind in kinds]
