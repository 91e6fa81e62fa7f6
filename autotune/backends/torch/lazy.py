"""Lazy modules (`torch.nn.LazyLinear` and others): their parameters have no shape before the first call.

https://docs.pytorch.org/docs/stable/generated/torch.nn.modules.lazy.LazyModuleMixin.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy


def materialise(model: torch.nn.Module, call: Callable[[], object]) -> None:
    """Give every parameter of the model its shape, by one `call` where any lacks it. Buffers, such as the statistics of
    a BatchNorm in training mode, are as the model's first call finds them."""
    if not any(is_lazy(each) for each in [*model.parameters(), *model.buffers()]):
        return
    kept: dict[torch.Tensor, torch.Tensor] = {}

    def keep(module: torch.nn.Module, _: Any) -> None:
        for buffer in module.buffers():
            if buffer not in kept and not is_lazy(buffer):
                kept[buffer] = buffer.clone()

    # A lazy module's own hook, which makes its buffers, was there first and runs first.
    hooks = [each.register_forward_pre_hook(keep) for each in model.modules()]
    try:
        with torch.no_grad():
            call()
            for buffer, before in kept.items():
                buffer.copy_(before)
    finally:
        for hook in hooks:
            hook.remove()
