"""A decode step of a small language model that keeps keys and values in Parameters, and a `reset` of it.

`--task generate` is for PyTorch. In MindSpore the step for one token can be tuned like any call: most of the time of a
generation goes there. The cache has room for a fixed number of tokens, so that all steps are one graph:

* keys, values and the position are Parameters, which a graph can write to (`ops.assign`); a Python number would be a
  constant of it;
* a token writes its row by a mask, and sees the rows up to its own;
* `reset` puts the position back. Rows behind it are not seen, and are written again.

In a job the loop is yours:

    step = autotune.load("best.yaml").apply(model)
    model.fill(prompt)
    for _ in range(new_tokens):
        ids = step(ids).argmax(-1)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore.filling import canonical_name
from autotune.models.mindspore.transformer import FeedForward

__all__ = ["decode_step"]

_NORM_EPS = 1e-6
_HIDDEN = -1e9
"""A score whose softmax is 0."""


def decode_step(
    *,
    room: int = 128,
    prompt: int = 32,
    dim: int = 128,
    depth: int = 2,
    heads: int = 4,
    vocab: int = 1000,
    batch: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """The model with the keys and values of a prompt, and the next token's id, (batch, 1)."""
    model = _Decoder(room=room, dim=dim, depth=depth, heads=heads, vocab=vocab, batch=batch).set_train(False)
    for name, parameter in model.parameters_and_names():
        if parameter.requires_grad:  # The others are the state.
            parameter.set_data(Tensor(weights.value(canonical_name(name), tuple(parameter.shape), seed)))
    ids = weights.token_input((batch, prompt + 1), vocab, seed)
    model.fill(Tensor(ids[:, :prompt]))
    return {"model": model, "inputs": (Tensor(ids[:, prompt:]),), "reset": lambda model: model.go_to(prompt)}


class _Attention(nn.Cell):
    """Attention of one token to itself and those before it: (batch, 1, dim) to the same shape."""

    def __init__(self, *, room: int, dim: int, heads: int, batch: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Dense(dim, 3 * dim)
        self.out = nn.Dense(dim, dim)
        empty = np.zeros((batch, heads, room, dim // heads), np.float32)
        self.keys = Parameter(Tensor(empty), name="keys", requires_grad=False)
        self.values = Parameter(Tensor(empty), name="values", requires_grad=False)

    def construct(self, token: Tensor, is_own: Tensor, is_seen: Tensor) -> Tensor:
        """`is_own`, `is_seen`: whether a row of the cache is the token's, or not after it, (room, 1) and (1, room)."""
        query, key, value = ops.chunk(self.qkv(token).reshape((token.shape[0], 1, 3 * self.heads, -1)), 3, axis=2)
        keys = ops.select(is_own, key.swapaxes(1, 2), self.keys)
        values = ops.select(is_own, value.swapaxes(1, 2), self.values)
        ops.assign(self.keys, keys)
        ops.assign(self.values, values)
        scores = ops.matmul(query.swapaxes(1, 2), keys.swapaxes(-2, -1)) * self.scale
        scores = ops.masked_fill(scores, ops.logical_not(is_seen), _HIDDEN)
        mixed = ops.matmul(ops.softmax(scores, axis=-1), values)
        return self.out(mixed.swapaxes(1, 2).reshape(token.shape))


class _Block(nn.Cell):
    """Pre-norm decoder block: (batch, 1, dim) to the same shape."""

    def __init__(self, *, room: int, dim: int, heads: int, batch: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.attention = _Attention(room=room, dim=dim, heads=heads, batch=batch)
        self.mlp_norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.mlp = FeedForward(dim, 4 * dim)

    def construct(self, token: Tensor, is_own: Tensor, is_seen: Tensor) -> Tensor:
        token = token + self.attention(self.attention_norm(token), is_own, is_seen)
        return token + self.mlp(self.mlp_norm(token))


class _Decoder(nn.Cell):
    """Ids of one token, (batch, 1), to the logits of the next, (batch, 1, vocab); each call is one step further."""

    def __init__(self, *, room: int, dim: int, depth: int, heads: int, vocab: int, batch: int) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.embedding = nn.Embedding(vocab, dim)
        self.positions = Parameter(Tensor(np.empty((room, dim), np.float32)), name="positions")
        self.blocks = nn.CellList([_Block(room=room, dim=dim, heads=heads, batch=batch) for _ in range(depth)])
        self.norm = nn.LayerNorm((dim,), epsilon=_NORM_EPS)
        self.head = nn.Dense(dim, vocab)
        self.places = Tensor(np.arange(room, dtype=np.int32))
        self.position = Parameter(Tensor(np.zeros(1, np.int32)), name="position", requires_grad=False)

    def construct(self, ids: Tensor) -> Tensor:
        is_own = (self.places == self.position).expand_dims(1)
        is_seen = (self.places <= self.position).expand_dims(0)
        token = self.embedding(ids) + ops.gather(self.positions, self.position, 0)
        for block in self.blocks:
            token = block(token, is_own, is_seen)
        logits = self.head(self.norm(token))
        ops.assign_add(self.position, Tensor(np.ones(1, np.int32)))
        return logits

    def go_to(self, num_tokens: int) -> None:
        """The next token's place."""
        ops.assign(self.position, Tensor(np.full(1, num_tokens, np.int32)))

    def fill(self, ids: Tensor) -> None:
        """Begin with a prompt, (batch, length)."""
        self.go_to(0)
        for place in range(ids.shape[1]):
            self(ids[:, place : place + 1])
