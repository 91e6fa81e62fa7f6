"""What a shape strategy does to PyTorch's tensors: which sizes dynamo takes as open, and what is appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from autotune.backends.capabilities import VaryingAxis
from autotune.workload.arguments import Arguments

_SMALLEST_OPEN = 2
"""Dynamo takes 0 and 1 as fixed, whatever it is told, and raises where they are marked with bounds (measured)."""


def marker(varying: Sequence[VaryingAxis]) -> Callable[[Arguments], None]:
    """Marks the tensors of a call. A new tensor has no marks, so that each call needs it: 0.4 us for each axis, with
    bounds 1.3 us (measured)."""
    from torch import _dynamo as dynamo

    def mark(arguments: Arguments) -> None:
        leaves = arguments.leaves()
        for each in varying:
            tensor = leaves[each.leaf]
            if each.smallest is None:
                dynamo.maybe_mark_dynamic(tensor, each.axis)
            elif tensor.shape[each.axis] >= _SMALLEST_OPEN:
                smallest = max(each.smallest, _SMALLEST_OPEN)
                dynamo.mark_dynamic(tensor, each.axis, min=smallest, max=each.largest)

    return mark


def pad(tensor: torch.Tensor, axis: int, size: int, fill: float) -> torch.Tensor:
    """See `ShapeStrategies.pad`."""
    shape = [size - length if number == axis else length for number, length in enumerate(tensor.shape)]
    appended: Any = tensor.new_full(shape, fill)
    return torch.cat([tensor, appended], axis)


def cut(tensor: torch.Tensor, axis: int, start: int, stop: int) -> torch.Tensor:
    """See `ShapeStrategies`. Along the first axis a view is as dense as the tensor; elsewhere it would have gaps, and
    a job that calls `view` on its outputs would fail."""
    part = tensor.narrow(axis, start, stop - start)
    return part if axis == 0 else part.clone(memory_format=torch.preserve_format)
