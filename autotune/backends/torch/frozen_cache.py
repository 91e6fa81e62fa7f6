"""Inductor's cache of compiled graphs, for frozen ones: found again with other weights, and only where that is right.

The code of a frozen graph names its constants, and inductor takes their values from the model at hand, so what is in
the cache serves all weights of the same shapes. Left alone (2.13), it serves too few graphs and some wrongly:

* Graphs with constants that are packed for oneDNN cannot be cached, so that a model with a convolution or a linear
  layer is compiled anew in every process. Their values come from the model too, and the code depends on their shapes.
* A constant without dimensions is a number in the code, and not in the key: a model whose scale was trained on would
  answer with the former one. Such numbers are part of the key here.
* Two constants that are the same memory are one in the code. Which ones are is part of the key here.
* What inductor computes from weights while it writes the code (templates of max-autotune pack them in a way of their
  own) is cached with its values, whatever the weights are then. Such a graph is not cached here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch._inductor.config as inductor
from torch._inductor import codecache, compile_fx

from autotune.backends.torch.compiler import Entry

_KNOWN = {
    "CacheabilityValidator": "check_tensor",
    "FxGraphCachePickler": "_reduce_tensor",
    "FxGraphCache": "_save_graph",
}
_is_frozen: Any = getattr(codecache, "is_frozen_param", None)
"""PyTorch's own mark of what freezing made a constant, which inductor takes from the model at hand."""


@functools.cache
def cache_entries() -> tuple[Entry, ...]:
    """What is set while a frozen graph is compiled. A release that is made otherwise caches none."""
    is_known = all(hasattr(getattr(codecache, owner, None), method) for owner, method in _KNOWN.items())
    if not is_known or _is_frozen is None:
        return ((inductor, "fx_graph_cache", False),)
    return (
        (codecache, "CacheabilityValidator", _validator()),
        (codecache, "FxGraphCachePickler", _pickler()),
        (compile_fx, "FxGraphCache", _cache()),
    )


def _validator() -> type:
    class Validator(codecache.CacheabilityValidator):
        @staticmethod
        def check_tensor(t: torch.Tensor) -> None:
            if not _is_frozen(t):
                super(Validator, Validator).check_tensor(t)

    return Validator


def _pickler() -> type:
    class Pickler(codecache.FxGraphCachePickler):
        """Makes one key."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._seen: dict[Any, int] = {}

        def _reduce_tensor(self, t: torch.Tensor) -> Any:
            if not _is_frozen(t):
                return super()._reduce_tensor(t)
            known: Any
            if t.is_mkldnn:
                known, memory = (t.dtype, tuple(t.shape)), torch.ops.mkldnn.data_ptr(t)
            else:
                known, memory = super()._reduce_tensor(t), (t.untyped_storage().data_ptr(), t.storage_offset())
            number = t.tolist() if t.ndim == 0 else None
            return tuple, ((known, number, self._seen.setdefault(memory, len(self._seen))),)

    return Pickler


def _cache() -> type:
    class Cache(codecache.FxGraphCache):
        @staticmethod
        def _save_graph(key: str, compiled_graph: Any, *args: Any, **kwargs: Any) -> None:
            """`constants` holds those that are not taken from the model."""
            if not compiled_graph.constants:
                codecache.FxGraphCache._save_graph(key, compiled_graph, *args, **kwargs)

    return Cache
