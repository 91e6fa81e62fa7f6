"""Small models of further kinds for MindSpore, for the tables that the portfolio is made from."""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore.filling import fill

Built = tuple[nn.Cell, tuple[Tensor, ...]]


def mixer(*, tokens: int = 64, dim: int = 128, depth: int = 2, batch: int = 2, seed: int = 0) -> Built:
    """Layers along the channels and, transposed, along the tokens: no attention, no convolution."""
    model = _Mixer(tokens, dim, depth).set_train(False)
    fill(model, seed)
    return model, (Tensor(weights.normal_input((batch, tokens, dim), seed)),)


class _Layers(nn.Cell):
    """(..., size) to the same shape."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Dense(size, 2 * size), nn.Dense(2 * size, size)

    def construct(self, state: Tensor) -> Tensor:
        return self.narrow(ops.gelu(self.widen(state), approximate="tanh"))


class _Mixer(nn.Cell):
    """(batch, tokens, dim) to the same shape."""

    def __init__(self, tokens: int, dim: int, depth: int) -> None:
        super().__init__()
        self.across = nn.CellList([_Layers(tokens) for _ in range(depth)])
        self.along = nn.CellList([_Layers(dim) for _ in range(depth)])
        self.norms = nn.CellList([nn.LayerNorm((dim,), epsilon=1e-6) for _ in range(2 * depth)])

    def construct(self, state: Tensor) -> Tensor:
        for number in range(len(self.across)):
            state = state + self.across[number](self.norms[2 * number](state).swapaxes(1, 2)).swapaxes(1, 2)
            state = state + self.along[number](self.norms[2 * number + 1](state))
        return state


def gru_by_hand(*, length: int = 6, dim: int = 128, batch: int = 8, seed: int = 0) -> Built:
    """A recurrent cell that is written out, step after step."""
    model = _GruByHand(dim).set_train(False)
    fill(model, seed)
    return model, (Tensor(weights.normal_input((batch, length, dim), seed)),)


class _GruByHand(nn.Cell):
    """(batch, length, dim) to (batch, dim)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gates, self.candidate = nn.Dense(2 * dim, 2 * dim), nn.Dense(2 * dim, dim)

    def construct(self, sequence: Tensor) -> Tensor:
        state = ops.zeros_like(sequence[:, 0])
        for number in range(sequence.shape[1]):
            step = sequence[:, number]
            reset, update = ops.chunk(ops.sigmoid(self.gates(ops.cat((step, state), -1))), 2, axis=-1)
            proposed = ops.tanh(self.candidate(ops.cat((step, reset * state), -1)))
            state = update * state + (1 - update) * proposed
        return state
