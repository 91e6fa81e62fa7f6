"""CUDA graphs in a job: a replay writes its outputs where the replay before it wrote them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autotune.backends.outputs import has_fields, with_fields


class ClonedOutputs:
    """A step whose outputs are the caller's own, so that a job may keep them.

    PyTorch's advice for outputs that outlive the next call:
    https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return _cloned(self._step(*args, **kwargs))


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        # Not a new dict: libraries have classes of their own that are dicts, with attributes beside the items.
        for name, each in value.items():
            value[name] = _cloned(each)
        return value
    if isinstance(value, (tuple, list)):
        parts = [_cloned(each) for each in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return with_fields(value, _cloned) if has_fields(value) else value
