"""MindSpore tensors as NumPy arrays and back; and calls of a Cell, watched and in a file of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from numpy.typing import NDArray

from autotune.backends.array_file import read_arrays
from autotune.workload.arguments import Arguments


def array_of(value: ms.Tensor) -> NDArray[Any]:
    """Its elements; bfloat16, which NumPy lacks, as float32."""
    array: NDArray[Any] = (value.astype(ms.float32) if value.dtype == ms.bfloat16 else value).asnumpy()
    return array


def tensor_like(array: NDArray[Any], original: ms.Tensor) -> ms.Tensor:
    """A tensor of the type, rank and class of `original`. A Parameter keeps whether it requires gradients."""
    made = ms.Tensor(np.asarray(array, order="C"), dtype=original.dtype)
    if isinstance(original, ms.Parameter):
        return ms.Parameter(made, name=original.name, requires_grad=original.requires_grad)
    return made


_WHOLE = (ms.int8, ms.int16, ms.int32, ms.int64, ms.uint8, ms.uint16, ms.uint32, ms.uint64)


def extremes_of(value: Any, axis: int | None) -> Sequence[tuple[int, int]] | None:
    """See `Backend.extremes`. Python's numbers are constants of a graph, which checks them when it is compiled."""
    if not isinstance(value, ms.Tensor) or value.dtype not in _WHOLE or not value.size:
        return None
    array = value.asnumpy()
    slices = array.reshape(1, -1) if axis is None else np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return list(zip(slices.min(axis=1).tolist(), slices.max(axis=1).tolist(), strict=True))


# Calls of a Cell in a file of arrays.


def read(path: Path) -> list[Arguments]:
    """See `CallsFile`."""
    return read_arrays(path, _tensor_of)


def _tensor_of(array: NDArray[Any], dtype: str) -> ms.Tensor:
    """`dtype` as any framework writes it: PyTorch calls its types alike."""
    return ms.Tensor(array, dtype=getattr(ms, {"bool": "bool_"}.get(dtype.lower(), dtype.lower())))
