"""What a graph of a Cell takes for constant, so that a call can tell whether it still holds.

MindSpore compiles attributes as constants, the modes of inner Cells too, and a graph goes on with the memory that
Parameters had when it was compiled: `set_data`, with it `load_param_into_net` and `load_state_dict`, gives them
another, and the graph computes with the old values, without a word (measured on 2.10, CPU). What is assigned in place
it sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import mindspore as ms

_HOOKS = (
    "_lazy_forward_pre_hook",
    "_lazy_forward_hook",
    "_lazy_backward_pre_hook",
    "_lazy_backward_hook",
)
_TELLING = ("training", "_cells", "_params", "_buffers", "mixed_precision_type", "_amp_level", "_recompute_cell")
_OF_ANY_CELL = frozenset(vars(ms.nn.Cell()))
_BOOKKEEPING = frozenset(
    {"__compile_cell_hook__", "__parse_method__", "_mutable_flags", "sequence_modified", "_cell_init_args"}
)
"""What calls and compilations leave in a Cell besides."""


MAX_COMPARED = 4096
"""Elements of a constant tensor that is compared at each call."""


class Snapshot:
    """The state of a Cell at one moment."""

    def __init__(self, model: ms.nn.Cell) -> None:
        self._held = [vars(each) for _, each in model.cells_and_names()]
        self._names = [_watched(held) for held in self._held]
        self._asks = [itemgetter(*names) for names in self._names]
        self._seen = [
            tuple(_copied(held[name]) for name in names) for held, names in zip(self._held, self._names, strict=True)
        ]
        tensors = {id(each): each for held in self._held for each in _tensors(held)}
        self._tensors = list(tensors.values())
        self.places = [each.data_ptr() for each in self._tensors]
        self._constants = [each for held in self._held for each in held.values() if _is_small_constant(each)]
        self._contents = [each.asnumpy().tobytes() for each in self._constants]
        self.has_hooks = any(held.get(name) for held in self._held for name in _HOOKS)

    def holds(self) -> bool:
        """The Cell is as it was. Quick: it is asked at each call."""
        try:
            return (
                [ask(held) for ask, held in zip(self._asks, self._held, strict=True)] == self._seen
                and [each.data_ptr() for each in self._tensors] == self.places
                and [each.asnumpy().tobytes() for each in self._constants] == self._contents
            )
        except (KeyError, ValueError, TypeError, RuntimeError):
            return False  # Two tensors cannot be compared, so they are not one.

    def means(self, other: Snapshot) -> bool:
        """One graph serves both."""
        try:
            same = self.places == other.places and self._contents == other._contents
            return same and self._meaning() == other._meaning()
        except (ValueError, TypeError, RuntimeError):
            return False

    def _meaning(self) -> list[dict[str, Any]]:
        """Without the registers of hooks, which MindSpore makes when it looks into them."""
        both = zip(self._names, self._seen, strict=True)
        return [{n: each for n, each in zip(names, seen, strict=True) if n not in _HOOKS} for names, seen in both]


def _is_small_constant(value: Any) -> bool:
    """A tensor that is neither a Parameter nor a buffer: a graph has its content of once, and nothing but the content
    tells that it was written to (measured). Larger ones are not looked at: that would cost more than the call."""
    is_constant = isinstance(value, ms.Tensor) and not isinstance(value, ms.Parameter)
    return is_constant and value.size <= MAX_COMPARED and value.dtype != ms.bfloat16


def _watched(held: dict[str, Any]) -> list[str]:
    """What its author gave a Cell, and those of MindSpore's own attributes that change what it computes."""
    own = [name for name in held if name not in _OF_ANY_CELL and name not in _BOOKKEEPING]
    return [*own, *(name for name in (*_TELLING, *_HOOKS) if name in held)]


def _copied(value: Any) -> Any:
    """One level deep, and a register as a plain dict, which is compared faster."""
    return dict(value) if isinstance(value, dict) else value.copy() if isinstance(value, (list, set)) else value


def _tensors(held: dict[str, Any]) -> Iterator[ms.Tensor]:
    for value in held.values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        yield from (each for each in parts if isinstance(each, ms.Tensor))
