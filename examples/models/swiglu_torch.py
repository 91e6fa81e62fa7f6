"""A small encoder with gated feed-forward layers (SwiGLU: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202).

It declares variants: Swish as it is commonly written or as one custom operator, and attention by PyTorch's fused
function or step by step. Which of them is faster depends on what the compiler makes of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autotune.models import weights
from autotune.models.torch.filling import fill
from autotune.models.torch.transformer import SelfAttention

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
    """The encoder and one input of (batch, length, dim), with its variants."""
    model = _SwiGlu(dim, depth, heads, hidden).eval()
    fill(model, seed)
    return {
        "model": model,
        "inputs": (torch.from_numpy(weights.normal_input((batch, length, dim), seed)),),
        "variants": {
            "activation": {"plain": None, "fused": use_fused_swish},
            "attention": {"sdpa": None, "math": use_math_attention},
        },
    }


def use_fused_swish(model: nn.Module) -> None:
    """Swish as one operator, which the compiler calls and does not look into."""
    for each in model.modules():
        if isinstance(each, _GatedFeedForward):
            each.swish = fused_swish


def use_math_attention(model: nn.Module) -> None:
    """Attention step by step, which the compiler may fuse with what is around it."""
    for each in model.modules():
        if isinstance(each, SelfAttention):
            each.attend = _attend_step_by_step


def swish(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x), as in the paper (arXiv:1710.05941)."""
    return x * torch.sigmoid(x)


@torch.library.custom_op("autotune::swish", mutates_args=(), schema="(Tensor x) -> Tensor")
def fused_swish(x: torch.Tensor) -> torch.Tensor:
    """The same in one pass over memory. A kernel of one's own would be called here."""
    return functional.silu(x)


@fused_swish.register_fake
def _shape_of_swish(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _keep_input(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG001 -- PyTorch's names
    ctx.save_for_backward(*inputs)


def _swish_gradient(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    gate = torch.sigmoid(x)
    result: torch.Tensor = gradient * gate * (1 + x * (1 - gate))
    return result


fused_swish.register_autograd(_swish_gradient, setup_context=_keep_input)


def _attend_step_by_step(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return torch.softmax(scores, dim=-1) @ value


class _GatedFeedForward(nn.Module):
    """(batch, length, dim) to the same shape."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.widen = nn.Linear(dim, hidden, bias=False)
        self.narrow = nn.Linear(hidden, dim, bias=False)
        self.swish: Callable[[torch.Tensor], torch.Tensor] = swish

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.narrow(self.swish(self.gate(tokens)) * self.widen(tokens))
        return result


class _Block(nn.Module):
    """Pre-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.attention = SelfAttention(dim, heads)
        self.feed_forward_norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.feed_forward = _GatedFeedForward(dim, hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        result: torch.Tensor = tokens + self.feed_forward(self.feed_forward_norm(tokens))
        return result


class _SwiGlu(nn.Module):
    """(batch, length, dim) to the same shape."""

    def __init__(self, dim: int, depth: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(dim, heads, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=_NORM_EPS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        result: torch.Tensor = self.norm(tokens)
        return result
