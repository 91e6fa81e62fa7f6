"""An attention block over rows of several lengths, half of it PyNative and half of it compiled by its author.

The core of the attention is a function under `mindspore.jit`, as one finds it in code that was sped up by hand; all
around it is PyNative, so the block is mixed before any config touches it. Where the longest row ends is read in Python,
through NumPy, and the padding beyond it is cut off:

* the core is compiled again for each longest row that it meets, under any config;
* compiled as a whole, that reading is left to the Python interpreter, and with it what follows from it: tensors of an
  unknown type, which some layers refuse. Hence the plain product with a parameter at the end in place of `nn.Dense`;
* a capture that records one call keeps the length that it saw and cuts off longer rows. The second input has longer
  rows than the example, so that a trial finds out.
"""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore.filling import fill

__all__ = ["mixed_attention"]

_NORM_EPS = 1e-6
_MASKED = -1e9


def mixed_attention(
    *, length: int = 64, dim: int = 128, heads: int = 4, batch: int = 4, seed: int = 0
) -> dict[str, Any]:
    """The block; tokens of (batch, length, dim) with the number of each row's own, half of them at the most; and a
    second input of the same shape with twice as many.
    """
    model = _MixedAttention(length, dim, heads).set_train(False)
    fill(model, seed)
    tokens = weights.normal_input((batch, length, dim), seed)
    lengths = np.linspace(length // 2, length // 4 + 1, batch).astype(np.int64)
    return {
        "model": model,
        "inputs": (Tensor(tokens), Tensor(lengths)),
        "more_inputs": [(Tensor(-tokens), Tensor(2 * lengths))],
    }


@mindspore.jit  # type: ignore[untyped-decorator]
def _attend(query: Tensor, key: Tensor, value: Tensor, is_own: Tensor) -> Tensor:
    """Three times (batch, heads, length, dim / heads), and 1 for a row's own tokens and 0 for padding, (batch, 1,
    length, 1); to the mean over a row's own tokens, (batch, heads, dim / heads)."""
    scores = ops.matmul(query, key.swapaxes(-2, -1)) * query.shape[-1] ** -0.5
    scores = scores + _MASKED * (1 - is_own.swapaxes(-2, -1))
    mixed = ops.matmul(ops.softmax(scores, axis=-1), value)
    return (mixed * is_own).sum(axis=2) / is_own.sum(axis=2)


class _MixedAttention(nn.Cell):
    """Tokens of (batch, length, dim) and lengths of (batch,) to what each row attends to on average, (batch, dim)."""

    def __init__(self, length: int, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.heads = heads
        self.places = Tensor(np.arange(length))
        self.norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.qkv = nn.Dense(dim, 3 * dim)
        self.out = Parameter(Tensor(np.empty((dim, dim), np.float32)), name="out")

    def construct(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        query, key, value = ops.chunk(self.qkv(self.norm(tokens)), 3, axis=-1)
        is_own = (self.places < lengths.expand_dims(1)).astype(tokens.dtype).reshape((batch, 1, length, 1))
        longest = int(lengths.asnumpy().max())
        query = self._split_heads(query)[:, :, :longest]
        key = self._split_heads(key)[:, :, :longest]
        value = self._split_heads(value)[:, :, :longest]
        mixed = _attend(query, key, value, is_own[:, :, :longest])
        return ops.matmul(mixed.reshape((batch, -1)), self.out)

    def _split_heads(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) to (batch, heads, length, dim / heads)."""
        batch, length, _ = tokens.shape
        return tokens.reshape((batch, length, self.heads, -1)).swapaxes(1, 2)
