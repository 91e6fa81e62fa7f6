"""Models of Hugging Face transformers: from a name to a model and the inputs to call it with. Checked against 5.23.

A model type becomes a model with seeded random weights, tiny or of the sizes that its configuration has by itself. A
model of the Hub or of a folder comes with its own configuration and weights.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from autotune.command_line import asked
from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean
from autotune.models import weights
from autotune.models.hub import EXAMPLES, SCHEME

__all__ = ["build"]

HEADS: dict[str, tuple[tuple[str, str], ...]] = {
    "classification": (
        ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
        ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"),
    ),
    "causal": (("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),),
    "masked": (("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),),
    "none": (("AutoModel", "MODEL_MAPPING"),),
}
"""Value of `head` -> what makes such a model, and the mapping that says of which configurations."""
OWN = "own"
"""The head that a configuration names itself, as those of the Hub do; without one, no head."""

SIZES = ("tiny", "full")
_WIDTH, _NUM_HEADS, _NUM_LAYERS, _VOCAB, _IMAGE_SIZE = 64, 4, 2, 1000, 64
"""What `tiny` means: the fourth is how many tokens there are, the fifth how many pixels an image has along an edge."""

_UNLISTED_FIELDS = {"num_labels", "attn_implementation"}
_FIXED_FIELDS = {"model_type", "architectures", "transformers_version", "_name_or_path"}


def build(
    name: str,
    *,
    head: str = OWN,
    size: str = "tiny",
    batch: int = 1,
    seq: int = 32,
    image_size: int | None = None,
    seed: int = 0,
    **fields: Scalar,
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model in evaluation mode and its keyword inputs: token ids and mask of (batch, seq), or pixels of
    (batch, channels, image_size, image_size).

    `name` is a model type; with a slash, a model of the Hub or a folder. `size`, `tiny` or `full`, is that of a model
    type. `fields` are fields of the configuration, under its own names or the common ones (`hidden_size` is GPT-2's
    `n_embd` too). Raises InputError for what transformers does not have, cannot load or does not take.
    """
    _require_choice("head", head, (OWN, *HEADS))
    _require_choice("size", size, SIZES)
    _require_counts(batch=batch, seq=seq, image_size=image_size)
    pretrained = "/" in name
    with _explained(name):
        config = _configuration(name, fields, image_size, tiny=size == "tiny" and not pretrained)
        maker = _maker(name, config, head)
        torch.manual_seed(seed)
        model = maker.from_pretrained(name, config=config) if pretrained else maker.from_config(config)
    return model.eval(), _inputs(name, model, (batch, seq), image_size, seed)


def _configuration(name: str, fields: dict[str, Scalar], image_size: int | None, *, tiny: bool) -> Any:
    """The configuration of a name with these fields, made to return no cache: no input here continues another."""
    make = _reader(name)
    plain = make()
    _require_one_part(name, plain)
    _require_fields(name, fields, {*plain.to_dict(), *plain.attribute_map, *_UNLISTED_FIELDS} - _FIXED_FIELDS)
    wanted = {plain.attribute_map.get(field, field): value for field, value in fields.items()}
    if image_size is not None and hasattr(plain, "image_size"):
        wanted["image_size"] = image_size
    if hasattr(plain, "use_cache"):
        wanted.setdefault("use_cache", False)
    return make(**(_tiny(plain, wanted) if tiny else {}) | wanted)


def _asked(name: str) -> str:
    return asked("build", SCHEME + name)


def _reader(name: str) -> Callable[..., Any]:
    """What makes the configuration of a name out of fields. Code that a model of the Hub brings is never run."""
    if "/" in name:
        return partial(transformers.AutoConfig.from_pretrained, name, trust_remote_code=False)
    if name in transformers.CONFIG_MAPPING:
        return partial(transformers.AutoConfig.for_model, name)
    raise InputError(
        f"{_asked(name)}: transformers {transformers.__version__} has no such model type",
        tip=f"{did_you_mean(name, transformers.CONFIG_MAPPING.keys())}for example: {', '.join(EXAMPLES)}",
    )


def _tiny(plain: Any, wanted: dict[str, Scalar]) -> dict[str, Scalar]:
    """Small sizes in proportion to the wanted ones, for the fields that this configuration has.

    One that lists a depth for each stage keeps its sizes: they hang together in a way of its own.
    """
    if hasattr(plain, "depths"):
        return {}
    own = plain.attribute_map

    def chosen(field: str, small: int) -> Any:
        return wanted.get(own.get(field, field), small)

    width, num_heads = chosen("hidden_size", _WIDTH), chosen("num_attention_heads", _NUM_HEADS)
    vocab = chosen("vocab_size", _VOCAB)
    sizes: dict[str, Scalar] = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": _NUM_LAYERS,
        "decoder_layers": _NUM_LAYERS,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "decoder_attention_heads": num_heads,
        "vocab_size": vocab,
        "image_size": _IMAGE_SIZE,
    }
    present = {own.get(field, field): value for field, value in sizes.items() if hasattr(plain, field)}
    return present | _special_tokens(plain, vocab)


def _special_tokens(plain: Any, vocab: int) -> dict[str, Scalar]:
    """Special tokens within a small vocabulary; one for padding, which classifiers of sequences need."""
    tokens = {field: token for field, token in plain.to_dict().items() if field.endswith("_token_id")}
    moved: dict[str, Scalar] = {
        field: vocab - 1 for field, token in tokens.items() if isinstance(token, int) and token >= vocab
    }
    return moved | ({"pad_token_id": 0} if "pad_token_id" in tokens and tokens["pad_token_id"] is None else {})


def _maker(name: str, config: Any, head: str) -> Any:
    """The class that makes a model with this head. Raises InputError if there is none for the configuration."""
    if head == OWN:
        named = [getattr(transformers, kind) for kind in config.architectures or () if hasattr(transformers, kind)]
        if named:
            return named[0]
        head = "none"
    makers = {other: maker for other in HEADS if (maker := _auto_class(config, other)) is not None}
    if head not in makers:
        raise InputError(
            f"{_asked(name)}: transformers {transformers.__version__} has no such model with head={head}",
            tip=f"give {asked('arguments')} head={' or '.join(makers)}" if makers else None,
        )
    return makers[head]


def _auto_class(config: Any, head: str) -> Any | None:
    fitting = (maker for maker, mapping in HEADS[head] if type(config) in getattr(transformers, mapping))
    return next((getattr(transformers, maker) for maker in fitting), None)


def _inputs(
    name: str, model: Any, shape: tuple[int, int], image_size: int | None, seed: int
) -> dict[str, torch.Tensor]:
    """What the model takes: pixels, or token ids of `shape` (batch, seq), none of which is padding."""
    config = model.config
    if model.main_input_name == "pixel_values":
        edge = image_size or getattr(config, "image_size", None) or _IMAGE_SIZE
        height, width = (edge, edge) if isinstance(edge, int) else edge
        pixels = weights.normal_input((shape[0], getattr(config, "num_channels", 3), height, width), seed)
        return {"pixel_values": torch.from_numpy(pixels).to(model.dtype)}
    if model.main_input_name != "input_ids" or not hasattr(config, "vocab_size"):
        raise InputError(
            f"{_asked(name)}: inputs can be made for a model of images or of text, and this one takes others",
            tip="take a function of your own that returns (model, inputs): " + asked("build", "FILE.py:FUNCTION"),
        )
    tokens = torch.from_numpy(weights.token_input(shape, config.vocab_size, seed))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": tokens}
    taken = inspect.signature(model.forward).parameters
    return {argument: value for argument, value in inputs.items() if argument in taken}


def _require_choice(argument: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(
            f"{asked('arguments', {argument: value})}: unknown", tip=f"choose one of: {', '.join(choices)}"
        )


def _require_counts(**counts: int | None) -> None:
    for argument, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):
            raise InputError(f"{asked('arguments', {argument: count})}: must be a whole number above zero")


def _require_one_part(name: str, plain: Any) -> None:
    """Raises InputError for a model with parts: neither its sizes nor its inputs can be told from outside."""
    if not plain.sub_configs:
        return
    types = [getattr(getattr(plain, part, None), "model_type", None) for part in plain.sub_configs]
    one = " or ".join(f"{SCHEME}{kind}" for kind in types if kind)
    function = f"a function of your own: {asked('build', 'FILE.py:FUNCTION')}"
    raise InputError(
        f"{_asked(name)}: is made of several models ({', '.join(plain.sub_configs)})",
        tip=f"take one of them, {one}, or {function}" if one else f"take {function}",
    )


def _require_fields(name: str, fields: dict[str, Scalar], known: set[str]) -> None:
    for field in fields:
        if field not in known:
            raise InputError(
                f"{asked('arguments')} {field}: {SCHEME}{name} has no such field in its configuration",
                tip=f"it takes head, size, batch, seq, image_size, seed and: {', '.join(sorted(known))}",
            )


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """What transformers has against a name or a field, as one sentence."""
    try:
        yield
    except (OSError, ValueError, StrictDataclassError) as error:
        raise InputError(
            f"{_asked(name)}: {textwrap.shorten(str(error), 300)}",
            tip=_DOWNLOAD if isinstance(error, OSError) else None,
        ) from error


_DOWNLOAD = (
    "it is looked for in this machine's cache, then on the Hub: run `hf download NAME` where there is a connection, or "
    "name a folder that holds the model"
)
