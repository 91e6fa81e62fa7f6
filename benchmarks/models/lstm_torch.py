"""A recurrent layer between nothing and a head: dynamo leaves it out of the graph unless it is told otherwise."""

from __future__ import annotations

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill


class Recurrent(nn.Module):
    """An LSTM and a linear head on its last step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, _ = self.layer(x)
        head: torch.Tensor = self.head(steps[:, -1])
        return torch.tanh(head)


def lstm(
    *, width: int = 128, length: int = 32, batch: int = 4, seed: int = 0
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """One input of (batch, length, width)."""
    model = Recurrent(width).eval()
    fill(model, seed)
    return model, (torch.from_numpy(weights.normal_input((batch, length, width), seed)),)
