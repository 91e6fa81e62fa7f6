"""Static caches of keys and values for `generate` of Hugging Face's models: what they are, and who has one when.

A static cache has room for a fixed number of tokens, so that all calls of a decode step have the same sizes. One is
used again by later calls of `generate`, since compiled code, and graphs that were captured, are for its sizes or even
its addresses. Rule of this file: a cache is with one call of `generate` at a time, and is emptied (zeros, not just a
length of zero: what is masked is multiplied by zero, and NaN would stay) before the next one gets it.
"""

from __future__ import annotations

import copy
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
        cache.num_tokens = 0
        return cache

    def give_back(self, cache: Any) -> None:
        """The call that took it has ended, and nobody holds it any more."""
        with self._lock:
            self._idle = [*self._idle, cache][-MOST_IDLE:]

    def give_away(self, cache: Any) -> None:
        """It is the caller's: a static cache as Hugging Face has it."""
        for name in ("owner", "form", "num_tokens"):
            delattr(cache, name)
        cache.__class__ = type(cache).__base__

    def clear(self) -> None:
        """Let go of those that no call uses."""
        with self._lock:
            self._idle = []

    def owns(self, cache: object) -> bool:
        """It was taken here."""
        return getattr(cache, "owner", None) is self

    def _made(self, form: CacheForm) -> Any:
        cache = _kind()(config=self._model.config.get_text_config(decoder=True), max_cache_len=form.length)
        cache.owner, cache.form, cache.num_tokens = self, form, 0
        shape = getattr(self._model, "_get_static_cache_init_shape", lambda: None)()
        if shape is not None:  # Else the first call, which is not compiled, makes its tensors.
            heads, size = shape
            cache.early_initialization(form.batch, heads, size, form.dtype, form.device)
            unmark(cache)
        return cache


def unmark(cache: Any) -> None:
    """On a CPU: its tensors are inputs like all others. Hugging Face marks them as ones that stay where they are, for
    graphs that are captured; frozen code takes such for constants, and would use one cache for all calls (2.13)."""
    for layer in cache.layers:
        for tensor in vars(layer).values():
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                vars(tensor).pop("_dynamo_static_input_type", None)


@functools.cache
def _kind() -> Any:
    from transformers import StaticCache

    class Cache(StaticCache):
        """Keys and values are kept in one type: under autocast they come in several."""

        owner: StaticCaches | None
        form: CacheForm
        num_tokens: int

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            given, dtype = key_states.dtype, self.form.dtype
            held = super().update(key_states.to(dtype), value_states.to(dtype), layer_idx, *args, **kwargs)
            # Under autocast attention takes them as they are; an untuned call needs them in its own type.
            is_cast = torch.is_autocast_enabled(key_states.device.type)
            return held if is_cast else tuple(each.to(given) for each in held)

        def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
            copied: Cache = object.__new__(type(self))
            held = {name: value for name, value in vars(self).items() if name not in ("owner", "form")}
            vars(copied).update(copy.deepcopy(held, memo), owner=None, form=self.form)
            return copied

    return Cache


def set_back(cache: Any, num_tokens: int, num_failed: int) -> bool:
    """Let a cache hold so many tokens again, after a call with `num_failed` further ones that did not come to its end;
    False where that cannot be. What the call wrote is written again by the next one."""
    for layer in cache.layers:
        length = getattr(layer, "cumulative_length", None)
        if isinstance(length, torch.Tensor):
            if getattr(layer, "cumulative_length_int", 0) and num_tokens + num_failed > layer.max_cache_len:
                return False  # A window that was full has moved.
            length.fill_(num_tokens)
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = num_tokens
        elif layer.get_seq_length() != num_tokens:
            return False
    return True
