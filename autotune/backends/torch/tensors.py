"""A PyTorch tensor as a NumPy array."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy

from autotune.errors import InputError

_FLOATS_OF_NUMPY = (torch.float16, torch.float32, torch.float64)


def array_of(value: torch.Tensor) -> NDArray[Any]:
    """Its elements; of a type that NumPy lacks (bfloat16, float8, quantised, half complex) as float32 or complex64. It
    may share the tensor's memory."""
    dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    dense = dense.resolve_conj().resolve_neg().cpu()
    array: NDArray[Any] = _in_a_known_type(dense).numpy()
    return array


def _in_a_known_type(dense: torch.Tensor) -> torch.Tensor:
    if dense.is_quantized:
        return dense.dequantize()
    if dense.dtype is torch.complex32:
        return dense.to(torch.complex64)
    return dense.float() if dense.is_floating_point() and dense.dtype not in _FLOATS_OF_NUMPY else dense


def require_shape(value: torch.Tensor) -> None:
    """Raises InputError for a tensor without a shape, by which it could be described and compared."""
    if is_lazy(value):
        raise InputError(
            "a parameter has no shape before the model's first call (a lazy module, such as torch.nn.LazyLinear)",
            tip="call the model once before apply(), or in the function that builds it",
        )
    if value.is_nested:
        raise InputError(
            "a nested tensor among the inputs has rows of different lengths and no shape",
            tip="give the model padded rows, e.g. torch.nested.to_padded_tensor(nested, 0.0)",
        )


def writes_of(weight: torch.nn.Parameter) -> Hashable | None:
    """Another value once it was written to, or lies elsewhere; None where PyTorch does not count."""
    if weight.is_inference():
        return None
    return id(weight), weight._version, weight.data_ptr() if type(weight) is torch.nn.Parameter else None
