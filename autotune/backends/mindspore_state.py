"""What a graph of a Cell takes for constant, so that a call can tell whether it still holds.

MindSpore compiles attributes as constants, the modes of inner Cells too, and a graph goes on with the memory that
Parameters had when it was compiled: `set_data`, with it `load_param_into_net` and `load_state_dict`, gives them
another, and the graph computes with the old values, without a word (measured on 2.10, CPU). What is assigned in place
it sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms

_HOOKS = (
    "_lazy_forward_pre_hook",
    "_lazy_forward_hook",
    "_lazy_backward_pre_hook",
    "_lazy_backward_hook",
)
_BOOKKEEPING = frozenset(
    {
        *_HOOKS,
        *("_lazy_forward_pre_hook_with_kwargs", "_lazy_forward_hook_with_kwargs", "_lazy_forward_hook_always_called"),
        *("_lazy_construct_sig", "_lazy_user_parameters", "_lazy_non_persistent_buffers_set"),
        *("_lazy_state_dict_hooks", "_lazy_state_dict_pre_hooks"),
        *("_lazy_load_state_dict_pre_hooks", "_lazy_load_state_dict_post_hooks"),
        *("_cell_backward_hook", "_cell_backward_pre_hook", "_is_recursion_hook"),
        *("_compile_cache", "_phase_cache", "_compile_phase", "_phase", "arguments_key", "_jit_graph_name"),
        *("_compiled", "_init_flag", "_is_check_and_refresh", "__compile_cell_hook__", "__parse_method__"),
        *("_mutable_flags", "_has_mutable_args_list", "sequence_modified"),
        *("requires_grad", "is_top_cell", "grad_ops_label", "_autotune_journal"),
        *("_id", "_exist_objs", "_exist_names", "_scope", "_param_prefix", "_parameter_layout_dict"),
    }
)
"""Attributes of a Cell that say nothing of what it computes: calls, gradients and a Cell around it change them."""


MAX_COMPARED = 4096
"""Elements of a constant tensor that is compared at each call."""


class Snapshot:
    """The state of a Cell at one moment."""

    def __init__(self, model: ms.nn.Cell) -> None:
        self._held = [vars(each) for _, each in model.cells_and_names()]
        self._seen = [{name: _copied(value) for name, value in held.items()} for held in self._held]
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
                self._held == self._seen
                and [each.data_ptr() for each in self._tensors] == self.places
                and [each.asnumpy().tobytes() for each in self._constants] == self._contents
            )
        except (ValueError, TypeError, RuntimeError):
            return False  # Two tensors cannot be compared, so they are not one.

    def means(self, other: Snapshot) -> bool:
        """One graph serves both."""
        try:
            same = self.places == other.places and self._contents == other._contents
            return same and self._meaning() == other._meaning()
        except (ValueError, TypeError, RuntimeError):
            return False

    def _meaning(self) -> list[dict[str, Any]]:
        return [{name: each for name, each in seen.items() if name not in _BOOKKEEPING} for seen in self._seen]


def _is_small_constant(value: Any) -> bool:
    """A tensor that is neither a Parameter nor a buffer: a graph has its content of once, and nothing but the content
    tells that it was written to (measured). Larger ones are not looked at: that would cost more than the call."""
    is_constant = isinstance(value, ms.Tensor) and not isinstance(value, ms.Parameter)
    return is_constant and value.size <= MAX_COMPARED and value.dtype != ms.bfloat16


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, (dict, list, set)) else value


def _tensors(held: dict[str, Any]) -> Iterator[ms.Tensor]:
    for value in held.values():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
        yield from (each for each in parts if isinstance(each, ms.Tensor))
