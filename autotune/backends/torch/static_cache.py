"""Static caches of keys and values for `generate` of Hugging Face's models: what they are, and who has one when.

A static cache has room for a fixed number of tokens, so that all calls of a decode step have the same sizes. One is
used again by later calls of `generate`, since compiled code, and graphs that were captured, are for its sizes or even
its addresses. Rule of this file: a cache is with one call of `generate` at a time, and is emptied (zeros, not just a
length of zero: what is masked is multiplied by zero, and NaN would stay) before the next one gets it.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any

import torch

MOST_IDLE = 4
"""Caches that are kept while no call uses them."""


@dataclass(frozen=True)
class CacheForm:
    """What a cache is made for."""

    batch: int
    length: int
    """Tokens."""
    dtype: torch.dtype
    device: torch.device
    is_inference: bool
    """It is made under `torch.inference_mode()`, and cannot be written to outside of that."""


class StaticCaches:
    """The static caches of one model. Threads may share it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._idle: list[Any] = []

    def take(self, form: CacheForm) -> Any:
        """An empty cache of this form, which nobody else has."""
        with self._lock:
            cache = next((cache for cache in self._idle if cache.form == form), None)
            if cache is not None:
                self._idle.remove(cache)
        if cache is None:
            return self._made(form)
        cache.reset()
        cache.num_calls = 0
        return cache

    def give_back(self, cache: Any) -> None:
        """The call that took it has ended, and nobody holds it any more."""
        with self._lock:
            self._idle = [*self._idle, cache][-MOST_IDLE:]

    def clear(self) -> None:
        """Let go of those that no call uses."""
        with self._lock:
            self._idle = []

    def owns(self, cache: object) -> bool:
        """It was taken here."""
        return getattr(cache, "owner", None) is self

    def _made(self, form: CacheForm) -> Any:
        cache = _kind()(config=self._model.config.get_text_config(decoder=True), max_cache_len=form.length)
        cache.owner, cache.form, cache.num_calls = self, form, 0
        shape = getattr(self._model, "_get_static_cache_init_shape", lambda: None)()
        if shape is not None:  # Else the first call, which is not compiled, makes its tensors.
            heads, size = shape
            cache.early_initialization(form.batch, heads, size, form.dtype, form.device)
        return cache


@functools.cache
def _kind() -> Any:
    from transformers import StaticCache

    class Cache(StaticCache):
        """Keys and values are kept in one type: under autocast they come in several."""

        owner: StaticCaches
        form: CacheForm
        num_calls: int

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            dtype = self.form.dtype
            return super().update(key_states.to(dtype), value_states.to(dtype), layer_idx, *args, **kwargs)

    return Cache
