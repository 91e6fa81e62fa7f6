"""Small models of many kinds, for the tables that the portfolio is made from: each compiles within seconds.

They stand for kinds of models, not for models: what matters is which operators they have, and in which shapes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autotune.models import weights
from autotune.models.torch.filling import fill, in_type

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _filled(model: nn.Module, seed: int, *inputs: torch.Tensor) -> Built:
    fill(model.eval(), seed)
    return model, inputs


def _normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(weights.normal_input(shape, seed))


def lstm_tagger(*, length: int = 24, dim: int = 128, tags: int = 20, seed: int = 0) -> Built:
    """A bidirectional LSTM over embedded tokens, and a score of each tag for each token."""
    return _filled(_LstmTagger(dim, tags), seed, torch.from_numpy(weights.token_input((2, length), 500, seed)))


class _LstmTagger(nn.Module):
    """Ids of (batch, length) to (batch, length, tags)."""

    def __init__(self, dim: int, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * dim, tags)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(ids))
        return functional.log_softmax(self.head(states), dim=-1)


def gru_by_hand(*, length: int = 6, dim: int = 192, batch: int = 8, seed: int = 0) -> Built:
    """A recurrent cell that is written out, step after step: small products and many pointwise operators."""
    return _filled(_GruByHand(dim), seed, _normal(batch, length, dim, seed=seed))


class _GruByHand(nn.Module):
    """(batch, length, dim) to (batch, dim)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * dim, 2 * dim)
        self.candidate = nn.Linear(2 * dim, dim)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(sequence[:, 0])
        for step in sequence.unbind(1):
            reset, update = torch.sigmoid(self.gates(torch.cat([step, state], -1))).chunk(2, -1)
            proposed = torch.tanh(self.candidate(torch.cat([step, reset * state], -1)))
            state = update * state + (1 - update) * proposed
        return state


def message_passing(*, nodes: int = 400, edges: int = 2400, dim: int = 64, rounds: int = 2, seed: int = 0) -> Built:
    """A graph network: messages along edges, added up at the nodes."""
    ends = torch.from_numpy(weights.token_input((2, edges), nodes, seed))
    return _filled(_MessagePassing(dim, rounds), seed, _normal(nodes, dim, seed=seed), ends)


class _MessagePassing(nn.Module):
    """Features of (nodes, dim) and edges of (2, edges) to (nodes, dim)."""

    def __init__(self, dim: int, rounds: int) -> None:
        super().__init__()
        self.message = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(rounds))
        self.update = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(rounds))

    def forward(self, features: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        source, target = ends
        for message, update in zip(self.message, self.update, strict=True):
            sent = functional.relu(message(torch.cat([features[source], features[target]], -1)))
            added = torch.zeros_like(features).index_add_(0, target, sent)
            features = functional.relu(update(torch.cat([features, added], -1))) + features
        return features


def decoder_step(
    *, cached: int = 96, dim: int = 256, depth: int = 2, heads: int = 4, dtype: str = "float32", seed: int = 0
) -> Built:
    """One token of a language model against the keys and values of those before: products of a single row."""
    cache = _normal(depth, 2, heads, cached, dim // heads, seed=seed)
    token = torch.from_numpy(weights.token_input((1, 1), 1000, seed))
    return in_type(*_filled(_DecoderStep(dim, depth, heads), seed, token, cache), dtype)


class _DecoderBlock(nn.Module):
    """Norm of the root mean square, attention to a cache, and a gated feed-forward layer."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_after = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.widen = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.narrow = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor | None) -> torch.Tensor:
        batch, length, dim = tokens.shape
        split = self.qkv(self.norm(tokens)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        if cache is not None:
            key, value = torch.cat([cache[0][None], key], 2), torch.cat([cache[1][None], value], 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        tokens = tokens + self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        normal = self.norm_after(tokens)
        result: torch.Tensor = tokens + self.narrow(functional.silu(self.gate(normal)) * self.widen(normal))
        return result


class _DecoderStep(nn.Module):
    """An id of (1, 1) and a cache to scores of (1, 1, 1000)."""

    def __init__(self, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, dim)
        self.blocks = nn.ModuleList(_DecoderBlock(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, 1000, bias=False)

    def forward(self, token: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        tokens = self.embedding(token)
        for block, own in zip(self.blocks, cache, strict=True):
            tokens = block(tokens, own)
        result: torch.Tensor = self.head(tokens)
        return result


def prefill(*, length: int = 48, dim: int = 256, depth: int = 2, heads: int = 4, seed: int = 0) -> Built:
    """A language model over a whole prompt, causal."""
    return _filled(_Prefill(dim, depth, heads), seed, torch.from_numpy(weights.token_input((1, length), 1000, seed)))


class _Prefill(_DecoderStep):
    """Ids of (1, length) to scores of (1, length, 1000)."""

    def forward(self, token: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        tokens = self.embedding(token)
        for block in self.blocks:
            tokens = block(tokens, None)
        result: torch.Tensor = self.head(tokens)
        return result


def separable(*, image: int = 64, width: int = 32, depth: int = 3, seed: int = 0) -> Built:
    """Inverted residuals with depthwise convolutions, as small image models have them."""
    return _filled(_Separable(width, depth), seed, _normal(1, 3, image, image, seed=seed))


class _InvertedResidual(nn.Module):
    """(batch, width, h, w) to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = features + self.layers(features)
        return result


class _Separable(nn.Module):
    """Images to scores of (batch, 100)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(_InvertedResidual(width) for _ in range(depth)))
        self.head = nn.Linear(width, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return result


def unet(*, image: int = 32, width: int = 32, seed: int = 0) -> Built:
    """A denoiser: group norms, SiLU, a way down and up with a shortcut."""
    return _filled(_Unet(width), seed, _normal(1, 4, image, image, seed=seed), _normal(1, width, seed=seed + 1))


class _Denoise(nn.Module):
    """A residual block that is told the time."""

    def __init__(self, width_in: int, width: int, time: int) -> None:
        super().__init__()
        self.norm, self.norm_after = nn.GroupNorm(8, width_in), nn.GroupNorm(8, width)
        self.first = nn.Conv2d(width_in, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.time, self.shortcut = nn.Linear(time, width), nn.Conv2d(width_in, width, 1)

    def forward(self, features: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(functional.silu(self.norm(features))) + self.time(time)[:, :, None, None]
        result: torch.Tensor = self.second(functional.silu(self.norm_after(hidden))) + self.shortcut(features)
        return result


class _Unet(nn.Module):
    """Noisy (batch, 4, h, w) and a time to (batch, 4, h, w)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.down, self.up = _Denoise(width, 2 * width, width), _Denoise(3 * width, width, width)

    def forward(self, noisy: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        features = self.stem(noisy)
        low = self.down(functional.avg_pool2d(features, 2), time)
        joined = torch.cat([features, functional.interpolate(low, scale_factor=2.0)], 1)
        result: torch.Tensor = self.out(self.up(joined, time))
        return result


def mixer(*, tokens: int = 64, dim: int = 128, depth: int = 2, batch: int = 4, seed: int = 0) -> Built:
    """Layers along the channels and, transposed, along the tokens: no attention, no convolution."""
    return _filled(_Mixer(tokens, dim, depth), seed, _normal(batch, tokens, dim, seed=seed))


class _Mixer(nn.Module):
    """(batch, tokens, dim) to the same shape."""

    def __init__(self, tokens: int, dim: int, depth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth))
        self.across = nn.ModuleList(self._layers(tokens) for _ in range(depth))
        self.along = nn.ModuleList(self._layers(dim) for _ in range(depth))

    @staticmethod
    def _layers(size: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        for number, (across, along) in enumerate(zip(self.across, self.along, strict=True)):
            state = state + across(self.norms[2 * number](state).transpose(1, 2)).transpose(1, 2)
            state = state + along(self.norms[2 * number + 1](state))
        return state


def recommender(*, batch: int = 64, tables: int = 8, dim: int = 32, seed: int = 0) -> Built:
    """Embedded categories, their products with each other, and layers over these."""
    ids = torch.from_numpy(weights.token_input((batch, tables), 1000, seed))
    return _filled(_Recommender(tables, dim), seed, ids, _normal(batch, 16, seed=seed))


class _Recommender(nn.Module):
    """Ids of (batch, tables) and features of (batch, 16) to (batch, 1)."""

    def __init__(self, tables: int, dim: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(1000, dim) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(dim + (tables + 1) ** 2, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(features)
        vectors = torch.stack([dense, *(table(ids[:, n]) for n, table in enumerate(self.embeddings))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([dense, products], 1)))


def waveform(*, samples: int = 2048, width: int = 32, seed: int = 0) -> Built:
    """Dilated convolutions over a signal, gated."""
    return _filled(_Waveform(width), seed, _normal(1, 1, samples, seed=seed))


class _Waveform(nn.Module):
    """(batch, 1, samples) to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv1d(1, width, 1), nn.Conv1d(width, 1, 1)
        self.gated = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2**number, dilation=2**number) for number in range(4)
        )

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        state = self.stem(signal)
        for layer in self.gated:
            filtered, gate = layer(state).chunk(2, 1)
            state = state + torch.tanh(filtered) * torch.sigmoid(gate)
        result: torch.Tensor = self.out(state)
        return result


def small_mlp(*, dim: int = 64, batch: int = 8, seed: int = 0) -> Built:
    """A few small layers: a call takes tens of microseconds, most of them Python."""
    layers = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 8))
    return _filled(layers, seed, _normal(batch, dim, seed=seed))


def wide_mlp(*, dim: int = 1024, batch: int = 64, seed: int = 0) -> Built:
    """Two large layers: nearly all of a call is matrix products."""
    layers = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
    return _filled(layers, seed, _normal(batch, dim, seed=seed))


def _to_train(built: Built, targets: torch.Tensor) -> dict[str, Any]:
    model, inputs = built
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return {"model": model.train(), "inputs": inputs, "targets": targets, "loss": _distance, "optimizer": optimizer}


def _distance(model: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
    *inputs, wanted = batch
    return functional.mse_loss(model(*inputs), wanted)


def train_mixer(*, seed: int = 0) -> dict[str, Any]:
    """Training steps of the mixer."""
    return _to_train(mixer(seed=seed), _normal(4, 64, 128, seed=seed + 1))


def train_prefill(*, seed: int = 0) -> dict[str, Any]:
    """Training steps of the language model, on scores that are wanted."""
    return _to_train(prefill(seed=seed), _normal(1, 48, 1000, seed=seed + 1))


def train_mlp(*, seed: int = 0) -> dict[str, Any]:
    """Training steps of small layers."""
    return _to_train(small_mlp(seed=seed), _normal(8, 8, seed=seed + 1))
