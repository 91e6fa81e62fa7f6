"""A MindSpore tensor as a NumPy array."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from numpy.typing import NDArray


def array_of(value: ms.Tensor) -> NDArray[Any]:
    """Its elements; bfloat16, which NumPy lacks, as float32."""
    array: NDArray[Any] = (value.astype(ms.float32) if value.dtype == ms.bfloat16 else value).asnumpy()
    return array
