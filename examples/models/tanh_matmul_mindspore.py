"""A chain of matrix products and tanh: the smallest workload in which fusing the elementwise part can pay.

The weight is filled at the edge of chaos, see `tanh_matmul_torch.py`.
"""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from autotune.models import weights
from autotune.models.mindspore.filling import fill

__all__ = ["tanh_matmul"]


def tanh_matmul(*, size: int = 512, repeats: int = 100, seed: int = 0) -> tuple[nn.Cell, tuple[Tensor, ...]]:
    """The chain of `repeats` steps with one weight, and one input of (size, size)."""
    model = _TanhMatmul(size, repeats).set_train(False)
    fill(model, seed)
    return model, (Tensor(weights.normal_input((size, size), seed)),)


class _TanhMatmul(nn.Cell):
    """(rows, size) to the same shape."""

    def __init__(self, size: int, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats
        self.weight = Parameter(Tensor(np.empty((size, size), np.float32)), name="weight")

    def construct(self, state: Tensor) -> Tensor:
        for _ in range(self.repeats):
            state = ops.tanh(ops.matmul(state, self.weight))
        return state
