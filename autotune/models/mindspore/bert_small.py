"""A small BERT encoder (Devlin et al., arXiv:1810.04805), without segment embedding and padding mask."""

from __future__ import annotations

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
    seed: int = 0,
) -> tuple[nn.Cell, tuple[Tensor, ...]]:
    """The encoder for up to `seq` tokens, and one input of token ids of (batch, seq)."""
    model = _BertSmall(seq=seq, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio, vocab=vocab).set_train(False)
    fill(model, seed)
    return model, (Tensor(weights.token_input((batch, seq), vocab, seed)),)


class _Block(nn.Cell):
    """Post-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attention = SelfAttention(dim, heads)
        self.attention_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.mlp = FeedForward(dim, mlp_ratio * dim)
        self.mlp_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)

    def construct(self, tokens: Tensor) -> Tensor:
        tokens = self.attention_norm(tokens + self.attention(tokens))
        return self.mlp_norm(tokens + self.mlp(tokens))


class _BertSmall(nn.Cell):
    """Ids of (batch, length <= seq) to the sequence (batch, length, dim) and the pooled one (batch, dim)."""

    def __init__(self, *, seq: int, dim: int, depth: int, heads: int, mlp_ratio: int, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.positions = Parameter(Tensor(np.empty((seq, dim), np.float32)), name="positions")
        self.norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.blocks = nn.CellList([_Block(dim, heads, mlp_ratio) for _ in range(depth)])
        self.pooler = nn.Dense(dim, dim)

    def construct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        # `narrow` instead of `[:n]` and `[:, 0]`: capture by bytecode falls back to eager at a tensor index.
        positions = ops.narrow(self.positions, 0, 0, ids.shape[1])
        tokens = self.norm(self.embedding(ids) + positions)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens, ops.tanh(self.pooler(ops.narrow(tokens, 1, 0, 1).squeeze(1)))
