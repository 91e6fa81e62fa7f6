"""What `device.py` runs on a device beside the bundled models: a small model that meets every kind of kernel, ResNet-50
(He et al., arXiv:1512.03385) and a decoder of GPT-2's form (Radford et al., Language Models are Unsupervised Multitask
Learners, 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from autotune.models import weights
from autotune.models.torch.filling import fill
from autotune.models.torch.training import cross_entropy
from autotune.models.torch.transformer import FeedForward

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""Value of `attention` -> the one kernel of scaled_dot_product_attention that may run: it fails where there is none."""


class _Attention(nn.Module):
    """Multi-head self-attention, causal or not, by any kernel or by a named one."""

    def __init__(self, dim: int, heads: int, *, causal: bool, kernel: str | None = None) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.kernel = None if kernel is None else KERNELS[kernel]
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, _ = tokens.shape
        query, key, value = self.qkv(tokens).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.kernel is None:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        else:
            with sdpa_kernel(self.kernel):
                mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class _Block(nn.Module):
    """Pre-norm block: (batch, length, dim) to the same shape."""

    def __init__(self, dim: int, heads: int, *, causal: bool, kernel: str | None = None) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = _Attention(dim, heads, causal=causal, kernel=kernel)
        self.mlp = FeedForward(dim, 4 * dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        result: torch.Tensor = tokens + self.mlp(self.mlp_norm(tokens))
        return result


class _Probe(nn.Module):
    """Convolutions with batch norm, attention, matrix products: (batch, 3, 32, 32) to (batch, 10)."""

    def __init__(self, dim: int, kernel: str | None, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, dim, kernel_size=3, stride=2, padding=1, bias=False), nn.BatchNorm2d(dim), nn.ReLU(),
            nn.Conv2d(dim, dim, kernel_size=3, stride=2, padding=1, bias=False), nn.BatchNorm2d(dim), nn.ReLU(),
        )  # fmt: skip
        self.blocks = nn.ModuleList(_Block(dim, 2, causal=False, kernel=kernel) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(dim, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            tokens = block(tokens)
        scores: torch.Tensor = self.head(self.dropout(tokens).mean(dim=1))
        return scores


def probe(
    *,
    dim: int = 64,
    attention: str = "any",
    channels_last: int = 0,
    dtype: str = "float32",
    dropout: float = 0.0,
    batch: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """The small model; its author may have chosen the kernel of the attention, the memory format and the precision."""
    model = _Probe(dim, None if attention == "any" else attention, dropout).eval()
    fill(model, seed)
    images = torch.from_numpy(weights.normal_input((batch, 3, 32, 32), seed)).to(getattr(torch, dtype))
    model = model.to(getattr(torch, dtype))
    if channels_last:
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return {"model": model, "inputs": (images,)}


def probe_training(*, dim: int = 64, dropout: float = 0.0, batch: int = 4, seed: int = 0) -> dict[str, Any]:
    """The small model with a loss and Adam."""
    built = probe(dim=dim, dropout=dropout, batch=batch, seed=seed)
    return _with_recipe(built["model"], built["inputs"], cross_entropy, 10, seed)


class _Bottleneck(nn.Module):
    """(batch, channels_in, h, w) to (batch, 4 * channels, h/stride, w/stride)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * channels:
            conv = nn.Conv2d(channels_in, 4 * channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * channels))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.bn1(self.conv1(features)))
        inner = functional.relu(self.bn2(self.conv2(inner)))
        return functional.relu(self.bn3(self.conv3(inner)) + self.shortcut(features))


def resnet50(
    *, image: int = 224, width: int = 64, depth: int = 16, classes: int = 1000, batch: int = 32, seed: int = 0
) -> dict[str, Any]:
    """ResNet-50 (the paper's with 16 blocks of width 64; with fewer, stages are left short for a check on a CPU)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]  # fmt: skip
    channels, left = width, depth
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for number in range(min(blocks, max(left, 1))):
            layers.append(_Bottleneck(channels, width * 2**stage, 2 if stage and not number else 1))
            channels, left = 4 * width * 2**stage, left - 1
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)).eval()
    fill(model, seed)
    images = torch.from_numpy(weights.normal_input((batch, 3, image, image), seed))
    return {"model": model, "inputs": (images,), "padding": {"batch": 0}}


class _Decoder(nn.Module):
    """(batch, seq) token ids to (batch, vocab): scores of the next token."""

    def __init__(self, *, seq: int, dim: int, depth: int, heads: int, vocab: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(_Block(dim, heads, causal=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            tokens = block(tokens)
        scores: torch.Tensor = self.head(self.norm(tokens[:, -1]))
        return scores


def decoder(
    *,
    seq: int = 1024,
    dim: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocab: int = 50257,
    batch: int = 4,
    dtype: str = "bfloat16",
    seed: int = 0,
) -> dict[str, Any]:
    """GPT-2's sizes, in the precision in which decoders are served; the call that reads a prompt."""
    model = _Decoder(seq=seq, dim=dim, depth=depth, heads=heads, vocab=vocab).eval()
    fill(model, seed)
    ids = torch.from_numpy(weights.token_input((batch, seq), vocab, seed))
    return {"model": model.to(getattr(torch, dtype)), "inputs": (ids,), "padding": {"batch": 0}}


def _with_recipe(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], loss: Callable[..., Any], classes: int, seed: int
) -> dict[str, Any]:
    return {
        "model": model.train(),
        "inputs": inputs,
        "targets": torch.from_numpy(weights.labels(len(inputs[0]), classes, seed)),
        "loss": loss,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-4),
    }
