"""A model that is large for its work: a stack of residual layers whose weights are read once a call."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

WIDTH = 4096
LAYER_BYTES = 4 * WIDTH**2


class Stack(nn.Module):
    """Each layer adds a little to what it is given."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x`: (batch, WIDTH)."""
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return x


def build(num_bytes: int = 2**31, log: str = "") -> tuple[nn.Module, torch.Tensor]:
    """`num_bytes`: of the weights. `log`: a file to which the seconds of each build are added, one a line."""
    begun = time.monotonic()
    torch.manual_seed(0)
    model, example = Stack(max(num_bytes // LAYER_BYTES, 1)).eval(), torch.randn(4, WIDTH)
    if log:
        with Path(log).open("a") as built:
            built.write(f"{time.monotonic() - begun:.3f}\n")
    return model, example
