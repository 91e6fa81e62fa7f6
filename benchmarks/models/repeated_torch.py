"""A small MLP that does its work several times over: its variants repeat it more or less often, so that the truth about
them is planted. Nothing is compiled, and all of them give the same output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autotune.models import weights
from autotune.models.torch.filling import fill

UNTUNED_REPEATS = 4


class Repeated(nn.Module):
    """Calls `inner` so many times with the same input and gives the last output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.repeats = UNTUNED_REPEATS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same whatever `repeats` is."""
        for _ in range(self.repeats - 1):
            self.inner(x)
        output: torch.Tensor = self.inner(x)
        return output


def set_repeats(repeats: int) -> Callable[[Repeated], None]:
    """A variant's function."""

    def change(model: Repeated) -> None:
        model.repeats = repeats

    return change


less, more, most = set_repeats(3), set_repeats(5), set_repeats(6)


def repeated(*, gain: int = 1, width: int = 256, layers: int = 4, batch: int = 32, seed: int = 0) -> dict[str, Any]:
    """With `gain` there is a variant that is 1.33 times as fast as the untuned model, without it all are slower."""
    layer = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU("tanh"))]
    model = Repeated(nn.Sequential(*layer)).eval()
    fill(model, seed)
    faster = {"less": less} if gain else {}
    return {
        "model": model,
        "inputs": (torch.from_numpy(weights.normal_input((batch, width), seed)),),
        "regions": [],
        "variants": {"work": {"planted": None, **faster, "more": more, "most": most}},
    }
