"""What a model returns, taken apart into parts that can be compared, stored and told apart by name.

Parts are looked for in containers and in the attributes of objects (dataclasses, caches of keys and values,
distributions), as deep as `nesting.DEEPEST`. What cannot be looked into is named, never left out in silence.
"""

from __future__ import annotations

import enum
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.protocol import Backend
from autotune.measure.parts import Part
from autotune.nesting import DEEPEST, Parts, is_pythons, leaves, parts_of
from autotune.workload.arguments import Arguments

MAX_PARTS = 10_000
MAX_READ = 1024
"""Items of an iterator that are read."""
_NUMBERS = (bool, int, float)
_BAGS = (SimpleNamespace, Namespace)
"""Classes of Python's own whose objects hold what their user puts there."""


@dataclass
class Observed:
    """What one call gave."""

    parts: list[Part] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    """Names and classes of what cannot be looked into."""
    tensors: dict[str, Any] = field(default_factory=dict)
    """The tensors themselves, by the names of their parts; empty unless they are asked for."""


def flatten(outputs: Any) -> list[Any]:
    """The leaves of nested tuples, lists, mappings and dataclasses, in order."""
    return [leaf for _, leaf in leaves(outputs)]


def observed(
    backend: Backend,
    value: Any,
    *,
    inputs: Arguments | None = None,
    reads: bool = False,
    holds: bool = False,
    whole: bool = False,
) -> Observed:
    """Take apart what a call returned.

    Args:
        inputs: What the call was given: the form of a tensor that is a view of one of these says so.
        reads: Iterators are read, and their items compared. Not where they are the job's.
        holds: The tensors are kept beside their parts, which are copies.
        whole: All of a large tensor is kept, too: its author says what of it is compared.
    """
    seen = Observed()
    storages = ((backend.storage(leaf), name) for name, leaf in (inputs.named_leaves() if inputs else ()))
    views = {storage: name for storage, name in storages if storage is not None}
    _Walk(backend, seen, views, reads=reads, holds=holds, whole=whole).look_at("output", value, DEEPEST)
    return seen


def parts_held(backend: Backend, name: str, value: Any, *, whole: bool = False) -> list[Part] | None:
    """A tensor, array, number or text as a part, or as those that are kept of a large one, unless it is kept `whole`;
    None for anything else."""
    if backend.spec(value) is not None:
        form = backend.form(value)
        sketch = None if whole or backend.sketch is None else backend.sketch(value)
        if sketch is not None:
            return [Part(name + end, form, array) for end, array in sketch.items()]
        array = backend.to_array(value)
        part = None if array is None else Part(name, form, array.copy())
        return None if part is None else [part] if whole else part.kept()
    if isinstance(value, np.ndarray) and value.dtype != object:
        part = Part(name, f"array of {value.dtype}", value.copy())
        return [part] if whole else part.kept()
    if isinstance(value, np.generic):
        return [Part(name, str(value.dtype), np.asarray(value))]
    plain = _plain(name, value)
    return None if plain is None else [plain]


def _plain(name: str, value: Any) -> Part | None:
    """A number or a text of Python, or what is known by its text."""
    kind = type(value).__name__
    if isinstance(value, (bool, float, complex)) or (isinstance(value, int) and value.bit_length() < 64):
        return Part(name, kind, np.asarray(value), is_tensor=False)
    if value is None or isinstance(value, (int, str, bytes, enum.Enum)):
        return Part(name, kind, np.asarray(value if isinstance(value, str) else repr(value)), False)
    return None


class _Walk:
    """One walk through one value."""

    def __init__(
        self,
        backend: Backend,
        seen: Observed,
        views: Mapping[object, str],
        *,
        reads: bool,
        holds: bool,
        whole: bool,
    ) -> None:
        self._backend = backend
        self._seen = seen
        self._views = views
        self._reads = reads
        self._holds = holds
        self._whole = whole
        self._known: dict[int, Any] = {}
        """Containers and objects that were met, held so that no other gets the id."""

    def look_at(self, name: str, value: Any, depth: int) -> None:
        opened = self._backend.opened(value)
        held = parts_held(self._backend, name, value, whole=self._whole) if opened is None else None
        if held is not None:
            self._seen.parts += [self._with_view(part, value) for part in held]
            if self._holds and held[0].is_tensor:
                self._seen.tensors[name] = value
            return
        if id(value) in self._known:
            return
        self._known[id(value)] = value
        if (together := _in_one_array(name, value)) is not None:
            self._seen.parts.append(together)
            return
        parts = self._parts(value) if opened is None else parts_of(opened)
        if parts is None or not depth or len(self._seen.parts) > MAX_PARTS:
            self._leave(name, value)
            return
        if not parts:
            self._seen.parts.append(Part(name, "empty", np.asarray(""), is_tensor=False))
        for end, item in parts:
            self.look_at(name + end, item, depth - 1)

    def _leave(self, name: str, value: Any) -> None:
        """Known by its text if that is the same in every process; else it is not compared."""
        text = _text_of(value)
        if text is not None:
            self._seen.parts.append(Part(name, type(value).__name__, np.asarray(text), is_tensor=False))
        elif not _is_code(value):
            self._seen.not_compared.append(f"{name} (a {type(value).__module__}.{type(value).__qualname__})")

    def _with_view(self, part: Part, value: Any) -> Part:
        storage = self._backend.storage(value) if self._views else None
        origin = None if storage is None else self._views.get(storage)
        return part if origin is None else replace(part, form=f"{part.form}, a view of {origin}")

    def _parts(self, value: Any) -> Parts | None:
        if hasattr(type(value), "__next__"):
            return [(f"[{place}]", item) for place, item in enumerate(islice(value, MAX_READ))] if self._reads else None
        found = parts_of(value)
        return _attributes(self._backend, value) if found is None else found


def _in_one_array(name: str, value: Any) -> Part | None:
    """A tuple or list of numbers of one type, or of texts: a shape, token ids."""
    if not isinstance(value, (tuple, list)) or len(value) < 2:
        return None
    kinds = {type(item) for item in value}
    if len(kinds) != 1 or not kinds <= {*_NUMBERS, str}:
        return None
    array = np.asarray(value)
    return None if array.dtype == object else Part(name, f"{next(iter(kinds)).__name__}s", array, is_tensor=False)


def _attributes(backend: Backend, value: Any) -> Parts | None:
    """Attributes and slots of an object of somebody's class; None for code, a model, and what Python or C++ holds."""
    if _is_code(value) or backend.is_model(value) or (is_pythons(type(value)) and not isinstance(value, _BAGS)):
        return None
    slots = (name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ())))
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | dict(getattr(value, "__dict__", {}))
    found = [(f".{name}", part) for name, part in held.items() if name not in ("__dict__", "__weakref__")]
    return found or None


def _names(slots: str | Iterable[str]) -> Iterator[str]:
    yield from ((slots,) if isinstance(slots, str) else slots)


def _is_code(value: Any) -> bool:
    """A function, a method or a class, which is no result."""
    return isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__"))


def _text_of(value: Any) -> str | None:
    """The text of a value that it tells whole and in every process alike: a date, a path, a framework's type."""
    if hasattr(value, "__next__") or (hasattr(value, "__dict__") and not is_pythons(type(value))):
        return None
    text = repr(value)
    return None if text.startswith("<") or " at 0x" in text else text


def output_arrays(backend: Backend, outputs: Any) -> list[NDArray[Any]]:
    """Every tensor in containers as an array, in the order of `flatten`; Python's numbers as 0-d arrays; the rest is
    left out. Copies: a model may return its input, or a buffer of its own that the next call overwrites."""
    arrays = []
    for leaf in flatten(outputs):
        array = backend.to_array(leaf)
        if array is None and isinstance(leaf, _NUMBERS):
            array = np.asarray(leaf)
        if array is not None:
            arrays.append(array.copy())
    return arrays
