"""What MindSpore compiles for in a call's arguments, and how many values of numbers, strings and booleans may come.

They are constants of a graph: each further value is compiled for, and MindSpore lets go of no graph of ms.jit
(measured on 2.10: 170 ms and 5 MiB for a small Cell).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from types import MethodType
from typing import Any

import mindspore as ms
import numpy as np

from autotune.errors import UnsuitableCallError

MAX_VALUES = 8
"""Values of a Cell's arguments that are compiled for."""
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), np.generic)


def call_key(value: Any) -> Hashable:
    """Equal for arguments that MindSpore has one graph for: shapes and types of tensors, values of what is none."""
    if isinstance(value, ms.Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(call_key, value))
    if isinstance(value, dict):
        return tuple((name, call_key(each)) for name, each in value.items())
    kind: Any = type(value)
    return (kind, value) if isinstance(value, (bool, int, float, str, type(None))) else kind


class CallValues:
    """The values that one compiled Cell was called with: numbers, strings and the like, in containers too."""

    def __init__(self, cell: ms.nn.Cell) -> None:
        self._names = _argument_names(type(cell).construct)
        self._known: set[Hashable] = set()
        self._refused: set[Hashable] = set()
        """Since the last call that was let through."""
        self._by_name: dict[str, set[Hashable]] = {}

    def problem(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Note the values of a call. Returns why it is not to be compiled, or None."""
        found = {name: key for name, value in self._named(args, kwargs) if (key := _value_key(value)) is not None}
        values = frozenset(found.items())
        if values not in self._known:
            self._note(found)
            if len(self._known) >= MAX_VALUES:
                if len(self._refused) < MAX_VALUES:
                    self._refused.add(values)
                return self._sentence()
            self._known.add(values)
        self._refused.clear()
        return None

    def require(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises UnsuitableCallError for a call that is not to be compiled: for good, where all of late were none."""
        problem = self.problem(args, kwargs)
        if problem is not None:
            raise UnsuitableCallError(problem, tip=self.tip, lasting=len(self._refused) >= MAX_VALUES)

    @property
    def tip(self) -> str:
        """What the model's author can do."""
        return f"give {self._changing!r} as a Tensor, or as mindspore.mutable({self._changing})"

    @property
    def _changing(self) -> str:
        """The argument that had the most values."""
        return max(self._by_name, key=lambda name: len(self._by_name[name]))

    def _sentence(self) -> str:
        return f"argument {self._changing!r} has had {MAX_VALUES} values, and MindSpore compiles for each further one"

    def _note(self, found: dict[str, Hashable]) -> None:
        for name, key in found.items():
            values = self._by_name.setdefault(name, set())
            if len(values) <= MAX_VALUES:
                values.add(key)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for number, value in enumerate(args):
            yield self._names[number] if number < len(self._names) else f"{number + 1}", value
        yield from kwargs.items()


def bounded(cell: ms.nn.Cell, compiled: Callable[..., Any], warn: Callable[[str], None]) -> Callable[..., Any]:
    """What is compiled of one Cell inside of others: it runs in Python for values that are too many. A method of the
    Cell, as MindSpore's parser wants it."""
    values, plain = CallValues(cell), cell.construct

    @functools.wraps(compiled)
    def construct(_: ms.nn.Cell, *args: Any, **kwargs: Any) -> Any:
        problem = values.problem(args, kwargs)
        if problem is None:
            return compiled(*args, **kwargs)
        warn(f"{problem}: such calls of {type(cell).__name__} run in Python; {values.tip}")
        return plain(*args, **kwargs)

    return MethodType(construct, cell)


def _value_key(value: Any) -> Hashable | None:
    """Another one for another constant. None: no part of the argument is one."""
    if isinstance(value, ms.Tensor) or getattr(value, "__ms_mutable__", False):
        return None
    if isinstance(value, _CONSTANTS):
        # NaN is not equal to itself.
        return type(value), repr(value)
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, (tuple, list)):
        keys = tuple(map(_value_key, value))
        return keys if any(each is not None for each in keys) else None
    return None


def _argument_names(construct: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(construct).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind in kinds][1:]
