"""Elementwise operations alone: each makes a tensor of 4 MiB and frees one, so that a call is as fast as the C library
lets it be."""

from __future__ import annotations

import torch
from torch import nn

from autotune.models import weights


class Elementwise(nn.Module):
    """The same few operations, again and again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As large as the input."""
        for _ in range(8):
            x = torch.tanh(x) * 0.9 + torch.sigmoid(x) * x
        return x


def elementwise(*, rows: int = 512, width: int = 2048, seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Nothing to fill: the model has no weights."""
    return Elementwise().eval(), (torch.from_numpy(weights.normal_input((rows, width), seed)),)
