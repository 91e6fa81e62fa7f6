"""What a graph of a Cell takes for constant, so that a call can tell whether it still holds.

MindSpore compiles attributes as constants, the modes of inner Cells too, and a graph goes on with the memory that
Parameters had when it was compiled: `set_data`, with it `load_param_into_net` and `load_state_dict`, gives them
another, and the graph computes with the old values, without a word (measured on 2.10, CPU). What is assigned in place
it sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter, itemgetter
from typing import Any

import mindspore as ms

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
    {"__compile_cell_hook__", "__parse_method__", "_mutable_flags", "sequence_modified", "_cell_init_args"}
)
"""What calls and compilations leave in a Cell besides."""


MAX_COMPARED = 4096
"""Elements of a constant tensor that is compared at each call."""


def initialise(model: ms.nn.Cell) -> None:
    """Fill Parameters that have no values yet, as a Cell's first call does."""
    for parameter in model.get_parameters():
        if parameter.has_init:
            parameter.init_data()


class Snapshot:
    """The state of Cells, and of all in them, at one moment."""

    def __init__(self, *models: ms.nn.Cell) -> None:
        cells = {id(each): each for model in models for _, each in model.cells_and_names()}
        self._held = [vars(each) for each in cells.values()]
        self._names = [_watched(held) for held in self._held]
        self._asks = [itemgetter(*names) for names in self._names]
        self._seen = [
            tuple(_copied(held[name]) for name in names) for held, names in zip(self._held, self._names, strict=True)
        ]
        self._hooks = self._hooks_now()
        self._classes = list(dict.fromkeys(map(type, cells.values())))
        self._constructs = self._constructs_now()
        self.has_hooks = any(held.get(name) for held in self._held for name in _HOOKS)
        tensors = {id(each): each for held in self._held for each in _tensors(held)}
        self._tensors = list(tensors.values())
        self.places = list(map(_place_of, self._tensors))
        self._constants = [each for held in self._held for each in held.values() if _is_small_constant(each)]
        self._contents = [each.asnumpy().tobytes() for each in self._constants]

    def holds(self) -> bool:
        """The Cells are as they were. Quick: it is asked at each call."""
        return self.attributes_hold() and self.tensors_hold()

    def attributes_hold(self) -> bool:
        """Their parts, attributes, modes and hooks are; nothing is said about what is in a tensor."""
        try:
            now = [ask(held) for ask, held in zip(self._asks, self._held, strict=True)]
            return now == self._seen and self._hooks_now() == self._hooks and self._constructs_now() == self._constructs
        except (KeyError, ValueError, TypeError, RuntimeError):
            return False  # Two tensors cannot be compared, so they are not one.

    def changed(self, held: dict[str, Any]) -> list[str]:
        """Of the attributes of one Cell: those that are others now."""
        number = next((n for n, each in enumerate(self._held) if each is held), None)
        if number is None:
            return []
        before = dict(zip(self._names[number], self._seen[number], strict=True))
        return [name for name, value in before.items() if not _is_same(value, held.get(name))]

    def tensors_hold(self) -> bool:
        """Weights and buffers lie where they did, and constants have the values that they had."""
        return (
            list(map(_place_of, self._tensors)) == self.places
            and [each.asnumpy().tobytes() for each in self._constants] == self._contents
        )

    def means(self, other: Snapshot) -> bool:
        """One graph serves both."""
        return self.places == other.places and self._contents == other._contents and self.has_attributes_of(other)

    def has_attributes_of(self, other: Snapshot) -> bool:
        """Hooks apart, since those of other Cells count as well, and one with hooks is not compiled."""
        try:
            return self._seen == other._seen and self._constructs == other._constructs
        except (ValueError, TypeError, RuntimeError):
            return False

    def _constructs_now(self) -> list[object]:
        """Methods of classes, as libraries replace them, and what Cells have in their place."""
        return [*map(_construct, self._classes), *(held["construct"] for held in self._held if "construct" in held)]

    def _hooks_now(self) -> object:
        if _hook_version is not None:
            return _hook_version()
        return [bool(held.get(name)) for held in self._held for name in _HOOKS]


def _is_small_constant(value: Any) -> bool:
    """A tensor that is neither a Parameter nor a buffer: a graph has its content of once, and nothing but the content
    tells that it was written to (measured). Larger ones are not looked at: that would cost more than the call."""
    is_constant = isinstance(value, ms.Tensor) and not isinstance(value, ms.Parameter)
    return is_constant and value.size <= MAX_COMPARED and value.dtype != ms.bfloat16


def _watched(held: dict[str, Any]) -> list[str]:
    """What its author gave a Cell, and those of MindSpore's own attributes that change what it computes."""
    own = [name for name in held if name not in _OF_ANY_CELL and name not in _BOOKKEEPING]
    return [*own, *(name for name in _TELLING if name in held)]


def _is_same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (ValueError, TypeError, RuntimeError):
        return False


def _copied(value: Any) -> Any:
    """One level deep, and a register as a plain dict, which is compared faster."""
    return dict(value) if isinstance(value, dict) else value.copy() if isinstance(value, (list, set)) else value


def _tensors(held: dict[str, Any]) -> Iterator[ms.Tensor]:
    for value in held.values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        yield from (each for each in parts if isinstance(each, ms.Tensor))
