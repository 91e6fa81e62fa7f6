"""Models of Hugging Face transformers that generate text: a decoder, or an encoder with a decoder, and its prompts."""

from __future__ import annotations

from typing import Any

import transformers

from autotune.config import Scalar
from autotune.errors import InputError, marked
from autotune.plugins.hubs.hubs import SCHEME, require_count
from autotune.plugins.hubs.torch.hugging_face import build as build_to_call

PROMPTS = "16,64,200"
NEW_TOKENS = 64
_HEADS = ("causal", "seq2seq")


def build(
    name: str,
    *,
    prompts: Scalar = PROMPTS,
    new_tokens: int = NEW_TOKENS,
    batch: int = 1,
    size: str = "tiny",
    seed: int = 0,
    **fields: Scalar,
) -> dict[str, Any]:
    """The model in evaluation mode, with its cache of keys and values, and the prompts: their lengths in tokens, each
    continued by `new_tokens`.

    `name`, `size` and `fields` are those of `hugging_face.build`. Raises InputError for a model that generates no text.
    """
    require_count("new_tokens", new_tokens)
    require_count("batch", batch)
    lengths = _lengths(prompts)
    limit = {} if "/" in name else _positions(name, max(lengths) + new_tokens, fields)
    wanted: dict[str, Any] = {"use_cache": True, **limit, **fields}
    model, _ = build_to_call(name, head=_head(name), size=size, seed=seed, **wanted)
    if not getattr(model, "can_generate", lambda: False)():
        raise InputError(f"{marked('build', SCHEME + name)}: {type(model).__name__} generates no text")
    settings: Any = model.generation_config
    config: Any = model.config
    if config.is_encoder_decoder and settings.decoder_start_token_id is None:
        # All encoder-decoders of the Hub say how a text begins, some model types do not: T5's begin with padding.
        settings.decoder_start_token_id = settings.pad_token_id or 0
    return {"model": model, "generate": {"prompts": lengths, "new_tokens": new_tokens, "batch": batch}}


def _lengths(prompts: Scalar) -> list[int]:
    texts = str(prompts).replace("(", "").replace(")", "").replace("[", "").replace("]", "").split(",")
    try:
        lengths = [int(text) for text in texts if text.strip()]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise InputError(f"{marked('arguments', {'prompts': prompts})}: write lengths in tokens, such as {PROMPTS}")
    return lengths


def _head(name: str) -> str:
    """The own head of a model with weights; else that of a decoder, or of an encoder with a decoder."""
    if "/" in name:
        return "own"
    config = transformers.AutoConfig.for_model(name) if name in transformers.CONFIG_MAPPING else None
    return _HEADS[bool(config is not None and config.is_encoder_decoder)]


def _positions(name: str, most: int, fields: dict[str, Scalar]) -> dict[str, Scalar]:
    """Room for all tokens, where a tiny model would have less, and for the edges of buckets."""
    field = "max_position_embeddings"
    config: Any = transformers.AutoConfig.for_model(name) if name in transformers.CONFIG_MAPPING else None
    own = getattr(config, field, None)
    return {field: max(most, 256) + 64} if own is not None and field not in fields else {}
