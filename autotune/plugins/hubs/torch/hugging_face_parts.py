"""Parts of models of transformers: modules by name or by their configuration, and how a model calls them.

Some model types are parts that another model makes, or feeds with what it has computed itself: SAM's mask decoder,
BLIP-2's querying transformer. Such a type is found in the model of a type that has it as a part. Which types these are,
the file of its configuration says: others there hold it, by one or more fields.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from autotune.plugins.hubs.torch.hugging_face_sizes import parts_of

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


@dataclass(frozen=True)
class Whole:
    """A model type whose models have a part with a configuration of a wanted class."""

    model_type: str
    path: tuple[str, ...]
    """Fields of configurations that lead to that of the part."""

    def fields(self, wanted: Mapping[str, Any], model_type: str) -> dict[str, Any]:
        """Fields for the configuration of the whole, so that the part of this type has the wanted ones."""
        fields: dict[str, Any] = {"model_type": model_type, **wanted} if wanted else {}
        for field in reversed(self.path):
            fields = {field: fields} if fields else {}
        return fields


def wholes_of(plain: Any) -> Iterator[Whole]:
    """Model types in the file of this configuration that have it as a part."""
    kind = type(plain)
    place = kind.__module__
    for other in vars(sys.modules[place]).values():
        model_type: Any = getattr(other, "model_type", None)
        if model_type not in transformers.CONFIG_MAPPING or other is kind or other.__module__ != place:
            continue
        try:
            path = _path(other(), kind)
        except Exception:  # Not every configuration can do without arguments.
            continue
        if path is not None:
            yield Whole(model_type, path)


def _path(config: Any, kind: type) -> tuple[str, ...] | None:
    for field, part in parts_of(config):
        if type(part) is kind:
            return (field,)
        if (below := _path(part, kind)) is not None:
            return (field, *below)
    return None


def modules_of(model: torch.nn.Module, kind: type) -> list[str]:
    """Names of the modules that a configuration of this class makes, which are not the model itself."""
    called = kind.__name__.removesuffix("Config")
    return [
        name
        for name, module in model.named_modules()
        if name
        and (
            type(module).__name__ == called
            or (isinstance(module, transformers.PreTrainedModel) and type(module.config) is kind)
        )
    ]


def called(
    model: torch.nn.Module,
    names: Sequence[str],
    inputs: Mapping[str, Any],
    require: Callable[[Any], None] | None = None,
) -> tuple[torch.nn.Module, Call] | None:
    """The first of these modules that a call of the model calls, and with what. None: it calls none of them. Raises
    what the call raises, and what `require` has against its output."""
    seen: list[tuple[torch.nn.Module, Call]] = []

    def see(module: torch.nn.Module, positional: tuple[Any, ...], keyword: dict[str, Any]) -> None:
        seen.append((module, (positional, keyword)))

    modules = dict(model.named_modules())
    hooks = [modules[name].register_forward_pre_hook(see, with_kwargs=True) for name in names]
    try:
        with torch.no_grad():
            returned = model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if require is not None:
        require(returned)
    return seen[0] if seen else None
