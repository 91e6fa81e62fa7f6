"""A decision network that is called once a tick and remembers: a history buffer that fills up, then rolls over.

The buffer goes in with the observation and comes out with it added, as a decode loop passes a key and value cache.
The network could hold it itself; but then no two calls with the same input would give the same output, and neither a
test nor `tune` could tell a wrong config from a right one.

What recompiles here is the length of the buffer. It is another one at every tick until the buffer is full, and there
is a branch on it: only a full buffer drops its oldest entry. So a compiler that takes shapes as they are compiles at
each tick of a start; and one that takes them as dynamic for a buffer that fills, for a full one, and for a single
tick, since PyTorch takes a size of 1 as it is. The examples are a full buffer, where such a network spends its life,
then one that is half full and one of a single tick.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill
from autotune.models.torch.transformer import FeedForward, SelfAttention

__all__ = ["temporal_decision"]


def temporal_decision(
    *,
    features: int = 32,
    history: int = 32,
    dim: int = 128,
    depth: int = 2,
    heads: int = 4,
    actions: int = 8,
    batch: int = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """The network with a buffer of `history` ticks; an observation of (batch, features) and a full buffer of (batch,
    history, features); and two more inputs, in the middle of a start and at its beginning.
    """
    model = _TemporalDecision(features, history, dim=dim, depth=depth, heads=heads, actions=actions).eval()
    fill(model, seed)
    ticks = torch.from_numpy(weights.normal_input((batch, history + 1, features), seed))
    observation, buffer = ticks[:, -1].contiguous(), ticks[:, :-1].contiguous()
    filling = [-buffer[:, :length].contiguous() for length in (max(history // 2, 1), 1)]
    return {
        "model": model,
        "inputs": (observation, buffer),
        "more_inputs": [(-observation, each) for each in filling],
    }


class _Block(nn.Module):
    """Pre-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = FeedForward(dim, 2 * dim)

    def forward(self, ticks: torch.Tensor) -> torch.Tensor:
        ticks = ticks + self.attention(self.attention_norm(ticks))
        result: torch.Tensor = ticks + self.mlp(self.mlp_norm(ticks))
        return result


class _TemporalDecision(nn.Module):
    """An observation of (batch, features) and a buffer of (batch, length, features), to action scores (batch, actions)
    and the buffer with the observation: one longer, or without its oldest tick if it was full."""

    def __init__(self, features: int, history: int, *, dim: int, depth: int, heads: int, actions: int) -> None:
        super().__init__()
        self.history = history
        self.embed = nn.Linear(features, dim)
        self.ages = nn.Parameter(torch.empty(history, dim))
        self.blocks = nn.ModuleList(_Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.act = nn.Linear(dim, actions)

    def forward(self, observation: torch.Tensor, buffer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if buffer.shape[1] == self.history:
            buffer = buffer[:, 1:]
        buffer = torch.cat([buffer, observation.unsqueeze(1)], dim=1)
        ticks = self.embed(buffer) + self.ages[: buffer.shape[1]].flip(0)
        for block in self.blocks:
            ticks = block(ticks)
        return self.act(self.norm(ticks[:, -1])), buffer
