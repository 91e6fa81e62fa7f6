"""Models of MindOne: text models of its transformers by type, and the networks of its diffusers by class, with random
weights. Checked with 0.3.0, which wants transformers 4.46, beside MindSpore 2.10 on a CPU."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np

from autotune.config import Scalar
from autotune.environment import package_version
from autotune.errors import InputError, did_you_mean, marked, quoted
from autotune.models import weights
from autotune.plugins.hubs.hubs import MINDONE, MINDONE_EXAMPLES, require_count, what_it_refuses

__all__ = ["build"]

HEADS: dict[str, tuple[str, ...]] = {
    "none": ("MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES", "MODEL_MAPPING_NAMES"),
    "classification": ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",),
    "masked": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES",),
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",),
    "seq2seq": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",),
}
"""Value of `head` -> MindOne's tables of such models, by type."""

_WIDTH, _LAYERS, _HEADS, _VOCAB, _MOST_TOKENS = 64, 2, 4, 1000, 512
_SMALL: dict[str, Scalar] = {
    **dict.fromkeys(("hidden_size", "d_model"), _WIDTH),
    **dict.fromkeys(("intermediate_size", "d_ff"), 4 * _WIDTH),
    **dict.fromkeys(("num_hidden_layers", "num_layers"), _LAYERS),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads"), _HEADS),
    **dict.fromkeys(("d_kv", "head_dim"), _WIDTH // _HEADS),
    "vocab_size": _VOCAB,
    "max_position_embeddings": _MOST_TOKENS,
    "use_cache": False,
}
"""Fields of a configuration that make its model tiny, as far as it has them."""

_BLOCKS = {"block_out_channels": (32, 64), "norm_num_groups": 8, "layers_per_block": 1}
_NETWORKS: dict[str, dict[str, Any]] = {
    "UNet2DConditionModel": {
        **_BLOCKS,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": _WIDTH,
    },
    "UNet2DModel": {
        **_BLOCKS,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    },
    "AutoencoderKL": {
        **_BLOCKS,
        "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
        "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    },
}
"""Network of the diffusers -> arguments that make it tiny."""


def build(
    name: str,
    *,
    head: str = "none",
    batch: int = 1,
    seq: int = 32,
    image_size: int = 32,
    seed: int = 0,
    **fields: Scalar,
) -> tuple[mindspore.nn.Cell, Any]:
    """The Cell in evaluation mode and the inputs of a call.

    `name` is a model type of `mindone.transformers`, called with token ids and a mask of (batch, seq), or a network of
    `mindone.diffusers`, called with what it takes of (batch, channels, image_size, image_size). It is tiny; `fields`
    are those of its configuration. Raises InputError for what MindOne does not have or does not take.
    """
    for argument, count in (("batch", batch), ("seq", seq), ("image_size", image_size)):
        require_count(argument, count)
    if head not in HEADS:
        raise InputError(f"{marked('arguments', {'head': head})}: unknown", tip=f"choose one of: {', '.join(HEADS)}")
    np.random.seed(seed)  # Its layers draw their weights from both.
    mindspore.set_seed(seed)
    if name in _NETWORKS:
        model = _network(name, fields)
        inputs: Any = _noise(name, model, (batch, seq, image_size), seed)
    else:
        model, vocab = _text_model(name, head, fields)
        tokens = mindspore.Tensor(weights.token_input((batch, seq), vocab, seed))
        inputs = {"input_ids": tokens, "attention_mask": mindspore.ops.ones_like(tokens)}
        if "decoder_input_ids" in inspect.signature(model.construct).parameters:
            inputs["decoder_input_ids"] = tokens
    model.set_train(False)
    return model, inputs


def _text_model(name: str, head: str, fields: Mapping[str, Scalar]) -> tuple[Any, int]:
    """The model, and how many tokens it knows."""
    library, configurations = _imported(name, "mindone.transformers"), _imported(name, "transformers")
    tables = _imported(name, "mindone.transformers.models.auto.modeling_auto")
    kinds = {each: _kind(library, tables, name, each) for each in HEADS}
    kind = kinds[head]
    if kind is None:
        there = [each for each, found in kinds.items() if found]
        known = [each for table in HEADS["none"] for each in getattr(tables, table)]
        raise InputError(
            f"{marked('build', MINDONE + name)}: mindone {package_version('mindone')} has no such model"
            + (f" with head={head}" if there else ""),
            tip=f"give {marked('arguments')} head={' or '.join(there)}"
            if there
            else f"{did_you_mean(name, [*known, *_NETWORKS])}for example: {', '.join(MINDONE_EXAMPLES)}",
        )
    plain = configurations.AutoConfig.for_model(name)
    unknown = [field for field in fields if field != "num_labels" and not hasattr(plain, field)]
    if unknown:
        raise InputError(f"{marked('arguments')} {unknown[0]}: {MINDONE}{name} has no such field in its configuration")
    small = {field: value for field, value in _SMALL.items() if field in plain.to_dict()}
    config = configurations.AutoConfig.for_model(name, **{**small, **fields})
    for field, token in config.to_dict().items():
        if field.endswith("_token_id") and isinstance(token, int) and token >= config.vocab_size:
            setattr(config, field, config.vocab_size - 1)
    with what_it_refuses(MINDONE + name):
        return kind(config), config.vocab_size


def _kind(library: Any, tables: Any, name: str, head: str) -> Any | None:
    named = (getattr(tables, table).get(name) for table in HEADS[head])
    return next((found for kind in named if (found := getattr(library, kind or "", None)) is not None), None)


def _network(name: str, fields: Mapping[str, Scalar]) -> Any:
    kind = _imported(name, "mindone.diffusers", name)
    with what_it_refuses(MINDONE + name):
        return kind(**{**_NETWORKS[name], **fields})


def _noise(name: str, model: Any, sizes: tuple[int, int, int], seed: int) -> dict[str, Any]:
    """What a network takes: noisy pixels, a time step, and the states of a text. `sizes`: batch, tokens, pixels."""
    batch, seq, image_size = sizes
    shape = (batch, model.config.in_channels, image_size, image_size)
    inputs = {"sample": mindspore.Tensor(weights.normal_input(shape, seed))}
    if name != "AutoencoderKL":
        inputs["timestep"] = mindspore.Tensor(500, mindspore.int32)
    if name == "UNet2DConditionModel":
        states = weights.normal_input((batch, seq, model.config.cross_attention_dim), seed)
        inputs["encoder_hidden_states"] = mindspore.Tensor(states)
    return inputs


def _imported(name: str, module: str, attribute: str | None = None) -> Any:
    """A library, or what it holds, which it may import by need. Raises InputError where that does not work here."""
    try:
        library = importlib.import_module(module)
        return library if attribute is None else getattr(library, attribute)
    except Exception as error:
        here = ", ".join(f"{each} {package_version(each)}" for each in ("mindone", "transformers", "mindspore"))
        raise InputError(
            f"{marked('build', MINDONE + name)}: {module} cannot be imported beside {here}: {quoted(error)}",
            tip="on a CPU take mindone 0.3.0 with transformers 4.46.3, tokenizers 0.20.3 and huggingface-hub 0.36.2",
        ) from error
