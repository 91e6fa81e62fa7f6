"""A network that goes by what it sees: branches on tensors, work on active ticks alone, and pooling of a dynamic size.

Four things in it depend on values, so that a compiler has to leave them to Python or take them as they are:

* a branch on a mean: one of two paths of layers;
* ticks are refined only where the signal is active: a selection by mask has as many rows as the mask has ones;
* a number taken out of a tensor, of how many ticks are active;
* pooling into that many windows: another number is another graph.

What is active is told by signs of the input, which no rounding changes: a config in another precision takes the same
path. Negated signals take the other branch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from autotune.models import weights
from autotune.models.torch.filling import fill

__all__ = ["branching"]


def branching(
    *, length: int = 64, features: int = 32, dim: int = 256, classes: int = 10, batch: int = 8, seed: int = 0
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The network, and one input of signals of (batch, length, features)."""
    model = _Branching(features, dim, classes).eval()
    fill(model, seed)
    return model, (torch.from_numpy(weights.normal_input((batch, length, features), seed)),)


class _Branching(nn.Module):
    """Signals of (batch, length, features) to class scores of (batch, classes)."""

    def __init__(self, features: int, dim: int, classes: int) -> None:
        super().__init__()
        # Without biases and with an odd activation, as in `planner`: negating the signals takes the other branch.
        self.encode = nn.Linear(features, dim, bias=False)
        self.judge = nn.Linear(dim, 1, bias=False)
        self.calm = nn.Linear(dim, dim)
        self.alert = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))
        self.refine = nn.Linear(dim, dim)
        self.classify = nn.Linear(2 * dim, classes)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        ticks = torch.tanh(self.encode(signals))
        path = self.calm if self.judge(ticks).mean() > 0 else self.alert
        ticks = torch.tanh(path(ticks))
        active = signals[:, :, 0] > 0
        refined = torch.tanh(self.refine(ticks[active]))
        ticks = ticks.masked_scatter(active.unsqueeze(-1), refined)
        num_windows = 1 + int(active.sum()) // signals.shape[0] // 4
        windows = functional.adaptive_avg_pool1d(ticks.transpose(1, 2), num_windows)
        result: torch.Tensor = self.classify(torch.cat([windows.amax(dim=2), windows.amin(dim=2)], dim=1))
        return result
