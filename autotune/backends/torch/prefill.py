"""A prefill in calls of few sizes: a prompt is padded to a multiple of so many tokens, or cut into chunks of so many.

Each size of a call has code of its own. Padded prompts need one program for each multiple, chunks one for all prompts.

Both stand on a static cache, and on what the rest of a prompt cannot see:

* **Padding is on the right.** A token sees those before it, so that no real one sees a padded one. Where a mask is
  handed along, it was made for the real tokens: its row of the last one is repeated, in which all later places of the
  cache are hidden.
* **Padded tokens and positions are the last real ones, repeated**: a token and a position that the model knows, and a
  longest position that is the prompt's own, by which some models scale all others.
* **The logits are asked for by the place of the last real token**, a tensor, so that the code is for all places.
* **Afterwards the cache is as if nobody had padded**: its length is the prompt's, and its rows behind that are zeros.
* **A chunk's mask is written out.** What a model makes of none is for a prompt that begins an empty cache.

What a model does with tokens besides attention (states that go from token to token, windows that move) would see the
padding. Such a model has layers of another kind in its cache, and is refused, as is one that is not told its positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from autotune.backends.torch.static_cache import has_plain_layers
from autotune.errors import UnsuitableCallError

Call = Callable[..., Any]


@dataclass(frozen=True)
class Rounding:
    """How the lengths of a prefill's calls are rounded."""

    tokens: int
    """A call's length is a multiple of this; a chunk's is this."""
    in_chunks: bool

    @classmethod
    def of(cls, prefill: object) -> Rounding | None:
        """From a value of the knob `prefill`; None for one that leaves lengths as they are."""
        how, _, tokens = str(prefill).partition("_")
        return cls(int(tokens), how == "chunked") if how in ("padded", "chunked") else None

    def rounded(self, num_tokens: int) -> int:
        """The next multiple."""
        return -(-num_tokens // self.tokens) * self.tokens

    def problem_of(self, model: Any) -> str | None:
        """Why prompts of a model cannot be handed over so; None: they can."""
        kind = type(model).__name__
        missing = [name for name in (_POSITIONS, _KEEP) if name not in inspect.signature(model.forward).parameters]
        if missing:
            return f"a {kind} takes no {missing[0]}, so that it would not know which tokens are a prompt's own"
        if model.config.is_encoder_decoder or not has_plain_layers(model):
            return f"a {kind} keeps more than keys and values of all tokens, and padding would be part of it"
        if self.in_chunks and _scales_by_length(model.config.get_text_config(decoder=True)):
            return f"a {kind} scales positions by the length of what it is called with, which is another in chunks"
        return None

    def parts(self, kwargs: dict[str, Any], cache_length: int) -> list[dict[str, Any]]:
        """Arguments of the calls that a prefill becomes, all of one form. The cache has to have room for the rounded
        length. Raises UnsuitableCallError for arguments that cannot be padded."""
        ids = kwargs["input_ids"]
        length, padded = ids.shape[1], self.rounded(ids.shape[1])
        _require_known(kwargs, length, padded, cache_length)
        wide = {
            **kwargs,
            "input_ids": _widened(ids, padded),
            _POSITIONS: _widened(kwargs[_POSITIONS], padded),
            _MASK: _each_mask(kwargs.get(_MASK), lambda mask: _longer(mask, padded)),
        }
        if not self.in_chunks:
            return [{**wide, _KEEP: ids.new_tensor([length - 1])}]
        starts = range(0, padded, self.tokens)
        return [self._chunk(wide, start, min(length - start, self.tokens) - 1, cache_length) for start in starts]

    def _chunk(self, wide: dict[str, Any], start: int, last: int, cache_length: int) -> dict[str, Any]:
        here = slice(start, start + self.tokens)
        ids = wide["input_ids"]

        def cut(mask: torch.Tensor | None) -> torch.Tensor:
            if mask is not None:
                return mask[..., here, :].clone(memory_format=torch.contiguous_format)
            places = torch.arange(cache_length, device=ids.device)
            return (places <= places[here, None])[None, None]

        return {
            **wide,
            "input_ids": ids[:, here].clone(memory_format=torch.contiguous_format),
            _POSITIONS: wide[_POSITIONS][:, here].clone(memory_format=torch.contiguous_format),
            _MASK: _each_mask(wide[_MASK], cut),
            _KEEP: ids.new_tensor([last]),
        }


def prefilled(program: Call, parts: list[dict[str, Any]], cache: Any, num_tokens: int) -> Any:
    """What the call with the prompt's last token gives, and the cache as an unpadded prefill leaves it. If a call
    fails, the cache is empty."""
    try:
        for part in parts:
            result = program(**part)
        settle(cache, num_tokens, sum(part["input_ids"].shape[1] for part in parts))
    except BaseException:
        cache.reset()
        raise
    return result


def settle(cache: Any, num_tokens: int, num_written: int) -> None:
    """Let a static cache hold its first tokens, and none of those that were written behind them."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(num_tokens)
        layer.keys[:, :, num_tokens:num_written] = 0
        layer.values[:, :, num_tokens:num_written] = 0


_POSITIONS, _MASK, _KEEP = "position_ids", "attention_mask", "logits_to_keep"
_UNPADDED = ("token_type_ids", "cache_position")
"""Arguments with an entry for each token whose padding is not known."""


def _require_known(kwargs: dict[str, Any], length: int, padded: int, cache_length: int) -> None:
    """Raises UnsuitableCallError."""
    positions, masks = kwargs.get(_POSITIONS), _masks(kwargs.get(_MASK))
    odd = [name for name in _UNPADDED if kwargs.get(name) is not None]
    if odd:
        raise UnsuitableCallError(f"a prefill with {odd[0]} cannot be padded")
    if not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape[1] != length:
        raise UnsuitableCallError("a prefill without a position for each token cannot be padded")
    if not all(_is_for(mask, length, cache_length) for mask in masks if mask is not None):
        raise UnsuitableCallError("a prefill with a mask of an unknown form cannot be padded")
    if kwargs.get(_KEEP) != 1:
        raise UnsuitableCallError("a prefill that is asked for more than its last logits cannot be padded")
    if padded > cache_length:
        raise UnsuitableCallError("a prefill that is longer than its cache cannot be padded")


def _masks(mask: Any) -> list[Any]:
    return list(mask.values()) if isinstance(mask, dict) else [mask]


def _is_for(mask: Any, length: int, cache_length: int) -> bool:
    """It says of each token which places of the cache it sees."""
    return isinstance(mask, torch.Tensor) and mask.dim() == 4 and mask.shape[2:] == (length, cache_length)


def _each_mask(mask: Any, change: Callable[[Any], Any]) -> Any:
    """One mask, or one for each kind of layers."""
    return {kind: change(part) for kind, part in mask.items()} if isinstance(mask, dict) else change(mask)


def _longer(mask: torch.Tensor | None, size: int) -> torch.Tensor | None:
    """With its last row, the last real token's, for all padded ones."""
    if mask is None:
        return None
    last = mask[:, :, -1:].expand(-1, -1, size - mask.shape[2], -1)
    return torch.cat([mask, last], dim=2)


def _widened(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """With its last column repeated."""
    return torch.cat([tensor, tensor[:, -1:].expand(-1, size - tensor.shape[1])], dim=1)


def _scales_by_length(config: Any) -> bool:
    """Rotary positions depend on how long the text is."""
    given = getattr(config, "rope_parameters", None) or {}
    kinds = [str(part.get("rope_type")) for part in (given, *given.values()) if isinstance(part, dict)]
    return any("dynamic" in kind or kind == "longrope" for kind in kinds)
