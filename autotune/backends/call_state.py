"""`CallState`: what a call of a model can change, at one moment: its inputs, and what the model holds.

Tensors are compared by their content or by the framework's count of writes (`Backend.content`), numbers and texts by
value, containers and objects by what is in them (attributes of an object's class too), functions by their code,
anything else by `==`. What is held at two places is compared by that: which of two objects is the current one counts. A
new object with the same in it does not. Not seen: what C++ objects hold, and globals that the methods of a model use.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.outputs import parts_held
from autotune.backends.protocol import Backend
from autotune.measure.parts import CHANGED, OBJECT, Part
from autotune.nesting import Parts, has_fields, is_pythons

MAX_VALUES = 200_000
"""Values that are looked at, in containers and objects: some tenths of a second."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_REGISTER = re.compile(r"\._(?:modules|parameters|buffers|cells|params)\['([^']*)'\]")
_WEIGHT = re.compile(r"\._(?:parameters|params)\['[^']*'\]$")
_KEEPERS = (Mapping, tuple, list, deque, Set)
_WITHOUT_IDENTITY = (tuple, frozenset, type, Enum)
_GONE = object()


@dataclass(frozen=True)
class _Holder:
    """The mark of a container or an object, which shows in what it holds."""

    kind: type
    size: int
    code: CodeType | None = None
    """What a function runs."""


@dataclass(frozen=True)
class _Same:
    """The mark of an object that was met at another place before."""

    place: str


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

    def has_other_weights_than(self, before: CallState) -> bool:
        """Somebody wrote to parameters, or replaced some: a call does not. MindSpore's that are not trained are its
        buffers, to which calls write."""
        names = [name for name in {**self._marks, **before._marks} if _WEIGHT.search(name)]
        weights = [name for name in names if not self._is_buffer(name)]
        return any(not _is_same(self._mark(name), before._mark(name)) for name in weights)

    def _is_buffer(self, name: str) -> bool:
        return "._params[" in name and not getattr(self._values.get(name), "requires_grad", True)

    def changed_since(self, before: CallState, apart_from: Sequence[Any] = ()) -> list[Part]:
        """What is other than it was: tensors, numbers and texts, each with what it is now. `apart_from` are left out.

        A container that has grown shows in what it holds. An object that took another's place has a value where it can
        be named: the other place that holds it too, or a name in the code.
        """
        left_out = set(map(id, apart_from))
        names = [name for name in {**self._marks, **before._marks} if id(self._values.get(name)) not in left_out]
        changed = [name for name in names if not _is_same(self._mark(name), before._mark(name))]
        parts = [part for name in changed for part in self._parts(name, before._mark(name))]
        return [replace(part, name=_shown(part.name)) for part in parts]

    def _parts(self, name: str, before: object) -> list[Part]:
        """What is there now. Empty for what shows in what it holds."""
        if name not in self._marks:
            return [Part(name, "gone", np.asarray(""), is_tensor=False)]
        mark = self._mark(name)
        if isinstance(mark, _Same):
            return [Part(name, OBJECT, np.asarray(_shown(mark.place)), is_tensor=False)]
        if isinstance(mark, _Holder):
            shows = isinstance(before, _Holder) and (before.kind, before.code) == (mark.kind, mark.code)
            return [] if shows else [_named_part(name, mark.kind if mark.code is None else mark.code)]
        value = self._values[name]
        parts = parts_held(self._backend, name, value)
        return [_named_part(name, value if callable(value) else None)] if parts is None else parts

    def _mark(self, name: str) -> object:
        return self._marks.get(name, _GONE)

    def _marks_of(self, values: Parts) -> Iterator[tuple[str, object]]:
        """In the order of the roots, and of what they hold. Where a value without an identity of its own is held makes
        no difference: compiled code may make a tuple anew."""
        places: dict[int, str] = {}
        num_values = 0
        values.reverse()
        while values:
            name, value = values.pop()
            if type(value) in _PLAIN:
                self._values[name] = value
                yield name, (type(value), value)
                continue
            if id(value) in places:
                yield name, _Same(places[id(value)])
                continue
            if not isinstance(value, _WITHOUT_IDENTITY):
                places[id(value)] = name
            self._seen[id(value)] = value
            num_values += 1
            if num_values > MAX_VALUES:
                raise UncomparableError(f"they hold more than {MAX_VALUES} values")
            content = _array_content(value) if isinstance(value, np.ndarray) else self._backend.content(value)
            parts = _parts(self._backend, value) if content is None else None
            if parts is None:
                self._values[name] = value
                yield name, value if content is None else content
            else:
                code = value.__code__ if isinstance(value, FunctionType) else None
                yield name, _Holder(type(value), len(parts), code)
                values += [(name + end, part) for end, part in reversed(parts)]


def _named_part(name: str, value: Any) -> Part:
    """That this is there now: a class, a function or its code. A container may be of another kind in compiled code."""
    is_container = isinstance(value, type) and issubclass(value, _KEEPERS)
    written = getattr(value, "co_qualname", None) or getattr(value, "__qualname__", None)
    known = written is not None and not is_container
    return Part(name, OBJECT if known else CHANGED, np.asarray(written if known else ""), is_tensor=False)


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
    if isinstance(value, (type, Enum)) or is_pythons(type(value)):
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
    (_KEEPERS, _items),
    ((FunctionType,), _closure),
    ((MethodType,), lambda method: [(".__func__", method.__func__), (".__self__", method.__self__)]),
    ((partial,), lambda call: [(".func", call.func), (".args", call.args), (".keywords", call.keywords)]),
    ((SimpleNamespace,), lambda value: _named(vars(value))),
)
