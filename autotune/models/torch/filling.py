"""Seeded weights for a PyTorch model."""

from __future__ import annotations

import torch
from torch import nn

from autotune.models import weights

__all__ = ["fill"]


def fill(model: nn.Module, seed: int, *, gain: float = 1.0) -> None:
    """Overwrites every floating-point parameter and buffer of the model with its seeded values.

    `gain` scales matrices and kernels, see `weights.value`. Batch norm's integer count of seen batches is
    left alone, since inference does not read it.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.from_numpy(weights.value(name, tuple(tensor.shape), seed, gain=gain)))
