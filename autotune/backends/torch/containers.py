"""What containers and plain objects hold: where the tensors of a call's inputs and outputs lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import fields
from typing import Any

import torch

from autotune.nesting import has_fields

DEEPEST = 6
"""Objects within each other that are looked into, such as the layers of a cache of keys and values."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Those among a call's inputs, also in tuples, lists, mappings, dataclasses and attributes of plain objects. What
    can be called, such as a module, is not looked into. Quick: it is asked at each call."""
    found: list[torch.Tensor] = []
    objects: list[Any] = []
    _collect(values, found, objects)
    seen: dict[int, Any] = {}
    for _ in range(DEEPEST if objects else 0):
        new = {id(each): each for each in objects if id(each) not in seen}
        seen |= new
        objects = []
        for each in new.values():
            _collect(_parts(each), found, objects)
    return found


def entries(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container or a plain object holds, by key, place or name; None for what is neither."""
    if isinstance(value, MutableMapping):
        return list(value.items())
    if isinstance(value, list):
        return list(enumerate(value))
    if callable(value):
        return None
    if hasattr(value, "__dict__"):
        return list(vars(value).items())
    return [(each.name, getattr(value, each.name)) for each in fields(value)] if has_fields(value) else None


def _collect(values: Iterable[Any], found: list[torch.Tensor], objects: list[Any]) -> None:
    """Put each tensor into `found`, and what may hold more of them into `objects`."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            _collect(value.values(), found, objects)
        elif isinstance(value, (tuple, list)):
            _collect(value, found, objects)
        elif type(value) not in _PLAIN:
            objects.append(value)


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else [each for _, each in entries(value) or ()]
