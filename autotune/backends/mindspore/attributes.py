"""What attributes of Cells hold, at any depth: in containers, in objects and classes of the model's author.

A graph has all of it as constants, so a call has to see where any of it changed.
"""

from __future__ import annotations

import enum
import sys
from argparse import Namespace
from collections import deque
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np

MAX_COMPARED = 4096
"""Elements of a constant tensor that is compared at each call."""
MAX_DEPTH = 8
MAX_VALUES = 4096
"""Values in containers and objects below the first level of an attribute: all of them are compared at each call."""
_NOT_AUTHORS = sys.stdlib_module_names | {"builtins", "mindspore", "numpy"}
_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})


class Attributes:
    """Copies attributes, and notes what they hold: tensors, constants, Cells and classes."""

    def __init__(self, *models: ms.nn.Cell) -> None:
        self.cells: list[ms.nn.Cell] = []
        """These and what is found in them, as part or otherwise. It grows while attributes are copied."""
        self.tensors: dict[int, ms.Tensor] = {}
        self.constants: dict[int, Any] = {}
        self.classes: dict[type, dict[str, Any]] = {}
        """Of the author's, with what is in them."""
        self._num_left = MAX_VALUES
        self._known: set[int] = set()
        """Cells and objects that were met before."""
        self._open: set[int] = set()
        """Containers that contain the one that is copied."""
        for each in models:
            self._note_cell(each)

    def register(self, parts: dict[str, Any]) -> dict[str, Any]:
        """A Cell's Parameters, buffers or inner Cells, as a plain dict, which is compared faster."""
        for each in parts.values():
            if isinstance(each, ms.nn.Cell):
                self._note_cell(each)
            else:
                self.note_tensors(each)
        return dict(parts)

    def note_tensors(self, value: Any) -> None:
        """A tensor, or those in a container, without a look at what is in them."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        self.tensors.update((id(each), each) for each in parts if isinstance(each, ms.Tensor))

    def copied(self, value: Any, depth: int = 0) -> Any:
        """Equal to the value as long as nothing in it is changed; it has to stand on the left side of `==`."""
        if type(value) in _SCALARS:
            return value
        if isinstance(value, (ms.Tensor, np.ndarray)):
            self._note_array(value)
        elif isinstance(value, ms.nn.Cell):
            self._note_cell(value)
        elif isinstance(value, (dict, list, tuple, deque)):
            return self._container(value, depth)
        elif isinstance(value, set):
            return value.copy()
        elif isinstance(value, type):
            self.note_class(value, depth)
        elif _has_attributes(value):
            return self._object(value, depth)
        return value

    def note_class(self, kind: type, depth: int = 0) -> None:
        """It and those it inherits from."""
        for each in kind.__mro__:
            if is_authors(each) and each not in self.classes and self._has_room(len(vars(each)), depth):
                self.classes[each] = held = dict(vars(each))
                held.update(
                    (name, self.copied(value, depth + 1)) for name, value in vars(each).items() if name[:2] != "__"
                )

    def _container(self, value: Any, depth: int) -> Any:
        if id(value) in self._open or (depth and not self._has_room(len(value), depth)):
            return value
        self._open.add(id(value))
        if isinstance(value, dict):
            copy: Any = {name: self.copied(each, depth + 1) for name, each in dict(value).items()}
        else:
            copy = [self.copied(each, depth + 1) for each in tuple(value)]
            if isinstance(value, deque):
                copy = deque(copy)
            elif isinstance(value, tuple):
                # A tuple of what cannot change is equal to itself at once.
                copy = value if all(one is other for one, other in zip(copy, value, strict=True)) else tuple(copy)
        self._open.remove(id(value))
        return copy

    def _object(self, value: Any, depth: int) -> Any:
        if id(value) in self._known:
            has_own_equality = getattr(type(value), "__eq__", None) is not object.__eq__
            return _Held(value, {}, {}) if has_own_equality else value
        held = getattr(value, "__dict__", None)
        if type(held) is not dict or not self._has_room(len(held), depth):
            return value
        self._known.add(id(value))
        self.note_class(type(value), depth + 1)
        return _Held(value, held, {name: self.copied(each, depth + 1) for name, each in dict(held).items()})

    def _has_room(self, num_values: int, depth: int) -> bool:
        if depth >= MAX_DEPTH or num_values > self._num_left:
            return False
        self._num_left -= num_values
        return True

    def _note_cell(self, cell: ms.nn.Cell) -> None:
        if id(cell) not in self._known:
            self._known.add(id(cell))
            self.cells.append(cell)

    def _note_array(self, value: Any) -> None:
        """A graph has the content of a tensor that is neither a Parameter nor a buffer, and of an array, of once, and
        nothing but the content tells that it was written to (measured). Larger ones are not looked at: that would
        cost more than the call."""
        if isinstance(value, ms.Tensor):
            self.tensors[id(value)] = value
        if not isinstance(value, ms.Parameter) and value.size <= MAX_COMPARED and value.dtype != ms.bfloat16:
            self.constants[id(value)] = value


class _Held:
    """Equal to an object as long as it is this one, and its attributes are what they were."""

    __slots__ = ("now", "then", "what")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, what: Any, now: dict[str, Any], then: dict[str, Any]) -> None:
        self.what = what
        self.now = now
        self.then = then

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Held):
            return self.what is other.what and self.then == other.then
        return other is self.what and self.then == self.now


def _has_attributes(value: Any) -> bool:
    """Of its author's: enumerations have none, and those of primitives are MindSpore's."""
    has_authors_class = is_authors(type(value)) and not isinstance(value, (enum.Enum, ms.ops.Primitive))
    return has_authors_class or isinstance(value, (SimpleNamespace, Namespace))


def is_authors(kind: Any) -> bool:
    """A class or a function that is neither Python's, NumPy's nor MindSpore's."""
    return str(kind.__module__).partition(".")[0] not in _NOT_AUTHORS


def content_of(constant: Any) -> bytes:
    """What is in a constant."""
    array = constant.asnumpy() if isinstance(constant, ms.Tensor) else constant
    return bytes(array.tobytes())
