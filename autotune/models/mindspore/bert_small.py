"""A small BERT encoder (Devlin et al., arXiv:1810.04805), without segment embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore.filling import fill
from autotune.models.mindspore.transformer import FeedForward, SelfAttention

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
    seed: int = 0,
) -> dict[str, Any]:
    """The encoder for up to `seq` tokens, and token ids of (batch, seq).

    `masked`: it takes a mask too, 1 for each token and 0 for what was appended, so that sequences may be padded.
    """
    model = _BertSmall(seq=seq, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio, vocab=vocab).set_train(False)
    fill(model, seed)
    ids = Tensor(weights.token_input((batch, seq), vocab, seed))
    if masked:
        return {"model": model, "inputs": (ids, ops.ones_like(ids)), "padding": {"batch": 0, "seq": 0}}
    return {"model": model, "inputs": (ids,), "padding": {"batch": 0}}


class _Block(nn.Cell):
    """Post-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, heads)
        self.attention_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.mlp = FeedForward(dim, mlp_ratio * dim)
        self.mlp_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)

    def construct(self, tokens: Tensor, visible: Tensor | None) -> Tensor:
        tokens = self.attention_norm(tokens + self.attention(tokens, visible))
        return self.mlp_norm(tokens + self.mlp(tokens))


class _BertSmall(nn.Cell):
    """Ids of (batch, length <= seq), and a mask of the same shape or None, to the sequence (batch, length, dim) and the
    pooled one (batch, dim)."""

    def __init__(self, *, seq: int, dim: int, depth: int, heads: int, mlp_ratio: int, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.positions = Parameter(Tensor(np.empty((seq, dim), np.float32)), name="positions")
        self.norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.blocks = nn.CellList([_Block(dim, heads, mlp_ratio) for _ in range(depth)])
        self.pooler = nn.Dense(dim, dim)

    def construct(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        visible = None if mask is None else mask.expand_dims(1).expand_dims(1) > 0
        # `narrow` instead of `[:n]` and `[:, 0]`: capture by bytecode falls back to eager at a tensor index.
        positions = ops.narrow(self.positions, 0, 0, ids.shape[1])
        tokens = self.norm(self.embedding(ids) + positions)
        for block in self.blocks:
            tokens = block(tokens, visible)
        return tokens, ops.tanh(self.pooler(ops.narrow(tokens, 1, 0, 1).squeeze(1)))
