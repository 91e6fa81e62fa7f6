"""A second object for the same module: what a job holds while its calls go through the compiled code.

`torch.compile` wraps a module, and a wrapper puts `_orig_mod.` before each name in a checkpoint and is of another
class. A proxy is of a subclass of the model's own class and shares its `__dict__`: parameters, buffers, modes, hooks'
registers and attributes are the model's own, and only its calls go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def make_proxy(model: torch.nn.Module, call: Callable[..., Any]) -> torch.nn.Module:
    """A module that is `model` in all but its calls, which go to `call`.

    Copied or pickled it becomes the model itself, uncompiled.
    """
    own = type(model)

    def reduce(_: Any, protocol: Any) -> Any:
        return _itself, (model,)

    body = {
        "__call__": staticmethod(call),
        "__reduce_ex__": reduce,
        "__module__": own.__module__,
        "__doc__": own.__doc__,
        _ORIGINAL: staticmethod(lambda: model),
    }
    # Past the metaclass's and the class's own ways of making classes and objects: only the calls are to differ.
    kind = type.__new__(type(own), own.__name__, (own,), body)
    kind.__qualname__ = own.__qualname__
    other: torch.nn.Module = object.__new__(kind)
    object.__setattr__(other, "__dict__", vars(model))
    return other


def original(model: torch.nn.Module) -> torch.nn.Module:
    """The module that a proxy was made of; the very same object for any other."""
    found = getattr(type(model), _ORIGINAL, None)
    return model if found is None else found()


_ORIGINAL = "_autotune_original"


def _itself(model: torch.nn.Module) -> torch.nn.Module:
    return model
