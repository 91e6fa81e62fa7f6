"""Calls of many shapes: which sizes dynamo takes as open, and what is appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from autotune.backends.capabilities import VaryingAxis
from autotune.backends.torch import counters
from autotune.backends.torch.knobs import settings_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.diagnosis import Compilations
from autotune.workload.arguments import Arguments

_SMALLEST_OPEN = 2
"""Dynamo takes 0 and 1 as fixed, whatever it is told, and raises where they are marked with bounds (measured)."""


def marker(
    model: torch.nn.Module, changes: UndoLog
) -> Callable[[Arguments, Sequence[VaryingAxis]], AbstractContextManager[None]]:
    """See `ShapeStrategies`. Marks the tensors of a call, for as long as it lasts: a mark is an attribute of the job's
    own tensor, and other compiled code raises where it cannot leave a marked size open (measured). 0.4 us for each
    axis, with bounds 1.3 us, and 2.7 us to take the marks off (measured)."""
    from torch import _dynamo as dynamo

    @contextmanager
    def marked(arguments: Arguments, varying: Sequence[VaryingAxis]) -> Iterator[None]:
        leaves = arguments.leaves()
        tensors = [leaves[number] for number in {axis.leaf for axis in varying}]
        before = [set(vars(tensor)) for tensor in tensors]
        for axis in varying:
            tensor = leaves[axis.leaf]
            if axis.smallest is None:
                dynamo.maybe_mark_dynamic(tensor, axis.axis)
            elif tensor.shape[axis.axis] >= _SMALLEST_OPEN:
                smallest = max(axis.smallest, _SMALLEST_OPEN)
                dynamo.mark_dynamic(tensor, axis.axis, min=smallest, max=axis.largest)
        marks = [vars(tensor).keys() - known for tensor, known in zip(tensors, before, strict=True)]
        try:
            yield
        finally:
            for tensor, names in zip(tensors, marks, strict=True):
                for name in names:
                    vars(tensor).pop(name, None)

    return marked


def pad(tensor: torch.Tensor, axis: int, size: int, fill: float) -> torch.Tensor:
    """See `ShapeStrategies`."""
    shape = [size - length if number == axis else length for number, length in enumerate(tensor.shape)]
    appended: Any = tensor.new_full(shape, fill)
    return torch.cat([tensor, appended], axis)


def cut(tensor: torch.Tensor, axis: int, start: int, stop: int) -> torch.Tensor:
    """See `ShapeStrategies`. Along the first axis a view is as dense as the tensor; elsewhere it would have gaps, and
    a job that calls `view` on its outputs would fail."""
    part = tensor.narrow(axis, start, stop - start)
    return part if axis == 0 else part.clone(memory_format=torch.preserve_format)


def uncompiled() -> AbstractContextManager[Any]:
    """See `ShapeStrategies`."""
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


def compilations(model: torch.nn.Module, config: Config) -> Compilations | None:
    """See `ShapeStrategies`."""
    if not settings_of(config).compiles_anything:
        return Compilations(num_graphs=0, num_given_up=0)
    return counters.compilations()
