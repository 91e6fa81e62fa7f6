"""Models of Hugging Face transformers: from a name to a model and the inputs to call it with. Checked against 5.23.

A model type becomes a model with seeded random weights, tiny or of the sizes that its configuration has by itself. A
model of the Hub or of a folder comes with its own configuration and weights.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean, marked, quoted
from autotune.plugins.hubs.hubs import EXAMPLES, SCHEME, require_count
from autotune.plugins.hubs.torch.hugging_face_inputs import InputMaker, Shape
from autotune.plugins.hubs.torch.hugging_face_labels import PAIRED, labelled, require_loss
from autotune.plugins.hubs.torch.hugging_face_parts import Whole, called, modules_of, wholes_of
from autotune.plugins.hubs.torch.hugging_face_sizes import MAX_PARAMETERS, STEPS, fields_of

__all__ = ["build", "build_to_train"]

HEADS: dict[str, tuple[tuple[str, str], ...]] = {
    "classification": (
        ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
        ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"),
        ("AutoModelForAudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING"),
        ("AutoModelForVideoClassification", "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING"),
    ),
    "causal": (("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),),
    "masked": (("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),),
    "seq2seq": (
        ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
        ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING"),
    ),
    "none": (("AutoModel", "MODEL_MAPPING"),),
}
"""Value of `head` -> what makes such a model, and the mapping that says of which configurations."""
OWN = "own"
"""The head that a configuration names itself, as those of the Hub do; without one, no head, or one to train."""
_TO_TRAIN = ("seq2seq", "masked", "causal", "classification")
"""Heads with a loss, in the order in which one is chosen: what a type is best known for comes first."""

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
    return _made(_Wish(name, head, size, Shape(batch, seq, image_size), seed, part), fields)


def build_to_train(
    name: str,
    *,
    head: str = OWN,
    size: str = "tiny",
    batch: int = 4,
    seq: int = 32,
    image_size: int | None = None,
    part: str | None = None,
    seed: int = 0,
    **fields: Scalar,
) -> dict[str, Any]:
    """The model in training mode, its dropout as its configuration has it, and inputs with labels, for which it returns
    the loss of its head. Arguments are those of `build`. Raises InputError for a model without a loss of its own too.

    Where neither `head` nor the configuration names a head, it is the first that there is of: sequence to sequence,
    masked, causal, classification.
    """
    if part is not None:
        raise InputError(f"{marked('arguments', {'part': part})}: a part has no loss to train it with", tip=_way_out())
    wish = _WishToTrain(name, head, size, Shape(batch, seq, image_size), seed)
    model, inputs = _made(wish, fields)
    return {"model": model, "inputs": inputs}


@dataclass(frozen=True)
class _Wish:
    """What is asked for, beside fields of the configuration."""

    name: str
    head: str
    size: str
    shape: Shape
    seed: int
    part: str | None = None

    @property
    def may_be_part(self) -> bool:
        """Whether a model of this name may be found within another one."""
        return "/" not in self.name and self.part is None and self.head in (OWN, "none")

    def require(self, returned: Any) -> None:
        """Raises ValueError for an output with which a model is none that was asked for."""

    def head_for(self, config: Any) -> str:
        """The head that a model of this configuration gets."""
        del config
        return self.head

    def in_mode(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model in the mode that it is for."""
        return model.eval()

    def calls(self, model: torch.nn.Module) -> Iterator[dict[str, Any]]:
        """Inputs to try, the likeliest first."""
        return iter(InputMaker(model, self.shape, self.seed).calls())

    def runs_untried(self, model: torch.nn.Module) -> bool:
        """The first inputs are known to be right: a call of a large model takes long, and one of text or images alone
        is known to run."""
        return _is_plain(model)

    def lacking(self, model: torch.nn.Module | None, why: str) -> tuple[str, str]:
        """What was not found for a model that was made, and what to do before the way out."""
        del model
        return f"no inputs were found with which it runs{why}", ""


class _WishToTrain(_Wish):
    """A model with a loss of its own, in training mode, and inputs with labels."""

    @property
    def may_be_part(self) -> bool:
        """A part has no loss."""
        return False

    def require(self, returned: Any) -> None:
        require_loss(returned)

    def head_for(self, config: Any) -> str:
        return _head_to_train(config, self.head)

    def in_mode(self, model: torch.nn.Module) -> torch.nn.Module:
        return model.train()

    def calls(self, model: torch.nn.Module) -> Iterator[dict[str, Any]]:
        return labelled(model, super().calls(model), self.seed)

    def runs_untried(self, model: torch.nn.Module) -> bool:
        del model
        return False

    def lacking(self, model: torch.nn.Module | None, why: str) -> tuple[str, str]:
        if model is None:
            return super().lacking(model, why)
        heads = [head for head in _TO_TRAIN if _auto_class(model.config, head) is not None]
        words = f"no labels were found with which {type(model).__name__} returns a loss{why}"
        return words, f"give {marked('arguments')} head={' or '.join(heads)}; or " if heads else ""


Named = Callable[[torch.nn.Module], list[str]]
"""Which modules of a model are wanted, the first of them that it calls."""


def _made(wish: _Wish, fields: dict[str, Scalar]) -> tuple[torch.nn.Module, Any]:
    """The model, in the mode that it is for, and the inputs of a call."""
    name, shape = wish.name, wish.shape
    _require_choice("head", wish.head, (OWN, *HEADS))
    _require_choice("size", wish.size, SIZES)
    for argument in ("batch", "seq", "image_size"):
        count = getattr(shape, argument)
        if count is not None:
            require_count(argument, count)
    with _explained(name):
        plain = _reader(name)()
        _require_fields(name, fields, {*plain.to_dict(), *plain.attribute_map, *_UNLISTED_FIELDS} - _FIXED_FIELDS)
        wanted = {plain.attribute_map.get(field, field): value for field, value in fields.items()}
        if shape.image_size is not None and hasattr(plain, "image_size"):
            wanted["image_size"] = shape.image_size
        try:
            return _answer(wish, plain, wanted, None if wish.part is None else partial(_named, wish))
        except (InputError, *_SAID) as error:
            wholes = list(wholes_of(plain)) if wish.may_be_part else []
            if not wholes:
                raise
            return _within(wholes, wish, plain, wanted, error)


def _answer(
    wish: _Wish, plain: Any, wanted: Mapping[str, Any], named: Named | None = None
) -> tuple[torch.nn.Module, Any]:
    """A model that runs, or the first of its modules named so that is called, with inputs. Raises InputError, or what
    transformers says."""
    name = wish.name
    without_cache = {"use_cache": False} if hasattr(plain, "use_cache") else {}  # No input here continues another.
    wanted = {**without_cache, **wanted}
    steps = range(len(STEPS)) if wish.size == "tiny" and "/" not in name else [None]

    def attempt(step: int | None) -> torch.nn.Module | None:
        config = _reader(name)(**(wanted if step is None else fields_of(plain, wanted, step)))
        config.architectures = config.architectures or []  # Where a type has two models, they are gone through.
        maker = _maker(name, config, wish.head_for(config))
        model = _model(name, config, maker, wish.seed, is_try=bool(step))
        return None if model is None else wish.in_mode(model)

    return _running(wish, [partial(attempt, step) for step in steps], named)


def _within(
    wholes: Sequence[Whole], wish: _Wish, plain: Any, wanted: Mapping[str, Any], error: Exception
) -> tuple[torch.nn.Module, Any]:
    """A model that is none by itself, `error` says why, within one of these that has it as a part. Raises InputError
    that says both."""
    for whole in wholes:
        model_type, fields = whole.model_type, whole.fields(wanted, plain.model_type)
        try:
            named = partial(modules_of, kind=type(plain))
            return _answer(replace(wish, name=model_type), _reader(model_type)(), fields, named)
        except (InputError, *_SAID):
            continue
    names = " or ".join(SCHEME + whole.model_type for whole in wholes)
    words = str(error) if isinstance(error, InputError) else _said(wish.name, error)
    raise InputError(words, tip=f"it is a part of {names}: take that, or {_way_out()}") from error


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
    wish: _Wish, attempts: Sequence[Callable[[], torch.nn.Module | None]], named: Named | None
) -> tuple[torch.nn.Module, Any]:
    """The first model that is made and runs, to train with a loss, or the first of its modules named so that it calls,
    and its inputs. Raises the first error of making one where none was made, and InputError where none runs."""
    unmade: Exception | None = None
    failed: Exception | None = None
    uncalled: list[str] = []
    model: torch.nn.Module | None = None
    for attempt in attempts:
        try:
            model = attempt()
        except InputError:
            raise
        except Exception as error:
            unmade = unmade or error
            continue
        parts = [] if model is None or named is None else named(model)
        for inputs in [] if model is None or _is_in_pieces(model) else wish.calls(model):
            assert model is not None
            if named is None and len(attempts) == 1 and wish.runs_untried(model):
                return model, inputs
            try:
                found = called(model, parts, inputs, wish.require)
            except Exception as error:
                failed = failed or error
                continue
            if named is None:
                return model, inputs
            if found is not None:
                return found
            uncalled = uncalled or list(inputs)
    raise _refusal(wish, model, unmade, failed, uncalled)


def _is_in_pieces(model: torch.nn.Module) -> bool:
    """A call of the whole does nothing, as with some that generate."""
    return type(model).forward is torch.nn.Module.forward


def _is_plain(model: torch.nn.Module) -> bool:
    config: Any = model.config
    return not config.sub_configs and model.main_input_name in _ONE_KIND


def _refusal(
    wish: _Wish,
    model: torch.nn.Module | None,
    unmade: Exception | None,
    failed: Exception | None,
    uncalled: list[str],
) -> Exception:
    """Why there is no model that runs, by what was raised where one was made and where one was called; or that it does
    not call the part that is wanted."""
    if failed is None and isinstance(unmade, _SAID):
        return unmade
    why = f": {quoted(failed)}" if failed is not None else ""
    if not why and model is not None:
        why = f": its forward takes {', '.join([*inspect.signature(model.forward).parameters][:4])}"
    tip = _way_out()
    if model is not None and _is_in_pieces(model):
        words = f"{type(model).__name__} has no forward: its parts and methods are called one by one"
    elif uncalled:
        words = f"does not call this part with {', '.join(uncalled)}"
    elif failed is None and isinstance(unmade, ImportError):
        words = f"needs a package that is not installed here: {quoted(unmade)}"
        tip = f"install it, or {tip}"
    elif failed is None and unmade is not None:
        words = f"is not made by its configuration alone: {quoted(unmade)}"
    else:
        words, first = wish.lacking(model, why)
        tip = first + tip
    refusal = InputError(f"{_asked(wish.name)}: {words}", tip=tip)
    refusal.__cause__ = failed or unmade
    return refusal


def _way_out() -> str:
    return "take a function of your own that returns (model, inputs): " + marked("build", "FILE.py:FUNCTION")


def _named(wish: _Wish, model: torch.nn.Module) -> list[str]:
    """The wanted module. Raises InputError where there is none."""
    part, modules = wish.part, dict(model.named_modules())
    if part not in modules or not part:
        near = [each for each in modules if each and each.count(".") < 2]
        raise InputError(
            f"{marked('arguments', {'part': part})}: {SCHEME}{wish.name} has no such module",
            tip=f"{did_you_mean(str(part), near)}among others: {', '.join(near[:12])}",
        )
    return [part]


def _asked(name: str) -> str:
    return marked("build", SCHEME + name)


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


def _head_to_train(config: Any, head: str) -> str:
    """One with a loss, where nobody names a head. The configuration then says how a decoder begins, as all of the Hub
    do and some types do not."""
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None)
    if head != OWN or config.architectures:
        return head
    body: Any = transformers.MODEL_MAPPING.get(type(config), None)
    if PAIRED in inspect.signature(getattr(body, "forward", len)).parameters:
        return "none"
    return next((known for known in _TO_TRAIN if _auto_class(config, known) is not None), "none")


def _maker(name: str, config: Any, head: str) -> Any:
    """The class that makes a model with this head. Raises InputError if there is none for the configuration."""
    if head == OWN:
        named = [getattr(transformers, kind) for kind in config.architectures or () if hasattr(transformers, kind)]
        if named:
            return named[0]
        head = "none"
    makers = {other: maker for other in HEADS if (maker := _auto_class(config, other)) is not None}
    is_for_it = head in makers and (head != "none" or _made_for(config) is type(config))
    if head == "none" and not is_for_it and (own := _own_class(config)) is not None:
        return own
    if head not in makers:
        raise InputError(
            f"{_asked(name)}: transformers {transformers.__version__} has no such model with head={head}",
            tip=f"give {marked('arguments')} head={' or '.join(makers)}" if makers else _way_out(),
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
    """The class that the file of the models has for this configuration: one called `...Model` first, then one for a
    task, then a backbone."""
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
    kinds.sort(key=lambda kind: [word not in f"{kind.__name__}." for word in ("Model.", "For", "Backbone.")])
    return _OwnClass(kinds[0]) if kinds else None


def _made_for(config: Any) -> type | None:
    """The class of configurations of the model without a head that transformers has for this one. It may be that of a
    part: Musicgen has the model of its decoder there."""
    kind: Any = transformers.MODEL_MAPPING.get(type(config), None)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return next((each.config_class for each in kinds if each is not None), None)


def _auto_class(config: Any, head: str) -> Any | None:
    fitting = (maker for maker, mapping in HEADS[head] if type(config) in getattr(transformers, mapping))
    return next((getattr(transformers, maker) for maker in fitting), None)


def _require_choice(argument: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(
            f"{marked('arguments', {argument: value})}: unknown", tip=f"choose one of: {', '.join(choices)}"
        )


def _require_fields(name: str, fields: dict[str, Scalar], known: set[str]) -> None:
    for field in fields:
        if field not in known:
            raise InputError(
                f"{marked('arguments')} {field}: {SCHEME}{name} has no such field in its configuration",
                tip=f"it takes head, size, batch, seq, image_size, seed and: {', '.join(sorted(known))}",
            )


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """What transformers has against a name or a field, as one sentence."""
    try:
        yield
    except _SAID as error:
        tip = _DOWNLOAD if isinstance(error, OSError) else f"give other fields, or {_way_out()}"
        raise InputError(_said(name, error), tip=tip) from error


def _said(name: str, error: Exception) -> str:
    return f"{_asked(name)}: {textwrap.shorten(str(error), 300)}"


_DOWNLOAD = (
    "it is looked for in this machine's cache, then on the Hub: run `hf download NAME` where there is a connection, or "
    "name a folder that holds the model"
)
