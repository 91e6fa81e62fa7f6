"""What a shape strategy does to PyTorch's tensors: which sizes dynamo takes as open, and what is appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from autotune.backends.capabilities import VaryingAxis
from autotune.workload.arguments import Arguments

_SMALLEST_OPEN = 2
"""Dynamo takes 0 and 1 as fixed, whatever it is told, and raises where they are marked with bounds (measured)."""


def marker(varying: Sequence[VaryingAxis]) -> Callable[[Arguments], AbstractContextManager[None]]:
    """Marks the tensors of a call, for as long as it lasts: a mark is an attribute of the job's own tensor, and other
    compiled code raises where it cannot leave a marked size open (measured). 0.4 us for each axis, with bounds 1.3 us,
    and 2.7 us to take the marks off (measured)."""
    from torch import _dynamo as dynamo

    numbers = {each.leaf for each in varying}

    @contextmanager
    def marked(arguments: Arguments) -> Iterator[None]:
        leaves = arguments.leaves()
        tensors = [leaves[number] for number in numbers]
        before = [set(vars(each)) for each in tensors]
        for each in varying:
            tensor = leaves[each.leaf]
            if each.smallest is None:
                dynamo.maybe_mark_dynamic(tensor, each.axis)
            elif tensor.shape[each.axis] >= _SMALLEST_OPEN:
                smallest = max(each.smallest, _SMALLEST_OPEN)
                dynamo.mark_dynamic(tensor, each.axis, min=smallest, max=each.largest)
        marks = [vars(each).keys() - known for each, known in zip(tensors, before, strict=True)]
        try:
            yield
        finally:
            for tensor, names in zip(tensors, marks, strict=True):
                for name in names:
                    vars(tensor).pop(name, None)

    return marked


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
