"""A second object for the same module: what a job holds while its calls go through the compiled code.

`torch.compile` wraps a module, and a wrapper puts `_orig_mod.` before each name in a checkpoint and is of another
class. A proxy is of a subclass of the model's own class and shares its `__dict__`: parameters, buffers, modes, hooks'
registers and attributes are the model's own, and only its calls go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autotune.backends.proxy_object import proxy_of


def make_proxy(model: torch.nn.Module, call: Callable[..., Any]) -> torch.nn.Module:
    """A module that is `model` in all but its calls, which go to `call`."""
    other: torch.nn.Module = proxy_of(model, call, object.__new__)
    return other
