"""`CallState`: what a call of a model can change, at one moment: its inputs, and what the model holds.

Tensors are compared by their content or by the framework's count of writes (`Backend.content`), numbers and texts by
value, containers and objects by what is in them, anything else by `==`. Not seen: what C++ objects hold, and
globals that the methods of a model use.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.protocol import Backend
from autotune.nesting import has_fields

MAX_VALUES = 200_000
"""Values that are looked at, in containers and objects: some tenths of a second."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})


class UncomparableError(Exception):
    """There is no telling whether a call changed something."""


class CallState:
    """Equal if nothing was changed in between. Raises UncomparableError, and what a framework raises for a tensor that
    it cannot read."""

    def __init__(self, backend: Backend, root: Any) -> None:
        self._seen: dict[int, Any] = {}
        """By their ids, which no other object gets for as long as these are held."""
        self._marks = list(self._marks_of(backend, root))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallState) and self._marks == other._marks

    __hash__ = None  # type: ignore[assignment]

    def _marks_of(self, backend: Backend, root: Any) -> Iterator[object]:
        places: dict[int, int] = {}
        values = [root]
        while values:
            value = values.pop()
            if type(value) in _PLAIN:
                yield type(value), value
                continue
            if id(value) in places:
                yield places[id(value)]
                continue
            places[id(value)] = len(places)
            self._seen[id(value)] = value
            if len(places) > MAX_VALUES:
                raise UncomparableError(f"they hold more than {MAX_VALUES} values")
            content = _array_content(value) if isinstance(value, np.ndarray) else backend.content(value)
            parts = _parts(backend, value) if content is None else None
            if parts is None:
                yield value if content is None else content
            else:
                yield type(value), len(parts)
                values += parts


def _parts(backend: Backend, value: Any) -> list[Any] | None:
    """What is in a container or an object; None for one that is compared as it is."""
    if hasattr(type(value), "__next__"):
        raise UncomparableError("one of them is an iterator, which a call reads on")
    for kinds, parts_of in _CONTAINERS:
        if isinstance(value, kinds):
            return parts_of(value)
    if isinstance(value, type) or type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
        return None
    held = backend.attributes(value)
    if held is None and has_fields(value):
        held = {name: getattr(value, name, None) for name in value.__dataclass_fields__}
    return None if held is None else _entries(held)


def _entries(held: Mapping[Any, Any]) -> list[Any]:
    return [*held, *held.values()]


def _closure(function: FunctionType) -> list[Any]:
    return [each.cell_contents for each in function.__closure__ or () if _is_filled(each)]


def _array_content(array: NDArray[Any]) -> object:
    return array.shape, str(array.dtype), zlib.crc32(array.tobytes())


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


_CONTAINERS: tuple[tuple[tuple[type, ...], Callable[[Any], list[Any]]], ...] = (
    ((Mapping,), _entries),
    ((tuple, list, deque, Set), list),
    ((FunctionType,), _closure),
    ((MethodType,), lambda method: [method.__func__, method.__self__]),
    ((partial,), lambda call: [call.func, call.args, call.keywords]),
    ((SimpleNamespace,), lambda value: _entries(vars(value))),
)
