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
    def of(cls, inputs: object) -> Arguments:
        if isinstance(inputs, Mapping):
            return cls(keyword=dict(inputs))
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
