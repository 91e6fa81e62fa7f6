"""The small-ops MLP of `small_mlp_torch.py`: the same function of the same weights."""

from __future__ import annotations

from mindspore import Tensor, nn

from autotune.models import weights
from autotune.models.mindspore.filling import fill


def small_mlp(
    *, width: int = 64, layers: int = 12, batch: int = 4, seed: int = 0
) -> tuple[nn.Cell, tuple[Tensor, ...]]:
    """`layers` times linear, layer norm, GELU; one input of (batch, width)."""
    parts = [
        part
        for _ in range(layers)
        for part in (nn.Dense(width, width), nn.LayerNorm((width,), epsilon=1e-5), nn.GELU(approximate=True))
    ]
    model = nn.SequentialCell(*parts).set_train(False)
    fill(model, seed)
    return model, (Tensor(weights.normal_input((batch, width), seed)),)
