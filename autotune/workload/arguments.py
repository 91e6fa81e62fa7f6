"""`Arguments`: one set of inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
        """The argument values, positional first, keywords in their order."""
        return [*self.positional, *(self.keyword or {}).values()]

    def with_leaves(self, leaves: list[Any]) -> Arguments:
        """The same call with other values, in the order of `leaves()`."""
        num_positional = len(self.positional)
        keyword = self.keyword and dict(zip(self.keyword, leaves[num_positional:], strict=True))
        return Arguments(tuple(leaves[:num_positional]), keyword)


def _is_whole_call(inputs: Any) -> bool:
    """A tuple of positional and a dict of keyword arguments. Two positional arguments look so too, but then no argument
    is a tensor, and such inputs cannot be tuned."""
    return (
        isinstance(inputs, tuple)
        and len(inputs) == 2
        and isinstance(inputs[0], tuple)
        and isinstance(inputs[1], Mapping)
        and all(isinstance(name, str) for name in inputs[1])
    )
