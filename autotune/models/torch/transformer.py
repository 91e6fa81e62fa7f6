"""The two halves of a transformer block, without the normalisation around them (arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

__all__ = ["FeedForward", "SelfAttention"]


class SelfAttention(nn.Module):
    """Multi-head self-attention: (batch, length, dim) to the same shape.

    `visible`, of (batch, 1, 1, length), says which tokens the others may look at; None: all.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.attend: Callable[..., torch.Tensor] = functional.scaled_dot_product_attention

    def forward(self, tokens: torch.Tensor, visible: torch.Tensor | None = None) -> torch.Tensor:
        query, key, value = (self._split_heads(part) for part in self.qkv(tokens).chunk(3, dim=-1))
        mixed = self.attend(query, key, value) if visible is None else self.attend(query, key, value, visible)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def _split_heads(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length, dim) to (batch, heads, length, dim / heads)."""
        batch, length, _ = tokens.shape
        return tokens.view(batch, length, self.heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with GELU between them: (batch, length, dim) to the same shape.

    GELU is its tanh form (arXiv:1606.08415), as in the original code of BERT and of ViT.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.widen = nn.Linear(dim, hidden)
        self.narrow = nn.Linear(hidden, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.narrow(functional.gelu(self.widen(tokens), approximate="tanh"))
        return result
