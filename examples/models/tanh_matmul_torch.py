"""A chain of matrix products and tanh: the smallest workload in which fusing the elementwise part can pay.

Repeating x -> tanh(x W) with a random W of standard deviation g / sqrt(size) fades to zero for g < 1, and is
chaotic for g > 1, where it magnifies rounding errors (Sompolinsky et al., Chaos in Random Neural Networks,
1988). The weight is filled at the edge, g = 1: after 100 steps the values are still of order 0.1, and
rounding errors still small.
"""

from __future__ import annotations

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill

__all__ = ["tanh_matmul"]


def tanh_matmul(*, size: int = 512, repeats: int = 100, seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The chain of `repeats` steps with one weight, and one input of (size, size)."""
    model = _TanhMatmul(size, repeats).eval()
    fill(model, seed)
    return model, (torch.from_numpy(weights.normal_input((size, size), seed)),)


class _TanhMatmul(nn.Module):
    """(rows, size) to the same shape."""

    def __init__(self, size: int, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats
        self.weight = nn.Parameter(torch.empty(size, size))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        for _ in range(self.repeats):
            state = torch.tanh(torch.matmul(state, self.weight))
        return state
