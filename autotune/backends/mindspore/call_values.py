"""What MindSpore compiles for in a call's arguments, and how many values of those that are no tensors may come.

They are constants of a graph, which MindSpore never lets go of (measured on 2.10: 170 ms and 5 MiB for a small Cell).
Each further number, string or boolean is compiled for. So is each list, at each call, and each container of tensors
unless it is `mutable`. An array or an object is known by its identity: what is written into it is not seen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator
from types import MethodType
from typing import Any

import mindspore as ms
import numpy as np

from autotune.backends.mindspore.state import Content
from autotune.errors import UnsuitableCallError

MAX_VALUES = 8
"""Values of a Cell's arguments that are compiled for."""
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...), slice, range, np.generic)


def call_key(value: Any) -> Hashable:
    """Equal for arguments that MindSpore has one graph for: shapes and types of tensors, values of what is none."""
    if isinstance(value, ms.Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(call_key, value))
    if isinstance(value, dict):
        return tuple((name, call_key(part)) for name, part in value.items())
    kind: Any = type(value)
    return (kind, value) if isinstance(value, (bool, int, float, str, type(None))) else kind


def as_variables(value: Any) -> Any:
    """A container of nothing but tensors is made `mutable`, so that it has one graph as tensors have."""
    return ms.mutable(value) if type(value) in (list, tuple, dict) and _is_of_tensors(value) else value


class CallValues:
    """The values that one compiled Cell was called with, in containers too."""

    def __init__(self, cell: ms.nn.Cell) -> None:
        self._names = _argument_names(type(cell).construct)
        self._known: set[Hashable] = set()
        self._refused: set[Hashable] = set()
        """Since the last call that was let through."""
        self._by_name: dict[str, set[Hashable]] = {}
        self._constants: dict[int, Content] = {}
        """What is known by its identity, as it was compiled for."""

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as they are given to compiled code."""
        return tuple(map(as_variables, args)), {name: as_variables(value) for name, value in kwargs.items()}

    def refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UnsuitableCallError | None:
        """Note the values of a call. Returns why it is not to be compiled, or None."""
        constants: list[Any] = []
        named = {name: self._key(value, constants) for name, value in self._named(args, kwargs)}
        found = {name: key for name, key in named.items() if key is not None}
        values = frozenset(found.items())
        if any(map(self._is_stale, constants)):
            return UnsuitableCallError(
                "an array or an object among the arguments was changed, and a graph has it as a constant",
                tip="give what changes as a Tensor",
            )
        if values not in self._known:
            self._note(found)
            if len(self._known) >= MAX_VALUES:
                return self._one_too_many(values)
            self._known.add(values)
            self._constants.update((id(constant), Content(constant)) for constant in constants)
        self._refused.clear()
        return None

    def _is_stale(self, constant: Any) -> bool:
        known = self._constants.get(id(constant))
        return known is not None and not known.holds()

    def _one_too_many(self, values: Hashable) -> UnsuitableCallError:
        """For good, where as many others came in a row."""
        if len(self._refused) < MAX_VALUES:
            self._refused.add(values)
        name = max(self._by_name, key=lambda name: len(self._by_name[name]))
        return UnsuitableCallError(
            f"argument {name!r} has had {MAX_VALUES} values (a list is another one at each call), and MindSpore "
            "compiles for each further one",
            tip=f"give {name!r} as a Tensor, or as mindspore.mutable({name})",
            lasting=len(self._refused) >= MAX_VALUES,
        )

    def _key(self, value: Any, constants: list[Any], *, is_within: bool = False) -> Hashable | None:
        """Another one for another constant, None for what is a variable. What goes by its identity is appended."""
        if getattr(value, "__ms_mutable__", False) or (isinstance(value, ms.Tensor) and not is_within):
            return None
        if isinstance(value, _CONSTANTS):
            # NaN is not equal to itself.
            return type(value), repr(value)
        if isinstance(value, (tuple, list, dict)):
            return self._key_of_container(value, constants)
        constants.append(value)
        return id(value)

    def _key_of_container(self, value: Any, constants: list[Any]) -> Hashable | None:
        parts = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
        keys = tuple(self._key(part, constants, is_within=True) for part in parts)
        if isinstance(value, list):
            return object()
        return keys if any(key is not None for key in keys) else None

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
        args, kwargs = values.given(args, kwargs)
        refusal = values.refusal(args, kwargs)
        if refusal is None:
            return compiled(*args, **kwargs)
        warn(f"{refusal}: such calls of {type(cell).__name__} run in Python; {refusal.tip}")
        return plain(*args, **kwargs)

    return MethodType(construct, cell)


def _is_of_tensors(value: Any) -> bool:
    if type(value) in (list, tuple, dict):
        parts = value.values() if isinstance(value, dict) else value
        return bool(value) and all(map(_is_of_tensors, parts))
    return isinstance(value, ms.Tensor) and not isinstance(value, ms.Parameter)


def _argument_names(construct: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(construct).parameters.values()
    except (TypeError, ValueError):
        return []
    return [parameter.name for parameter in parameters if parameter.kind in kinds][1:]
