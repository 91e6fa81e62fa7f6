"""A small-ops MLP: so little work in each operator that calling them is most of the time, as in control loops."""

from __future__ import annotations

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill


def small_mlp(
    *, width: int = 64, layers: int = 12, batch: int = 4, seed: int = 0
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """`layers` times linear, layer norm, GELU; one input of (batch, width)."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU("tanh"))]
    model = nn.Sequential(*parts).eval()
    fill(model, seed)
    return model, (torch.from_numpy(weights.normal_input((batch, width), seed)),)
