"""Small sizes for any configuration of transformers: fields that make its model tiny, in steps that keep more and more.

Sizes of one model hang together, in ways that no field tells: widths of a text part and an image part, heads and widths
of stages. So there is more than one step, and who asks tries them in order until a model is built and runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.config import Scalar

STEPS = ("small", "smaller parts", "own widths", "own sizes, few layers", "what is left open filled in")
"""Steps in the order in which they are tried; a model with one part mostly is made by the first."""
WIDTH, NUM_HEADS, NUM_LAYERS, VOCAB, IMAGE_SIZE = 64, 4, 2, 1000, 64
"""What `small` means: the fourth is how many tokens there are, the fifth how many pixels an image has along an edge."""
MAX_PARAMETERS = 300_000_000
"""A model with more is not tiny, and is not built for a try."""

_BACKBONE = (16, 32, 64, 128)
"""Widths of a ResNet's stages that stands for a backbone of timm."""
_PREDICTED = 8
"""Steps of a time series."""
_NUM_QUERIES = 20
"""A detector's objects: a small image has few places."""
_LAYERS = re.compile(r"(^|_)(n_?layers?|num_layers|layers|depth|num_blocks|blocks)$")
_OF_LAYERS = ("layer_types", "layers_block_type", "mlp_layer_types")
"""Lists with an entry for each layer, beside those that are as long as there are layers."""
_MANY_LAYERS = 6
"""A list of fewer entries may be of something else."""
_LEFT_OPEN: dict[str, Any] = {
    "layer_types": ["full_attention"] * NUM_LAYERS,
    "mlp_layer_types": ["dense"] * NUM_LAYERS,
    "num_key_value_heads": NUM_HEADS,
    "n_routed_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
    "n_shared_experts": 1,
    "sliding_window": 16,
    "rope_theta": 10_000.0,
    "initializer_range": 0.02,
    "clip_qkv": 8.0,
    "dropout": 0.0,
    "dropout_rate": 0.0,
}
"""Fields that some models read although their configuration leaves them open: checkpoints have set them."""
_NOT_PASSED_ON = ("transformers_version", "per_layer_config", "stage_names")
_STAGES = (
    "depths",
    "num_blocks",
    "stage_num_blocks",
    "layers_per_stage",
    "encoder_blocks",
    "decoder_depths",
    "block_sizes",
    "block_repeats",
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_CHOSEN_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token", "top_k")
_EXPERT_WIDTHS = ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size")


def fields_of(plain: Any, wanted: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Fields for the configuration `plain`, whose model then is small; of its parts too. `wanted` fields stay as they
    are, and sizes that hang on them are in proportion; those of a part are a mapping."""
    of_parts = {part: fields for part, fields in wanted.items() if isinstance(fields, Mapping)}
    wanted = {field: value for field, value in wanted.items() if field not in of_parts}
    fills_in = step == 4
    own = _small(plain, wanted) if step < 2 or fills_in else {}
    if step > 0:
        own |= _fewer(plain, keep_vocabulary=step == 3)
    if step == 1 or fills_in:
        own |= _narrower(plain) | ({} if fills_in else _own_heads(plain))
    if fills_in:
        own |= _filled(plain, own)
    parts = {part: _of_part(sub, step, of_parts.get(part, {})) for part, sub in parts_of(plain)}
    own |= _of_head({**own, **wanted}, plain)
    if hasattr(plain, "use_timm_backbone"):
        own["use_timm_backbone"] = False
    if getattr(plain, "prediction_length", 0) is None:
        own["prediction_length"] = _PREDICTED
    fields = {**own, **parts, **wanted}
    fields |= _cut(plain, fields) if step > 0 else {}
    return {name: value for name, value in fields.items() if name in wanted or not _is_computed(plain, name)}


def _cut(plain: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Lists with an entry for each layer, as long as there are layers now."""
    before: Any = getattr(plain, "num_hidden_layers", None)
    now: Any = fields.get(plain.attribute_map.get("num_hidden_layers", "num_hidden_layers"))
    if not _is_count(before) or not _is_count(now):
        return {}
    return {
        name: list(value)[:now]
        for name, value in plain.to_dict().items()
        if _is_list(value) and (name in _OF_LAYERS or (len(value) == before and before >= _MANY_LAYERS))
    }


def _is_computed(plain: Any, name: str) -> bool:
    """The configuration has no such field, and computes it from others."""
    field = getattr(type(plain), name, None)
    return isinstance(field, property) and field.fset is None


def parts_of(plain: Any) -> Iterator[tuple[str, Any]]:
    """Fields that hold the configuration of a part."""
    for part in plain.sub_configs:
        sub = getattr(plain, part, None)
        if hasattr(sub, "sub_configs"):
            yield part, sub


def _of_part(plain: Any, step: int, wanted: Mapping[str, Any]) -> dict[str, Any]:
    if plain.model_type == "timm_backbone":  # It needs timm, and downloads.
        stages = [f"stage{index}" for index in plain.out_indices or (4,) if 0 < index <= len(_BACKBONE)]
        return {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": list(_BACKBONE), "layer_type": "basic",
                "depths": [1] * len(_BACKBONE), "out_features": stages or ["stage4"]}  # fmt: skip
    known = {name: value for name, value in plain.to_dict().items() if name not in _NOT_PASSED_ON}
    without_cache = {"use_cache": False} if hasattr(plain, "use_cache") else {}
    fields = {**known, **fields_of(plain, wanted, step), **without_cache}
    num_layers: Any = fields.get("num_hidden_layers")
    if not _is_count(num_layers):
        return fields
    taken: Any = fields.get("out_features")
    if _is_list(taken) and str(taken[-1]).startswith("stage"):  # A backbone whose layers are taken one by one.
        num_layers = fields["num_hidden_layers"] = max(num_layers, len(taken))
        places = range(1, len(taken) + 1)
        fields |= {"out_features": [f"stage{place}" for place in places], "out_indices": list(places)}
    return fields | _cut(plain, {**fields, "num_hidden_layers": num_layers})


def _small(plain: Any, wanted: Mapping[str, Scalar]) -> dict[str, Any]:
    """In proportion to the wanted ones, for the fields that this configuration has. Of one that lists a depth for each
    stage, one layer for each: its widths hang together in a way of their own."""
    stages = {name: _ones(getattr(plain, name)) for name in _STAGES if _is_list(getattr(plain, name, None))}
    if stages:
        return stages
    own = plain.attribute_map

    def chosen(field: str, small: int) -> Any:
        return wanted.get(own.get(field, field), small)

    width, num_heads = chosen("hidden_size", WIDTH), chosen("num_attention_heads", NUM_HEADS)
    num_layers = chosen("num_hidden_layers", NUM_LAYERS)
    vocab = chosen("vocab_size", VOCAB)
    sizes: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": num_layers,
        "attention_types": _turns(num_layers),
        "decoder_layers": NUM_LAYERS,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "decoder_attention_heads": num_heads,
        "vocab_size": vocab,
        "image_size": _edges(plain),
        "rotary_dim": max(2, width // num_heads) if _is_count(width) and _is_count(num_heads) else WIDTH,
    }
    present = {own.get(field, field): value for field, value in sizes.items() if _has(plain, field)}
    return present | special_tokens(plain, vocab)


def _turns(num_layers: Any) -> list[Any]:
    """Layers as GPT-Neo's configuration lists them, which take turns."""
    is_even = _is_count(num_layers) and num_layers % 2 == 0
    return [[["global", "local"], num_layers // 2]] if is_even else [[["global"], num_layers]]


def _edges(plain: Any) -> Any:
    """The small size of an image, along each edge if the configuration has them one by one."""
    own: Any = getattr(plain, "image_size", None)
    return [IMAGE_SIZE] * len(own) if _is_list(own) and own[0] else IMAGE_SIZE


def _narrower(plain: Any) -> dict[str, Any]:
    """Further widths of what is small already, and few experts."""
    sizes: dict[str, Scalar] = {
        **dict.fromkeys(_EXPERTS, 4),
        **dict.fromkeys(_CHOSEN_EXPERTS, 2),
        **dict.fromkeys(_EXPERT_WIDTHS, WIDTH),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "mlp_dim"), 4 * WIDTH),
        **dict.fromkeys(("encoder_hidden_size", "cross_attention_hidden_size", "kv_dim", "embedding_size"), WIDTH),
        **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
        "encoder_attention_heads": NUM_HEADS,
    }
    return {name: value for name, value in sizes.items() if _is_count(_value(plain, name))}


def _own_heads(plain: Any) -> dict[str, Any]:
    """Two heads of the model's own width, which rotary embeddings are made for."""
    width: Any = _value(plain, "hidden_size")
    num_heads: Any = _value(plain, "num_attention_heads")
    if not _is_count(width) or not _is_count(num_heads) or width % num_heads:
        return {}
    of_head: Any = _value(plain, "head_dim")
    of_head = of_head if _is_count(of_head) else width // num_heads
    own = plain.attribute_map
    sizes = {"hidden_size": 2 * of_head, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": WIDTH}
    return {own.get(name, name): value for name, value in sizes.items() if _is_count(_value(plain, name))}


def _filled(plain: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the configuration leaves open. Sections of a rotary embedding along time, height and width are open too: by
    themselves they fit heads of the model's own width."""
    filled = {name: value for name, value in _LEFT_OPEN.items() if _value(plain, name) is None}
    if "mrope_section" in (getattr(plain, "ignore_keys_at_rope_validation", None) or ()):
        width = fields.get("head_dim", _value(plain, "head_dim")) or WIDTH // NUM_HEADS
        half = int(width * plain.rope_parameters.get("partial_rotary_factor", 1)) // 2
        sections = [half // 4, half - half // 4 - half * 3 // 8, half * 3 // 8]
        filled["rope_parameters"] = {**plain.rope_parameters, "mrope_section": sections}
    return filled


def _of_head(fields: Mapping[str, Any], plain: Any) -> dict[str, Any]:
    """Width of a head where the configuration leaves it open, which not every model takes."""
    if _value(plain, "head_dim", 0) is not None:
        return {}
    own = plain.attribute_map
    width, num_heads = (
        fields.get(own.get(name, name), _value(plain, name)) for name in ("hidden_size", "num_attention_heads")
    )
    return {"head_dim": width // num_heads} if _is_count(width) and _is_count(num_heads) else {}


def _fewer(plain: Any, *, keep_vocabulary: bool) -> dict[str, Any]:
    """At most `NUM_LAYERS` wherever a field counts layers, and few tokens."""
    fields: dict[str, Any] = {}
    for name, value in plain.to_dict().items():
        if _is_count(value) and _LAYERS.search(name):
            fields[name] = min(value, NUM_LAYERS)
        elif name == "num_queries" and _is_count(value):
            fields[name] = min(value, _NUM_QUERIES)
        elif name in _STAGES and _is_list(value):
            fields[name] = _ones(value)
    if not keep_vocabulary and _is_count(getattr(plain, "vocab_size", None)):
        vocab = min(plain.vocab_size, VOCAB)
        fields |= {"vocab_size": vocab, **special_tokens(plain, vocab)}
    return fields


def special_tokens(plain: Any, vocab: int) -> dict[str, Scalar]:
    """Special tokens within a small vocabulary; one for padding, which classifiers of sequences need."""
    tokens = {field: token for field, token in plain.to_dict().items() if field.endswith("_token_id")}
    moved: dict[str, Scalar] = {
        field: vocab - 1 for field, token in tokens.items() if isinstance(token, int) and token >= vocab
    }
    return moved | ({"pad_token_id": 0} if "pad_token_id" in tokens and tokens["pad_token_id"] is None else {})


def _value(plain: Any, name: str, otherwise: Any = None) -> Any:
    """What the configuration has under a name; of a field that differs from layer to layer, that it does."""
    try:
        return getattr(plain, name, otherwise)
    except Exception:
        return _EACH_LAYERS_OWN


def _has(plain: Any, name: str) -> bool:
    return _value(plain, name, _MISSING) not in (_MISSING, _EACH_LAYERS_OWN)


_MISSING, _EACH_LAYERS_OWN = "missing", "its own for each layer"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


def _ones(value: Any) -> list[Any]:
    """One layer for each stage; a stage may itself be a list."""
    return [_ones(each) if _is_list(each) else 1 for each in value]
