"""MindSpore tensors as NumPy arrays, and tensors of the same kind made of arrays."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from numpy.typing import NDArray


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
