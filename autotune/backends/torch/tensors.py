"""A PyTorch tensor as a NumPy array."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from numpy.typing import NDArray


def array_of(value: torch.Tensor) -> NDArray[Any]:
    """Its elements; bfloat16, which NumPy lacks, as float32. It may share the tensor's memory."""
    dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    dense = dense.resolve_conj().resolve_neg().cpu()
    array: NDArray[Any] = (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()
    return array


def writes_of(weight: torch.nn.Parameter) -> Hashable | None:
    """Another value once it was written to, or lies elsewhere; None where PyTorch does not count."""
    if weight.is_inference():
        return None
    return id(weight), weight._version, weight.data_ptr() if type(weight) is torch.nn.Parameter else None
