"""Calls of many shapes: which sizes are open, and what is appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mindspore as ms

from autotune.backends.capabilities import VaryingAxis
from autotune.backends.mindspore import counters
from autotune.backends.mindspore.compiled_cell import CompiledCell, compiled_cell
from autotune.backends.mindspore.regions import compiled_of
from autotune.backends.protocol import variables_set
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.measure.diagnosis import Compilations
from autotune.workload.arguments import Arguments


def _set_inputs(cell: CompiledCell | ms.nn.Cell, varying: Sequence[VaryingAxis], arguments: Arguments) -> None:
    leaves = arguments.leaves()
    for number in {axis.leaf for axis in varying}:
        leaves[number] = _open(leaves[number], [axis for axis in varying if axis.leaf == number])
    wanted = arguments.with_leaves(leaves)
    if wanted.positional and wanted.keyword:
        raise InvalidConfigError("knob shapes: MindSpore takes open sizes by position or by name, not both at once")
    cell.set_inputs(*wanted.positional, **(wanted.keyword or {}))


def _open(tensor: ms.Tensor, varying: list[VaryingAxis]) -> ms.Tensor:
    shape: list[Any] = list(tensor.shape)
    for axis in varying:
        shape[axis.axis] = None if axis.smallest is None else ms.Symbol(min=axis.smallest, max=axis.largest)
    return ms.Tensor(shape=shape, dtype=tensor.dtype)


def marker(
    model: ms.nn.Cell, changes: UndoLog
) -> Callable[[Arguments, Sequence[VaryingAxis]], AbstractContextManager[None]]:
    """See `ShapeStrategies`. A Cell is given inputs with open sizes before its first call, and is compiled once for all
    of them: `set_inputs` wants the types and ranks of all inputs, which only a call shows."""
    cell, is_done = compiled_of(model) or model, False

    def mark(arguments: Arguments, varying: Sequence[VaryingAxis]) -> AbstractContextManager[None]:
        nonlocal is_done
        if not is_done:
            _set_inputs(cell, varying, arguments)
            is_done = True
        return nullcontext()

    return mark


def uncompiled() -> AbstractContextManager[Any]:
    """See `ShapeStrategies`. MindSpore looks at the variable at each call of what it compiled (measured)."""
    return variables_set({"MS_JIT": "0"})


def cut(tensor: ms.Tensor, axis: int, start: int, stop: int) -> ms.Tensor:
    """See `ShapeStrategies`."""
    return ms.ops.narrow(tensor, axis, start, stop - start)


def compilations(model: ms.nn.Cell, config: Config) -> Compilations | None:
    """See `ShapeStrategies`."""
    return counters.compilations(compiled_cell(model), config)


def pad(tensor: ms.Tensor, axis: int, size: int, fill: float) -> ms.Tensor:
    """See `ShapeStrategies`."""
    shape = tuple(size - length if number == axis else length for number, length in enumerate(tensor.shape))
    return ms.ops.cat((tensor, ms.ops.full(shape, fill, dtype=tensor.dtype)), axis)
