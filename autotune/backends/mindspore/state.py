"""What a graph of a Cell takes for constant, so that a call can tell whether it still holds.

MindSpore compiles attributes as constants, the modes of inner Cells too, and a graph goes on with the memory that
Parameters had when it was compiled: `set_data`, with it `load_param_into_net` and `load_state_dict`, gives them
another, and the graph computes with the old values, without a word (measured on 2.10, CPU). What is assigned in place
it sees.
"""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.attributes import Attributes, content_of, is_authors
from autotune.backends.mindspore.moved_names import first

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
        for each in attributes.cells:
            attributes.note_class(type(each))
            self._add(vars(each), attributes)
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
        """The Cells are as they were. Quick: it is asked at each call."""
        return self.attributes_hold() and self.tensors_hold()

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
        """Of the attributes of one Cell: those that are others now, are new or are gone."""
        number = next((n for n, each in enumerate(self._held) if each is held), None)
        if number is None:
            return []
        before = dict(zip(self._names[number], self._seen[number], strict=True))
        names = dict.fromkeys([*before, *_watched(held)])
        return [
            name for name in names if name not in before or name not in held or not is_same(before[name], held[name])
        ]

    def tensors_hold(self) -> bool:
        """Weights and buffers lie where they did, and constants have the values that they had."""
        return list(map(_place_of, self._tensors)) == self.places and self.constants_hold()

    def constants_hold(self) -> bool:
        """Small tensors that are neither Parameters nor buffers, and arrays, have the values that they had."""
        return list(map(content_of, self._constants)) == self._contents

    def classes_hold(self) -> bool:
        """What is in the author's classes is what was in them."""
        return is_same(self._in_classes, self._classes)

    def means(self, other: Snapshot) -> bool:
        """One graph serves both."""
        return self.places == other.places and self._contents == other._contents and self.has_attributes_of(other)

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
