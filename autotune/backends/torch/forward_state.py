"""`ForwardState`: what the forward pass of a training step moves beside the gradients, kept so that it can be put back.

Generators of random numbers and the buffers that move (BatchNorm's statistics) are kept at each step. Until a first
step has succeeded so are all buffers, and the attributes of the modules, such as counters.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autotune.backends.torch.tensors import device_of

_REGISTERS = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has: its parts, hooks and mode."""


class ForwardState:
    """What one model's forward pass moves."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._is_known = False
        self._buffers: list[torch.Tensor] = []
        self._writes: list[int] = []
        """What PyTorch had counted for each buffer when it was looked at first."""
        self._moving: list[torch.Tensor] = []

    def kept(self) -> Callable[[], None]:
        """Copy what is there now. Returns what puts it back."""
        put_back = [generators_of(device_of(self.model))]
        if self._is_known:
            self._note_moving()
            put_back.append(contents_of(self._moving))
        else:
            self._buffers = list(self.model.buffers())
            self._writes = [buffer._version for buffer in self._buffers]
            put_back += [contents_of(self._buffers), *map(attributes_of, self.model.modules())]

        def all_put_back() -> None:
            for restore in put_back:
                restore()

        return all_put_back

    def note_success(self) -> None:
        """A step has come to its end: what moves is known by what was counted."""
        self._is_known = True

    def _note_moving(self) -> None:
        if len(self._moving) < len(self._buffers):
            counted = zip(self._buffers, self._writes, strict=True)
            self._moving = [buffer for buffer, writes in counted if buffer._version != writes]


def generators_of(device: torch.device) -> Callable[[], None]:
    """Copy the states of the generators of random numbers. Returns what puts them back."""
    module: Any = torch if device.type == "cpu" else torch.get_device_module(device)
    state, of_device = torch.get_rng_state(), module.get_rng_state()
    of_python, of_numpy = random.getstate(), np.random.get_state()

    def put_back() -> None:
        torch.set_rng_state(state)
        module.set_rng_state(of_device)
        random.setstate(of_python)
        np.random.set_state(of_numpy)

    return put_back


def contents_of(tensors: list[torch.Tensor]) -> Callable[[], None]:
    """Copy what is in them. Returns what puts it back."""
    copies = [tensor.detach().clone() for tensor in tensors]

    def put_back() -> None:
        with torch.no_grad():
            for tensor, content in zip(tensors, copies, strict=True):
                tensor.copy_(content)

    return put_back


def attributes_of(module: torch.nn.Module) -> Callable[[], None]:
    """Copy what Python holds in a module. Returns what puts it back: values as the objects that they were; lists, dicts
    and sets with what was in them."""
    held = vars(module)
    before = {name: (value, copy.copy(value)) for name, value in held.items() if _is_own(name, value)}

    def put_back() -> None:
        for name in [name for name, value in held.items() if _is_own(name, value) and name not in before]:
            del held[name]
        for name, (value, content) in before.items():
            held[name] = value
            _refill(value, content)

    return put_back


def _is_own(name: str, value: object) -> bool:
    return name not in _REGISTERS and isinstance(value, (bool, int, float, str, type(None), list, dict, set))


def _refill(value: Any, content: Any) -> None:
    if isinstance(value, list):
        value[:] = content
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(content)
