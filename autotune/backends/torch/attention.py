"""How one of Hugging Face's models computes attention, chosen for compiled calls alone: knob `attention`.

A model reads the name of its implementation (`eager`, `sdpa`) from its configuration in each layer, and what stands
around it makes masks in that implementation's form. To write another name there would change calls of other threads in
the middle. So compiled calls go to a copy of the modules, with the same weights and configurations of its own; the
job's model, and each call that is not compiled, stays as it is.

Masks come from outside, in the form of the model's own implementation: `sdpa` takes a mask that is true where a token
sees another, or none at all for a prompt that begins an empty cache; `eager` adds numbers, and would add a one for each
true. Numbers are right for both, and are what a copy is given. Where there is no mask it makes its own.

Flex attention is not offered: its masks are tables of blocks, which transformers makes anew for each step.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from autotune.backends.torch import regions
from autotune.errors import InvalidConfigError

KNOB = "attention"
IMPLEMENTATIONS = ("eager", "sdpa")
"""Those that take a mask of numbers."""


def copy_with(model: Any, implementation: str) -> regions.ModelCopy:
    """A copy of the modules with that implementation. Raises InvalidConfigError for a model that cannot have it."""
    kind = type(model).__name__
    if not callable(getattr(model, "set_attn_implementation", None)):
        raise InvalidConfigError(f"knob {KNOB}: a {kind} has no choice of attention")
    if model.config.is_encoder_decoder or implementation_of(model) not in IMPLEMENTATIONS:
        raise InvalidConfigError(f"knob {KNOB}: masks of a {kind} are not known here")
    made = regions.copy_modules(model)
    seen: dict[int, Any] = {}
    for module in made.model.modules():
        for name, value in [*vars(module).items()]:
            if _is_configuration(value):
                vars(module)[name] = copy.deepcopy(value, seen)
    copied: Any = made.model
    try:
        with _silently():
            copied.set_attn_implementation(implementation)
    except (ValueError, ImportError) as error:
        raise InvalidConfigError(f"knob {KNOB}: {error}") from error
    if implementation_of(copied) != implementation:
        raise InvalidConfigError(f"knob {KNOB}: a {kind} has no {implementation} attention")
    return made


def others(model: Any) -> Iterator[str]:
    """The implementations that a model can have besides its own."""
    own = implementation_of(model)
    for implementation in IMPLEMENTATIONS:
        if implementation == own:
            continue
        with suppress(InvalidConfigError):
            copy_with(model, implementation)
            yield implementation


def implementation_of(model: Any) -> str:
    """Its name, as the model's configuration has it."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation)


def with_numbers(call: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """`call`, whose masks are numbers of this type."""

    def called(**kwargs: Any) -> Any:
        return call(**{**kwargs, _MASK: numbers_of(kwargs.get(_MASK), dtype)})

    return called


def numbers_of(mask: Any, dtype: torch.dtype) -> Any:
    """What is added to scores, of a mask of truths. None where a part of it is: the model makes the whole then, which
    it is left to for prompts without padding alone. Which tokens are padding (two dimensions) stays."""
    if isinstance(mask, dict):
        parts = {kind: numbers_of(part, dtype) for kind, part in mask.items()}
        return None if any(part is None for part in parts.values()) else parts
    if mask is None or mask.dim() != 4 or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)


_MASK = "attention_mask"


def _is_configuration(value: Any) -> bool:
    return hasattr(type(value), "_attn_implementation")


@contextmanager
def _silently() -> Iterator[None]:
    """What transformers says of a model that has no choice is raised here."""
    logger = logging.getLogger("transformers.modeling_utils")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
