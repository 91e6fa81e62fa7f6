"""Vision Transformer (Dosovitskiy et al., An Image is Worth 16x16 Words, arXiv:2010.11929)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill, in_type
from autotune.models.torch.transformer import FeedForward, SelfAttention

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
    dtype: str = "float32",
    seed: int = 0,
) -> dict[str, Any]:
    """A ViT of the width of ViT-Ti and half its depth, and one input of (batch, 3, image, image)."""
    model = _ViT(
        image=image, patch=patch, dim=dim, depth=depth, heads=heads, mlp_ratio=mlp_ratio, classes=classes
    ).eval()
    fill(model, seed)
    images = torch.from_numpy(weights.normal_input((batch, 3, image, image), seed))
    model, inputs = in_type(model, (images,), dtype)
    return {"model": model, "inputs": inputs, "padding": {"batch": 0}}


class _Block(nn.Module):
    """Pre-norm encoder block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.attention = SelfAttention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.mlp = FeedForward(dim, mlp_ratio * dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        result: torch.Tensor = tokens + self.mlp(self.mlp_norm(tokens))
        return result


class _ViT(nn.Module):
    """(batch, 3, image, image) to class scores of (batch, classes)."""

    def __init__(
        self, *, image: int, patch: int, dim: int, depth: int, heads: int, mlp_ratio: int, classes: int
    ) -> None:
        super().__init__()
        if image % patch:
            raise ValueError(f"image={image} is not a multiple of patch={patch}")
        self.patches = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, dim))
        self.positions = nn.Parameter(torch.empty((image // patch) ** 2 + 1, dim))
        self.blocks = nn.ModuleList(_Block(dim, heads, mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=_NORM_EPS)
        self.head = nn.Linear(dim, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(images.shape[0], 1, -1)
        tokens = torch.cat((class_token, patches), dim=1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        scores: torch.Tensor = self.head(self.norm(tokens)[:, 0])
        return scores
