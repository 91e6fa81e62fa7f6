"""`CallState`: what a call of a model can change, at one moment: its inputs, and what the model holds.

Tensors are compared by their content or by the framework's count of writes (`Backend.content`), numbers and texts by
value, containers and objects by what is in them (attributes of an object's class too), anything else by `==`. Not seen:
what C++ objects hold, and globals that the methods of a model use.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.outputs import part_of
from autotune.backends.protocol import Backend
from autotune.measure.parts import CHANGED, Part
from autotune.nesting import Parts, has_fields, is_pythons

MAX_VALUES = 200_000
"""Values that are looked at, in containers and objects: some tenths of a second."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_REGISTER = re.compile(r"\._(?:modules|parameters|buffers|cells|params)\['([^']*)'\]")
_GONE = object()


class UncomparableError(Exception):
    """There is no telling whether a call changed something."""


class CallState:
    """Equal if nothing was changed in between. Raises UncomparableError, and what a framework raises for a tensor that
    it cannot read."""

    def __init__(self, backend: Backend, roots: Mapping[str, Any]) -> None:
        """`roots`: what is looked at, by the name that messages give it."""
        self._backend = backend
        self._seen: dict[int, Any] = {}
        """By their ids, which no other object gets for as long as these are held."""
        self._values: dict[str, Any] = {}
        self._marks = dict(self._marks_of([*roots.items()]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallState) and self._marks == other._marks

    __hash__ = None  # type: ignore[assignment]

    def changed_since(self, before: CallState, apart_from: Sequence[Any] = ()) -> list[Part]:
        """What is other than it was: tensors, numbers and texts, each with what it is now. `apart_from` are left out.

        A container that has grown, and an object that is another one, show in what they hold. A number with a fraction
        has no value here, since it may be a time: that it changed is what can be compared.
        """
        left_out = set(map(id, apart_from))
        names = [name for name in {**self._marks, **before._marks} if id(self._values.get(name)) not in left_out]
        changed = [name for name in names if not _is_same(self._mark(name), before._mark(name))]
        parts = [(name, self._part(name)) for name in changed]
        return [replace(part, name=_shown(name)) for name, part in parts if part is not None]

    def _part(self, name: str) -> Part | None:
        """What is there now. None for a container and for an object, which shows in what it holds."""
        if name not in self._marks:
            return Part(name, "gone", np.asarray(""), is_tensor=False)
        value = self._values.get(name, _GONE)
        part = part_of(self._backend, name, value)
        if part is None and self._backend.content(value) is not None:
            return Part(name, CHANGED, np.asarray(""), is_tensor=False)  # A generator of random numbers.
        return part.without_value() if part is not None and part.form == "float" else part

    def _mark(self, name: str) -> object:
        return self._marks.get(name, _GONE)

    def _marks_of(self, values: Parts) -> Iterator[tuple[str, object]]:
        places: dict[int, str] = {}
        while values:
            name, value = values.pop()
            if type(value) in _PLAIN:
                self._values[name] = value
                yield name, (type(value), value)
                continue
            if id(value) in places:
                yield name, places[id(value)]
                continue
            places[id(value)] = name
            self._seen[id(value)] = value
            if len(places) > MAX_VALUES:
                raise UncomparableError(f"they hold more than {MAX_VALUES} values")
            content = _array_content(value) if isinstance(value, np.ndarray) else self._backend.content(value)
            parts = _parts(self._backend, value) if content is None else None
            if parts is None:
                self._values[name] = value
                yield name, value if content is None else content
            else:
                yield name, (type(value), len(parts))
                values += [(name + end, part) for end, part in parts]


def _is_same(mark: object, before: object) -> bool:
    """Objects that cannot be compared are the same if they are one."""
    if mark is before:
        return True
    try:
        return bool(mark == before)
    except (ValueError, TypeError, RuntimeError):
        return False


def _shown(name: str) -> str:
    """`model._modules['norm']._buffers['mean']` as an author would write it."""
    return _REGISTER.sub(r".\1", name)


def _parts(backend: Backend, value: Any) -> Parts | None:
    """What is in a container or an object; None for one that is compared as it is."""
    if hasattr(type(value), "__next__"):
        raise UncomparableError("one of them is an iterator, which a call reads on")
    for kinds, parts_of in _CONTAINERS:
        if isinstance(value, kinds):
            return parts_of(value)
    if isinstance(value, type) or is_pythons(type(value)):
        return None
    held = backend.attributes(value)
    if held is None and has_fields(value):
        held = {name: getattr(value, name, None) for name in value.__dataclass_fields__}
    return None if held is None else _named(held)


def _named(held: Mapping[str, Any]) -> Parts:
    return [(f".{name}", part) for name, part in held.items()]


def _entries(held: Mapping[Any, Any]) -> Parts:
    return [
        (f"[{key!r}]" if type(key) in _PLAIN else f"[{type(key).__name__} {place}]", part)
        for place, (key, part) in enumerate(held.items())
    ]


def _items(values: Any) -> Parts:
    return [(f"[{place}]", part) for place, part in enumerate(values)]


def _closure(function: FunctionType) -> Parts:
    return _items(cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell))


def _array_content(array: NDArray[Any]) -> object:
    return array.shape, str(array.dtype), zlib.crc32(array.tobytes())


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


_CONTAINERS: tuple[tuple[tuple[type, ...], Callable[[Any], Parts]], ...] = (
    ((Mapping,), _entries),
    ((tuple, list, deque, Set), _items),
    ((FunctionType,), _closure),
    ((MethodType,), lambda method: [(".__func__", method.__func__), (".__self__", method.__self__)]),
    ((partial,), lambda call: [(".func", call.func), (".args", call.args), (".keywords", call.keywords)]),
    ((SimpleNamespace,), lambda value: _named(vars(value))),
)
