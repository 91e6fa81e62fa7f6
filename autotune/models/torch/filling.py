"""Seeded weights for a PyTorch model, and its element type."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from autotune.errors import InputError, marked
from autotune.models import weights

__all__ = ["fill", "in_type"]

Made = TypeVar("Made", bound=nn.Module)


def fill(model: nn.Module, seed: int, *, gain: float = 1.0) -> None:
    """Overwrites every floating-point parameter and buffer of the model with its seeded values.

    `gain` scales matrices and kernels, see `weights.value`. Batch norm's integer count of seen batches is
    left alone, since inference does not read it.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.from_numpy(weights.value(name, tuple(tensor.shape), seed, gain=gain)))


def in_type(model: Made, inputs: Any, dtype: str) -> tuple[Made, Any]:
    """The model and its inputs, a tuple or a dict, with floating-point tensors of this element type (`bfloat16`).

    Raises InputError for a name that is no floating-point type of PyTorch.
    """
    wanted = getattr(torch, dtype, None)
    if not isinstance(wanted, torch.dtype) or not wanted.is_floating_point:
        raise InputError(
            f"{marked('arguments', {'dtype': dtype})}: no type of weights", tip="bfloat16, float16, float32"
        )
    cast = tree_map_only(torch.Tensor, lambda x: x.to(wanted) if x.is_floating_point() else x, inputs)
    return model.to(wanted), cast
