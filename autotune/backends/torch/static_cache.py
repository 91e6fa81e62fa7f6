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
    """Whether the cache is made under `torch.inference_mode()`: it cannot be written to outside of that."""


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
        """It is the caller's: a cache as Hugging Face has it."""
        for each in {id(cache): cache, id(_of_texts(cache)): _of_texts(cache)}.values():
            for name in _OWN:
                vars(each).pop(name, None)
            each.__class__ = type(each).__base__

    def clear(self) -> None:
        """Let go of those that no call uses."""
        with self._lock:
            self._idle = []

    def owns(self, cache: object) -> bool:
        """It was taken here."""
        return getattr(cache, "owner", None) is self

    def _made(self, form: CacheForm) -> Any:
        config = self._model.config.get_text_config(decoder=True)
        static, pair = _kinds()
        cache = static(config=config, max_cache_len=form.length)
        cache.form = form
        if self._model.config.is_encoder_decoder:
            cache = pair(cache, _dynamic(config))
        else:
            shape = getattr(self._model, "_get_static_cache_init_shape", lambda: None)()
            if shape is not None:  # Else the first call, which is not compiled, makes its tensors.
                heads, size = shape
                cache.early_initialization(form.batch, heads, size, form.dtype, form.device)
                unmark(cache)
        cache.owner, cache.form, cache.num_tokens = self, form, 0
        return cache


_OWN = ("owner", "form", "num_tokens")
"""Attributes of caches that are made here."""


def is_dynamic(cache: Any) -> bool:
    """It is what `generate` makes where nobody asks for anything: tensors that grow."""
    parts = [getattr(cache, name, cache) for name in ("self_attention_cache", "cross_attention_cache")]
    return all(type(part).__name__ == "DynamicCache" for part in parts)


def is_made(cache: Any) -> bool:
    """Its tensors are there."""
    return bool(_of_texts(cache).is_initialized)


def _of_texts(cache: Any) -> Any:
    """The cache itself, or of a model with an encoder that of the texts that its decoder writes."""
    return getattr(cache, "self_attention_cache", cache)


def unmark(cache: Any) -> None:
    """On a CPU: its tensors are inputs like all others. Hugging Face marks them as ones that stay where they are, for
    graphs that are captured; frozen code takes such for constants, and would use one cache for all calls (2.13)."""
    for layer in _of_texts(cache).layers:
        for tensor in vars(layer).values():
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                vars(tensor).pop("_dynamo_static_input_type", None)


def _dynamic(config: Any) -> Any:
    """For what an encoder gives, which is written once and has its own length."""
    from transformers import DynamicCache

    return DynamicCache(config=config)


@functools.cache
def _kinds() -> tuple[Any, Any]:
    """Classes: a static cache, and one of a model with an encoder."""
    from transformers import EncoderDecoderCache, StaticCache

    class Cache(StaticCache):
        """Keys and values are kept in one type: under autocast they come in several."""

        form: CacheForm
        __deepcopy__ = _copied

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            given, dtype = key_states.dtype, self.form.dtype
            held = super().update(key_states.to(dtype), value_states.to(dtype), layer_idx, *args, **kwargs)
            # Under autocast attention takes them as they are; an untuned call needs them in its own type.
            is_cast = torch.is_autocast_enabled(key_states.device.type)
            return held if is_cast else tuple(each.to(given) for each in held)

    class Pair(EncoderDecoderCache):
        """Texts in a static cache, and what the encoder gave in a dynamic one."""

        __deepcopy__ = _copied

    return Cache, Pair


def _copied(cache: Any, memo: dict[int, Any]) -> Any:
    """A copy that nobody owns: it is for one call."""
    made = object.__new__(type(cache))
    held = {name: value for name, value in vars(cache).items() if name not in ("owner", "form")}
    vars(made).update(copy.deepcopy(held, memo), form=cache.form)
    return made


def set_back(cache: Any, num_tokens: int, num_failed: int) -> bool:
    """Let a cache hold so many tokens again, after a call with `num_failed` further ones that did not come to its end;
    False where that cannot be. What the call wrote is written again by the next one."""
    if cache is not _of_texts(cache) and not all(cache.is_updated.values()):
        return False  # What the encoder gave may be there in part.
    for layer in _of_texts(cache).layers:
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
