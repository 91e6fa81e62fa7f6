"""What a shape strategy does to MindSpore's Cells and tensors: which sizes are open, and what is appended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mindspore as ms

from autotune.backends.capabilities import VaryingAxis
from autotune.backends.mindspore.compiled_cell import CompiledCell
from autotune.errors import InvalidConfigError
from autotune.workload.arguments import Arguments


class ShapeMarker:
    """Gives a Cell inputs with open sizes before its first call: it is compiled once, for all of them.

    `set_inputs` wants the types and ranks of all inputs, which only a call shows.
    """

    def __init__(self, cell: CompiledCell | ms.nn.Cell, varying: Sequence[VaryingAxis]) -> None:
        self._cell = cell
        self._varying = varying
        self._is_done = False

    def __call__(self, arguments: Arguments) -> AbstractContextManager[None]:
        if not self._is_done:
            self._set_inputs(arguments)
            self._is_done = True
        return nullcontext()

    def _set_inputs(self, arguments: Arguments) -> None:
        leaves = arguments.leaves()
        for number in {each.leaf for each in self._varying}:
            leaves[number] = _open(leaves[number], [each for each in self._varying if each.leaf == number])
        wanted = arguments.with_leaves(leaves)
        if wanted.positional and wanted.keyword:
            raise InvalidConfigError("knob shapes: MindSpore takes open sizes by position or by name, not both at once")
        self._cell.set_inputs(*wanted.positional, **(wanted.keyword or {}))


def _open(tensor: ms.Tensor, varying: list[VaryingAxis]) -> ms.Tensor:
    shape: list[Any] = list(tensor.shape)
    for each in varying:
        shape[each.axis] = None if each.smallest is None else ms.Symbol(min=each.smallest, max=each.largest)
    return ms.Tensor(shape=shape, dtype=tensor.dtype)


def pad(tensor: ms.Tensor, axis: int, size: int, fill: float) -> ms.Tensor:
    """See `ShapeStrategies.pad`."""
    shape = tuple(size - length if number == axis else length for number, length in enumerate(tensor.shape))
    return ms.ops.cat((tensor, ms.ops.full(shape, fill, dtype=tensor.dtype)), axis)
