"""Captured graphs (CUDA's, and NPU graphs alike): a replay writes its outputs where the replay before it wrote them.

What a trial times and what a job calls is the same `ClonedOutputs`, so that the price of the copies is in every latency
of a config with such graphs (docs/decisions/0026-captured-graphs.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import fields
from typing import Any

import torch

from autotune.backends.outputs import has_fields

_DEEPEST = 6
"""Containers and objects within each other that are looked into, such as the layers of a cache of keys and values."""


class ClonedOutputs:
    """A step whose outputs are the caller's own, so that a job may keep them.

    PyTorch's advice for outputs that outlive the next call:
    https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return _Copies(_tensors((args, kwargs))).of(self._step(*args, **kwargs))


def copied(outputs: Any) -> Any:
    """The outputs of one call with tensors of their own, as `ClonedOutputs` gives them."""
    return _Copies(()).of(outputs)


class _Copies:
    """Copies of the tensors in one call's outputs, one of each; the caller's own tensors stay what they are."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        self._seen: dict[int, tuple[Any, Any]] = {id(each): (each, each) for each in given}
        """Of an object by its id: the object itself, so that no other one gets the id, and what stands for it."""

    def of(self, value: Any, depth: int = 0) -> Any:
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        if isinstance(value, torch.Tensor):
            return self._note(value, value.clone())
        if isinstance(value, tuple) and depth < _DEEPEST:
            parts = [self.of(each, depth + 1) for each in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return self._note(value, value._make(parts) if hasattr(value, "_make") else type(value)(parts))
        entries = _entries(value)
        if entries is not None and depth < _DEEPEST:
            # Not a new one: libraries have classes of their own, with attributes beside the items.
            self._note(value, value)
            for name, each in entries:
                new = self.of(each, depth + 1)
                if new is not each:
                    _put(value, name, new)
        return value

    def _note(self, value: Any, copy: Any) -> Any:
        self._seen[id(value)] = value, copy
        return copy


def _entries(value: Any) -> list[tuple[Any, Any]] | None:
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


def _put(value: Any, name: Any, new: Any) -> None:
    if isinstance(value, (MutableMapping, list)):
        value[name] = new
    else:
        object.__setattr__(value, name, new)  # It may have slots, or be frozen.


def _tensors(value: Any) -> list[torch.Tensor]:
    """Those among the arguments of a call."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in _tensors(each)]
    return []
