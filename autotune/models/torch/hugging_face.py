"""Models of Hugging Face transformers: from a name to a model and the inputs to call it with. Checked against 5.23.

A model type becomes a model with seeded random weights, tiny or of the sizes that its configuration has by itself. A
model of the Hub or of a folder comes with its own configuration and weights.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from autotune.command_line import asked
from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean, quoted
from autotune.models.hub import EXAMPLES, SCHEME, require_count
from autotune.models.torch.hugging_face_inputs import InputMaker, Shape
from autotune.models.torch.hugging_face_sizes import MAX_PARAMETERS, STEPS, fields_of

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

_SAID = (OSError, ValueError, StrictDataclassError)
"""What transformers raises with a sentence for its user."""
_ONE_KIND = ("pixel_values", "input_ids")
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
    part: str | None = None,
    seed: int = 0,
    **fields: Scalar,
) -> tuple[torch.nn.Module, Any]:
    """The model in evaluation mode and the inputs of a call, as keyword arguments: token ids and mask of (batch, seq),
    pixels of (batch, channels, image_size, image_size), sounds, videos and series by what its configuration says.

    `name` is a model type; with a slash, a model of the Hub or a folder. `size`, `tiny` or `full`, is that of a model
    type. `part` is a module of the model (`vision_model`), which is then called as the model calls it. `fields` are
    fields of the configuration, under its own names or the common ones (`hidden_size` is GPT-2's `n_embd` too). Raises
    InputError for what transformers does not have, cannot load or does not take, and where no call was found that runs.
    """
    _require_choice("head", head, (OWN, *HEADS))
    _require_choice("size", size, SIZES)
    for argument, count in (("batch", batch), ("seq", seq), ("image_size", image_size)):
        if count is not None:
            require_count(argument, count)
    with _explained(name):
        plain = _reader(name)()
        _require_fields(name, fields, {*plain.to_dict(), *plain.attribute_map, *_UNLISTED_FIELDS} - _FIXED_FIELDS)
        wanted = {plain.attribute_map.get(field, field): value for field, value in fields.items()}
        if image_size is not None and hasattr(plain, "image_size"):
            wanted["image_size"] = image_size
        if hasattr(plain, "use_cache"):
            wanted.setdefault("use_cache", False)  # No input here continues another.
        steps = range(len(STEPS)) if size == "tiny" and "/" not in name else [None]

        def attempt(step: int | None) -> torch.nn.Module | None:
            config = _reader(name)(**(wanted if step is None else fields_of(plain, wanted, step)))
            return _model(name, config, _maker(name, config, head), seed, is_try=bool(step))

        attempts = [partial(attempt, step) for step in steps]
        model, inputs = _running(name, attempts, Shape(batch, seq, image_size), seed)
    return (model, inputs) if part is None else _part_of(name, model, inputs, part)


def _model(name: str, config: Any, maker: Any, seed: int, *, is_try: bool) -> torch.nn.Module | None:
    """The model of a configuration; None where a try would be too large."""
    if is_try and _num_parameters(maker, config) > MAX_PARAMETERS:
        return None
    torch.manual_seed(seed)
    made: torch.nn.Module = maker.from_pretrained(name, config=config) if "/" in name else maker.from_config(config)
    return made.eval()


def _num_parameters(maker: Any, config: Any) -> int:
    """How many the model has, without making it."""
    with torch.device("meta"):
        return sum(each.numel() for each in maker.from_config(config).parameters())


def _running(
    name: str, attempts: Sequence[Callable[[], torch.nn.Module | None]], shape: Shape, seed: int
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The first model that is made and runs, with its inputs. Raises the first error of making one where none was made,
    and InputError where none runs."""
    unmade: Exception | None = None
    failed: Exception | None = None
    for attempt in attempts:
        try:
            model = attempt()
        except InputError:
            raise
        except Exception as error:
            unmade = unmade or error
            continue
        for inputs in [] if model is None else InputMaker(model, shape, seed).calls():
            assert model is not None
            # A call of a large model takes long, and one of text or images alone is known to run.
            config: Any = model.config
            is_known = len(attempts) == 1 and not config.sub_configs and model.main_input_name in _ONE_KIND
            try:
                if not is_known:
                    with torch.no_grad():
                        model(**inputs)
            except Exception as error:
                failed = failed or error
            else:
                return model, inputs
    if failed is None and isinstance(unmade, _SAID):
        raise unmade
    if failed is None and unmade is not None:
        words = f"is not made by its configuration alone: {quoted(unmade)}"
        raise InputError(f"{_asked(name)}: {words}", tip=_way_out()) from unmade
    why = f": {quoted(failed)}" if failed is not None else ""
    raise InputError(f"{_asked(name)}: no inputs were found with which it runs{why}", tip=_way_out()) from failed


def _way_out() -> str:
    return "take a function of your own that returns (model, inputs): " + asked("build", "FILE.py:FUNCTION")


def _part_of(name: str, model: torch.nn.Module, inputs: dict[str, Any], part: str) -> tuple[torch.nn.Module, Any]:
    """A module of the model, and how the model calls it. Raises InputError where there is none, or it is not called."""
    modules = dict(model.named_modules())
    if part not in modules or not part:
        near = [each for each in modules if each and each.count(".") < 2]
        raise InputError(
            f"{asked('arguments', {'part': part})}: {SCHEME}{name} has no such module",
            tip=f"{did_you_mean(part, near)}among others: {', '.join(near[:12])}",
        )
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = modules[part].register_forward_pre_hook(
        lambda _, positional, keyword: seen.append((positional, keyword)), with_kwargs=True
    )
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    if not seen:
        raise InputError(
            f"{asked('arguments', {'part': part})}: {SCHEME}{name} does not call it with {', '.join(inputs)}",
            tip=_way_out(),
        )
    return modules[part], seen[0]


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


def _maker(name: str, config: Any, head: str) -> Any:
    """The class that makes a model with this head. Raises InputError if there is none for the configuration."""
    if head == OWN:
        named = [getattr(transformers, kind) for kind in config.architectures or () if hasattr(transformers, kind)]
        if named:
            return named[0]
        head = "none"
    makers = {other: maker for other in HEADS if (maker := _auto_class(config, other)) is not None}
    if head == "none" and head not in makers and (own := _own_class(config)) is not None:
        return own
    if head not in makers:
        raise InputError(
            f"{_asked(name)}: transformers {transformers.__version__} has no such model with head={head}",
            tip=f"give {asked('arguments')} head={' or '.join(makers)}" if makers else None,
        )
    return makers[head]


@dataclass(frozen=True)
class _OwnClass:
    """Makes a model as the auto classes do, for a configuration that none of them knows."""

    kind: Any

    def from_config(self, config: Any) -> torch.nn.Module:
        made: torch.nn.Module = self.kind._from_config(config)
        return made


def _own_class(config: Any) -> _OwnClass | None:
    """The class that the file of the models has for this configuration, one called `...Model` before others."""
    place = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        module = importlib.import_module(place)
    except ImportError:
        return None
    kinds = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, transformers.PreTrainedModel)
        and kind.config_class is type(config)
        and kind.__module__ == place
        and not kind.__name__.endswith("PreTrainedModel")
    ]
    kinds.sort(key=lambda kind: not kind.__name__.endswith("Model"))
    return _OwnClass(kinds[0]) if kinds else None


def _auto_class(config: Any, head: str) -> Any | None:
    fitting = (maker for maker, mapping in HEADS[head] if type(config) in getattr(transformers, mapping))
    return next((getattr(transformers, maker) for maker in fitting), None)


def _require_choice(argument: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(
            f"{asked('arguments', {argument: value})}: unknown", tip=f"choose one of: {', '.join(choices)}"
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
    except _SAID as error:
        raise InputError(
            f"{_asked(name)}: {textwrap.shorten(str(error), 300)}",
            tip=_DOWNLOAD if isinstance(error, OSError) else None,
        ) from error


_DOWNLOAD = (
    "it is looked for in this machine's cache, then on the Hub: run `hf download NAME` where there is a connection, or "
    "name a folder that holds the model"
)
