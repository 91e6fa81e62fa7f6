"""Whether a call is recorded for gradients. It is asked at each call of an applied model.

Recording is on by default, so that a job that serves without `torch.no_grad()` comes here at each call: what requires
gradients may have changed since the last one. 25 µs for 121 modules that hold 144 weights of which none does, where
`any(each.requires_grad for each in model.parameters())` takes 123 (2.13).
"""

from __future__ import annotations

from typing import Any

import torch

from autotune.backends.torch.containers import tensors_in
from autotune.backends.torch.function_model import FunctionModel


def are_recorded(model: torch.nn.Module | None, *values: Any) -> bool:
    """Whether gradients are recorded now, and a parameter of the model or a tensor in the values requires them."""
    if not torch.is_grad_enabled():
        return False
    return any(each.requires_grad for each in tensors_in(values)) or (model is not None and _has_weights(model))


def _has_weights(model: torch.nn.Module) -> bool:
    around = model.around() if isinstance(model, FunctionModel) else []
    if any(isinstance(each, torch.Tensor) and each.requires_grad for each in around):
        return True
    return any(map(_requires_gradients, (model, *(each for each in around if isinstance(each, torch.nn.Module)))))


def _requires_gradients(module: torch.nn.Module) -> bool:
    modules, seen = [module], {module}
    while modules:
        held = vars(modules.pop())
        for parameter in held["_parameters"].values():
            if parameter is not None and parameter.requires_grad:
                return True
        new = [each for each in held["_modules"].values() if each is not None and each not in seen]
        seen.update(new)
        modules += new
    return False
