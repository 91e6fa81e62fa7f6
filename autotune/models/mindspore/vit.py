"""Vision Transformer (Dosovitskiy et al., An Image is Worth 16x16 Words, arXiv:2010.11929)."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore.filling import fill
from autotune.models.mindspore.transformer import FeedForward, SelfAttention

__all__ = ["vit"]

_NORM_EPS = 1e-6


def vit(
    *,
    image: int = 224,
    patch: int = 16,
    dim: int = 192,
    depth: int = 6,
    heads: int = 3,
    mlp_ratio: int = 4,
    classes: int = 1000,
    batch: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """A ViT of the width of ViT-Ti and half its depth, and one input of (batch, 3, image, image)."""
    model = _ViT(
        image=image, patch=patch, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio, classes=classes
    ).set_train(False)
    fill(model, seed)
    return {
        "model": model,
        "inputs": (Tensor(weights.normal_input((batch, 3, image, image), seed)),),
        "padding": {"batch": 0},
    }


class _Block(nn.Cell):
    """Pre-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.attention = SelfAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.mlp = FeedForward(dim, mlp_ratio * dim)

    def construct(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.mlp(self.mlp_norm(tokens))


class _ViT(nn.Cell):
    """(batch, 3, image, image) to class scores of (batch, classes)."""

    def __init__(
        self, *, image: int, patch: int, dim: int, depth: int, heads: int, mlp_ratio: int, classes: int
    ) -> None:
        super().__init__()
        if image % patch:
            raise ValueError(f"image={image} is not a multiple of patch={patch}")
        length = (image // patch) ** 2 + 1
        self.patches = nn.Conv2d(3, dim, kernel_size=patch, stride=patch, pad_mode="valid", has_bias=True)
        self.class_token = Parameter(Tensor(np.empty((1, dim), np.float32)), name="class_token")
        self.positions = Parameter(Tensor(np.empty((length, dim), np.float32)), name="positions")
        self.blocks = nn.CellList([_Block(dim, heads, mlp_ratio) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.head = nn.Dense(dim, classes)

    def construct(self, images: Tensor) -> Tensor:
        patches = self.patches(images)
        batch, dim, _, _ = patches.shape
        patches = patches.reshape((batch, dim, -1)).swapaxes(1, 2)
        class_token = ops.broadcast_to(self.class_token, (batch, 1, dim))
        tokens = ops.cat((class_token, patches), axis=1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        # `narrow` instead of `[:, 0]`: capture by bytecode falls back to eager at a tensor index.
        first = ops.narrow(self.norm(tokens), 1, 0, 1).squeeze(1)
        return self.head(first)
