"""The two halves of a transformer block, without the normalisation around them (arXiv:1706.03762)."""

from __future__ import annotations

from mindspore import Tensor, nn, ops

__all__ = ["FeedForward", "SelfAttention"]

_HIDDEN = -1e9
"""A score whose softmax is 0."""


class SelfAttention(nn.Cell):
    """Multi-head self-attention: (batch, length, dim) to the same shape.

    `visible`, of (batch, 1, 1, length), says which tokens the others may look at; None: all.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Dense(dim, 3 * dim)
        self.out = nn.Dense(dim, dim)

    def construct(self, tokens: Tensor, visible: Tensor | None = None) -> Tensor:
        query, key, value = ops.chunk(self.qkv(tokens), 3, axis=-1)
        query = self._split_heads(query)
        key = self._split_heads(key)
        value = self._split_heads(value)
        scores = ops.matmul(query, key.swapaxes(-2, -1)) * self.scale
        if visible is not None:
            scores = ops.masked_fill(scores, ops.logical_not(visible), _HIDDEN)
        mixed = ops.matmul(ops.softmax(scores, axis=-1), value)
        return self.out(mixed.swapaxes(1, 2).reshape(tokens.shape))

    def _split_heads(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) to (batch, heads, length, dim / heads)."""
        batch, length, _ = tokens.shape
        return tokens.reshape((batch, length, self.heads, -1)).swapaxes(1, 2)


class FeedForward(nn.Cell):
    """Two linear layers with GELU between them: (batch, length, dim) to the same shape.

    GELU is its tanh form (arXiv:1606.08415), as in the original code of BERT and of ViT. MindSpore has a
    kernel of its own for this form.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.widen = nn.Dense(dim, hidden)
        self.narrow = nn.Dense(hidden, dim)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.narrow(ops.gelu(self.widen(tokens), approximate="tanh"))
