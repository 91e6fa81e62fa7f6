"""Seeded weights for a MindSpore model."""

from __future__ import annotations

from types import MappingProxyType

from mindspore import Tensor, nn

from autotune.models import weights

__all__ = ["canonical_name", "fill"]

_CANONICAL = MappingProxyType(
    {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
        "embedding_table": "weight",
    }
)


def canonical_name(name: str) -> str:
    """The name that PyTorch gives the parameter which MindSpore calls `name`; both are dotted paths."""
    path, dot, role = name.rpartition(".")
    return path + dot + _CANONICAL.get(role, role)


def fill(model: nn.Cell, seed: int, *, gain: float = 1.0) -> None:
    """Overwrites every parameter of the model with its seeded values; running statistics are parameters here.

    `gain` scales matrices and kernels, see `weights.value`. The values come from numpy, so no operator runs.
    """
    for name, parameter in model.parameters_and_names():
        values = weights.value(canonical_name(name), tuple(parameter.shape), seed, gain=gain)
        parameter.set_data(Tensor(values))
