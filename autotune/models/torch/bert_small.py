"""A small BERT encoder (Devlin et al., arXiv:1810.04805), without segment embedding."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill, in_type
from autotune.models.torch.transformer import FeedForward, SelfAttention

__all__ = ["bert_small"]

_NORM_EPS = 1e-12


def bert_small(
    *,
    seq: int = 64,
    dim: int = 128,
    depth: int = 4,
    heads: int = 4,
    mlp_ratio: int = 4,
    vocab: int = 1000,
    batch: int = 2,
    masked: bool = False,
    dtype: str = "float32",
    seed: int = 0,
) -> dict[str, Any]:
    """The encoder for up to `seq` tokens, and token ids of (batch, seq).

    `masked`: it takes a mask too, 1 for each token and 0 for what was appended, so that sequences may be padded.
    """
    model = _BertSmall(seq=seq, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio, vocab=vocab).eval()
    fill(model, seed)
    ids = torch.from_numpy(weights.token_input((batch, seq), vocab, seed))
    model, _ = in_type(model, (), dtype)
    if masked:
        return {"model": model, "inputs": (ids, torch.ones_like(ids)), "padding": {"batch": 0, "seq": 0}}
    return {"model": model, "inputs": (ids,), "padding": {"batch": 0}}


class _Block(nn.Module):
    """Post-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, heads)
        self.attention_norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.mlp = FeedForward(dim, mlp_ratio * dim)
        self.mlp_norm = nn.LayerNorm(dim, eps=_NORM_EPS)

    def forward(self, tokens: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        tokens = self.attention_norm(tokens + self.attention(tokens, visible))
        result: torch.Tensor = self.mlp_norm(tokens + self.mlp(tokens))
        return result


class _BertSmall(nn.Module):
    """Ids of (batch, length <= seq), and a mask of the same shape or None, to the sequence (batch, length, dim) and the
    pooled one (batch, dim)."""

    def __init__(self, *, seq: int, dim: int, depth: int, heads: int, mlp_ratio: int, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(torch.empty(seq, dim))
        self.norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.blocks = nn.ModuleList(_Block(dim, heads, mlp_ratio) for _ in range(depth))
        self.pooler = nn.Linear(dim, dim)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        visible = None if mask is None else mask[:, None, None, :] > 0
        tokens = self.norm(self.embedding(ids) + self.positions[: ids.shape[1]])
        for block in self.blocks:
            tokens = block(tokens, visible)
        return tokens, torch.tanh(self.pooler(tokens[:, 0]))
