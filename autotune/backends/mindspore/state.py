"""What a graph of a Cell takes for constant, so that a call can tell whether it still holds.

MindSpore compiles attributes as constants, the modes of inner Cells too, and a graph goes on with the memory that
Parameters had when it was compiled: `set_data`, with it `load_param_into_net` and `load_state_dict`, gives them
another, and the graph computes with the old values, without a word (measured on 2.10, CPU). What is assigned in place
it sees. A buffer that a graph writes is like a Parameter; one that it only reads is a constant.
"""

from __future__ import annotations

import enum
import sys
from argparse import Namespace
from collections import deque
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np

from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.tensors import array_of

# What attributes of Cells hold, at any depth: in containers, in objects and classes of the model's author.
#
# A graph has all of it as constants, so a call has to see where any of it changed.

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
        """The Cells and those found in them, as a part or otherwise. The list grows while attributes are copied."""
        self.tensors: dict[int, ms.Tensor] = {}
        self.constants: dict[int, Any] = {}
        self.buffers: list[ms.Tensor] = []
        """Buffers that are small enough to be compared."""
        self.classes: dict[type, dict[str, Any]] = {}
        """Classes of the author's, with what is in them."""
        self._num_left = MAX_VALUES
        self._known: set[int] = set()
        """Cells and objects that were met before."""
        self._open: set[int] = set()
        """Containers that contain the one that is copied."""
        for model in models:
            self._note_cell(model)

    def register(self, parts: dict[str, Any]) -> dict[str, Any]:
        """A Cell's Parameters, buffers or inner Cells, as a plain dict, which is compared faster."""
        for part in parts.values():
            if isinstance(part, ms.nn.Cell):
                self._note_cell(part)
            else:
                self.note_tensors(part)
            if isinstance(part, ms.Tensor) and _is_compared(part):
                self.buffers.append(part)
        return dict(parts)

    def note_tensors(self, value: Any) -> None:
        """A tensor, or those in a container, without a look at what is in them."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        self.tensors.update((id(part), part) for part in parts if isinstance(part, ms.Tensor))

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
        for base in kind.__mro__:
            if is_authors(base) and base not in self.classes and self._has_room(len(vars(base)), depth):
                self.classes[base] = held = dict(vars(base))
                held.update(
                    (name, self.copied(value, depth + 1)) for name, value in vars(base).items() if name[:2] != "__"
                )

    def _container(self, value: Any, depth: int) -> Any:
        if id(value) in self._open or (depth and not self._has_room(len(value), depth)):
            return value
        self._open.add(id(value))
        if isinstance(value, dict):
            copy: Any = {name: self.copied(part, depth + 1) for name, part in dict(value).items()}
        else:
            copy = [self.copied(part, depth + 1) for part in tuple(value)]
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
        return _Held(value, held, {name: self.copied(part, depth + 1) for name, part in dict(held).items()})

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
        if _is_compared(value):
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


def _is_compared(value: Any) -> bool:
    """A call looks at the content of this tensor or array."""
    return not isinstance(value, ms.Parameter) and value.size <= MAX_COMPARED and value.dtype != ms.bfloat16


def _has_attributes(value: Any) -> bool:
    """It has attributes of its author's: enumerations have none, and those of primitives are MindSpore's."""
    has_authors_class = is_authors(type(value)) and not isinstance(value, (enum.Enum, ms.ops.Primitive))
    return has_authors_class or isinstance(value, (SimpleNamespace, Namespace))


def is_authors(kind: Any) -> bool:
    """A class or a function that is neither Python's, NumPy's nor MindSpore's."""
    return str(kind.__module__).partition(".")[0] not in _NOT_AUTHORS


def content_of(constant: Any) -> bytes:
    """What is in a constant."""
    array = constant.asnumpy() if isinstance(constant, ms.Tensor) else constant
    return bytes(array.tobytes())


_place_of = getattr(first("mindspore._c_expression:TensorPy"), "_data_ptr", ms.Tensor.data_ptr)
"""What `Tensor.data_ptr` calls; without that it takes a third less."""
_hook_version = first("mindspore.common.hook_handle:_hook_version")
"""Another number after each hook that is put on any Cell, or taken from it; None in a release that does not count."""
_HOOKS = (
    "_lazy_forward_pre_hook",
    "_lazy_forward_hook",
    "_lazy_backward_pre_hook",
    "_lazy_backward_hook",
)
_construct = attrgetter("construct")
REGISTERS = ("_cells", "_params", "_buffers")
"""Dictionaries in which a Cell keeps what it is made of."""
_TELLING = ("training", *REGISTERS, "mixed_precision_type", "_amp_level", "_recompute_cell")
_OF_ANY_CELL = frozenset(vars(ms.nn.Cell()))
_BOOKKEEPING = frozenset(
    {
        *("__compile_cell_hook__", "__parse_method__", "_mutable_flags", "sequence_modified", "_cell_init_args"),
        "current_phase",
    }
)
"""What calls and compilations leave in a Cell besides."""


def initialise(model: ms.nn.Cell) -> None:
    """Fill Parameters that have no values yet, as a Cell's first call does."""
    for parameter in model.get_parameters():
        if parameter.has_init:
            parameter.init_data()


def attributes_of(cell: ms.nn.Cell) -> dict[str, Any]:
    """What a call can change in a Cell and a graph takes for constant, its Parameters and buffers besides; and what its
    author's classes hold, by names that no attribute has."""
    held = vars(cell)
    of_classes = {
        f"{kind.__qualname__}.{name}": value
        for kind in type(cell).__mro__
        if is_authors(kind)
        for name, value in vars(kind).items()
        if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")
    }
    return {**of_classes, **{name: held[name] for name in _watched(held)}}


class Snapshot:
    """The state of Cells, and of all in them, at one moment."""

    def __init__(self, *models: ms.nn.Cell) -> None:
        attributes = Attributes(*models)
        self._held: list[dict[str, Any]] = []
        self._names: list[list[str]] = []
        self._seen: list[tuple[Any, ...]] = []
        for cell in attributes.cells:
            attributes.note_class(type(cell))
            self._add(vars(cell), attributes)
        self._asks = [itemgetter(*names) for names in self._names]
        self._sizes = list(map(len, self._held))
        self._hooks = self._hooks_now()
        self._kinds = list(dict.fromkeys(map(type, attributes.cells)))
        self._constructs = list(map(_construct, self._kinds))
        self._classes = list(map(vars, attributes.classes))
        self._in_classes = list(attributes.classes.values())
        self.has_hooks = any(held.get(name) for held in self._held for name in _HOOKS)
        self._tensors = list(attributes.tensors.values())
        self.places = list(map(_place_of, self._tensors))
        self._constants = list(attributes.constants.values())
        self._contents = list(map(content_of, self._constants))
        self._read = {id(buffer): (buffer, content_of(buffer)) for buffer in attributes.buffers}
        """Buffers that graphs have as constants, with their content, by their identity."""
        self._live: dict[int, ms.Tensor] = {}
        """Buffers that graphs read at each call."""

    def _add(self, held: dict[str, Any], attributes: Attributes) -> None:
        names = _watched(held)
        self._held.append(held)
        self._names.append(names)
        copy = attributes.copied
        self._seen.append(
            tuple(attributes.register(held[name]) if name in REGISTERS else copy(held[name]) for name in names)
        )
        for name in held.keys() - names:
            attributes.note_tensors(held[name])

    def holds(self) -> bool:
        """The Cells are as they were, weights and buffers lie where they did, and constants have the values that they
        had. Quick: it is asked at each call."""
        places_hold = self.attributes_hold() and list(map(_place_of, self._tensors)) == self.places
        return places_hold and self.constants_hold() and not self._written()

    def attributes_hold(self) -> bool:
        """Their parts, attributes, modes and hooks are; nothing is said about what is in a tensor."""
        try:
            return (
                self._seen == [ask(held) for ask, held in zip(self._asks, self._held, strict=True)]
                and list(map(len, self._held)) == self._sizes  # A new attribute may hide one of the class.
                and self._classes == self._in_classes
                and list(map(_construct, self._kinds)) == self._constructs
                and self._hooks_now() == self._hooks
            )
        except Exception:
            return False  # One is gone; or two tensors, which cannot be compared, so they are not one.

    def changed(self, held: dict[str, Any]) -> list[str]:
        """Attributes of one Cell that are others now, are new or are gone."""
        number = next((n for n, attributes in enumerate(self._held) if attributes is held), None)
        if number is None:
            return []
        before = dict(zip(self._names[number], self._seen[number], strict=True))
        names = dict.fromkeys([*before, *_watched(held)])
        return [
            name for name in names if name not in before or name not in held or not is_same(before[name], held[name])
        ]

    def constants_hold(self) -> bool:
        """Small tensors that are neither Parameters nor buffers, and arrays, have the values that they had."""
        return list(map(content_of, self._constants)) == self._contents

    def note_live_buffers(self) -> None:
        """After the first call of a graph: a buffer that it has written it reads at each call as well."""
        self._leave_out({id(buffer): buffer for buffer in self._written()})

    def leave_out_buffers(self) -> None:
        """There is no graph that has them as constants."""
        self._leave_out({id(buffer): buffer for buffer, _ in self._read.values()})

    def with_live_buffers_of(self, other: Snapshot) -> Snapshot:
        """This one, for the same graph."""
        self._leave_out(other._live)
        return self

    def _leave_out(self, live: dict[int, ms.Tensor]) -> None:
        self._live |= live
        self._read = {key: read for key, read in self._read.items() if key not in live}

    def _written(self) -> list[ms.Tensor]:
        """Buffers that are not live and have other values now."""
        return [buffer for buffer, then in self._read.values() if content_of(buffer) != then]

    def classes_hold(self) -> bool:
        """What is in the author's classes is what was in them."""
        return is_same(self._in_classes, self._classes)

    def means(self, other: Snapshot) -> bool:
        """One graph serves both."""
        return (
            self.places == other.places
            and self._contents == other._contents
            and all(key in other._read and other._read[key][1] == then for key, (_, then) in self._read.items())
            and self.has_attributes_of(other)
        )

    def has_attributes_of(self, other: Snapshot) -> bool:
        """Hooks apart, since those of other Cells count as well, and one with hooks is not compiled."""
        try:
            return (
                self._names == other._names
                and self._seen == other._seen
                and self._constructs == other._constructs
                and self._in_classes == other._in_classes
            )
        except Exception:
            return False

    def _hooks_now(self) -> object:
        if _hook_version is not None:
            return _hook_version()
        return [bool(held.get(name)) for held in self._held for name in _HOOKS]


def _watched(held: dict[str, Any]) -> list[str]:
    """What its author gave a Cell, and those of MindSpore's own attributes that change what it computes."""
    own = [name for name in held if name not in _OF_ANY_CELL and name not in _BOOKKEEPING]
    return [*own, *(name for name in _TELLING if name in held)]


def is_same(one: Any, other: Any) -> bool:
    """The first is what `Attributes.copied` made of something, the second what that is now."""
    try:
        return one is other or bool(one == other)
    except (ValueError, TypeError, RuntimeError):
        return False


# `Content`: what is in a value at one moment, in containers, objects, arrays and tensors.


class Content:
    """Parameters apart: graphs share them."""

    def __init__(self, value: Any) -> None:
        self._value = [value]
        held = Attributes()
        self._copy = held.copied(self._value)
        tensors = (tensor for tensor in held.tensors.values() if not isinstance(tensor, ms.Parameter))
        arrays = (array for array in held.constants.values() if not isinstance(array, ms.Tensor))
        self._contents = [(array, bytes_of(array)) for array in (*tensors, *arrays)]

    def holds(self) -> bool:
        """The value is as it was."""
        return is_same(self._copy, self._value) and all(bytes_of(array) == then for array, then in self._contents)


def bytes_of(value: Any) -> bytes:
    """What is in a tensor or an array; NumPy has no bfloat16."""
    return content_of(array_of(value) if isinstance(value, ms.Tensor) else value)
