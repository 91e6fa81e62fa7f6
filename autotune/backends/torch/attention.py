"""Which kernel `scaled_dot_product_attention` takes: knob `sdpa`.

cuDNN's kernel was 1.7 to 2.3 times as fast as the others at training shapes on a Hopper GPU, and slower on an A100
(https://github.com/huggingface/transformers/pull/48163); PyTorch takes it last. Not measured on a device here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from autotune.errors import InvalidConfigError

_KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Value of the knob -> PyTorch's name, in the order in which they are tried after the chosen one."""
_ENABLED: dict[str, Callable[[], bool]] = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}


def require_order() -> None:
    """Raises InvalidConfigError for a release that cannot be told an order."""
    if "set_priority" not in inspect.signature(sdpa_kernel).parameters:
        raise InvalidConfigError(f"knob sdpa: torch {torch.__version__} takes no order of attention kernels")


def order_of(first: str) -> list[SDPBackend]:
    """The chosen kernel, then the others that the job has not switched off: not every kernel takes every input."""
    others = [name for name, is_enabled in _ENABLED.items() if name != first and is_enabled()]
    return [_KERNELS[name] for name in (first, *others)]


def kernels_in_order(order: list[SDPBackend]) -> Any:
    """Within, they are tried in this order. PyTorch keeps the order for the whole process; a compiler that captures
    this with the model decides while it compiles, and nothing is set at a call."""
    return sdpa_kernel(order, set_priority=True)
