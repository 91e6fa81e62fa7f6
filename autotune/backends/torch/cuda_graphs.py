"""Captured graphs (CUDA's, and NPU graphs alike): a replay writes its outputs where the replay before it wrote them.

What a trial times and what a job calls is the same `ClonedOutputs`, so that the price of the copies is in every latency
of a config with such graphs (docs/decisions/0026-captured-graphs.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import torch

from autotune.backends.torch.containers import DEEPEST, entries, tensors_in


class ClonedOutputs:
    """A step whose outputs are the caller's own, so that a job may keep them.

    PyTorch's advice for outputs that outlive the next call:
    https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return _Copies(tensors_in((args, kwargs))).of(self._step(*args, **kwargs))


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
        if isinstance(value, tuple) and depth < DEEPEST:
            parts = [self.of(each, depth + 1) for each in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            return self._note(value, value._make(parts) if hasattr(value, "_make") else type(value)(parts))
        held = entries(value)
        if held is not None and depth < DEEPEST:
            # Not a new one: libraries have classes of their own, with attributes beside the items.
            self._note(value, value)
            for name, each in held:
                new = self.of(each, depth + 1)
                if new is not each:
                    _put(value, name, new)
        return value

    def _note(self, value: Any, copy: Any) -> Any:
        self._seen[id(value)] = value, copy
        return copy


def _put(value: Any, name: Any, new: Any) -> None:
    if isinstance(value, (MutableMapping, list)):
        value[name] = new
    else:
        object.__setattr__(value, name, new)  # It may have slots, or be frozen.
