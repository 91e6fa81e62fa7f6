"""A small encoder with gated feed-forward layers (SwiGLU: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202).

It declares a variant: Swish as it is commonly written, or as one custom operator (`ops.Custom`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from autotune.models import weights
from autotune.models.mindspore.filling import fill
from autotune.models.mindspore.transformer import SelfAttention

__all__ = ["swiglu"]

_NORM_EPS = 1e-6


def swiglu(
    *,
    length: int = 64,
    dim: int = 128,
    depth: int = 4,
    heads: int = 4,
    hidden: int = 384,
    batch: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """The encoder and one input of (batch, length, dim), with its variant."""
    model = _SwiGlu(dim, depth, heads, hidden).set_train(False)
    fill(model, seed)
    return {
        "model": model,
        "inputs": (Tensor(weights.normal_input((batch, length, dim), seed)),),
        "variants": {"activation": {"plain": None, "fused": use_fused_swish}},
    }


def use_fused_swish(model: nn.Cell) -> None:
    """Swish as one operator, which the compiler calls and does not look into."""
    for _, each in model.cells_and_names():
        if isinstance(each, _GatedFeedForward):
            each.swish = fused_swish()


def swish(x: Tensor) -> Tensor:
    """x * sigmoid(x), as in the paper (arXiv:1710.05941)."""
    return x * ops.sigmoid(x)


def fused_swish() -> Callable[[Tensor], Tensor]:
    """The same as a custom operator: NumPy here, a kernel of one's own (`func_type="aot"`) where there is one.

    https://www.mindspore.cn/docs/en/r2.10.0/api_python/ops/mindspore.ops.Custom.html
    """
    operator: Callable[[Tensor], Tensor] = ops.Custom(_swish, lambda shape: shape, lambda dtype: dtype, "pyfunc")
    return operator


def _swish(x: NDArray[np.float32]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = x / (1 + np.exp(-x))
    return result


class _GatedFeedForward(nn.Cell):
    """(batch, length, dim) to the same shape."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Dense(dim, hidden, has_bias=False)
        self.widen = nn.Dense(dim, hidden, has_bias=False)
        self.narrow = nn.Dense(hidden, dim, has_bias=False)
        self.swish: Callable[[Tensor], Tensor] = swish

    def construct(self, tokens: Tensor) -> Tensor:
        return self.narrow(self.swish(self.gate(tokens)) * self.widen(tokens))


class _Block(nn.Cell):
    """Pre-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.attention = SelfAttention(dim, heads)
        self.feed_forward_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.feed_forward = _GatedFeedForward(dim, hidden)

    def construct(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.feed_forward(self.feed_forward_norm(tokens))


class _SwiGlu(nn.Cell):
    """(batch, length, dim) to the same shape."""

    def __init__(self, dim: int, depth: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.CellList([_Block(dim, heads, hidden) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)

    def construct(self, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)
