"""Versions of a Cell under `ms.jit`, each compiled for one shape.

MindSpore compiles a graph for each shape by itself. Here each shape has its own `ms.jit` of the Cell, so that its graph
can be told from the others'.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import mindspore as ms

from autotune.backends.mindspore_apply import jitted, prepare
from autotune.backends.mindspore_settings import CompileArguments
from autotune.changes import Changes
from autotune.config import Config


def versions(model: ms.nn.Cell, config: Config, changes: Changes) -> CellVersions | None:
    """See `Backend.versions`. Only for the whole Cell under `ms.jit` in its own precision: graph mode compiles whatever
    is called, Cells compiled alone serve all calls, and mixed precision rewrites the Cell."""
    if config.get("execution") != "jit" or "region" in config.root or config.get("amp_level") not in (None, "O0"):
        return None
    return CellVersions(model, prepare(model, config, "infer", changes))


class CellVersions:
    """See `backends.Versions`. One call at a time: what is compiled is the Cell's own `construct` during a call."""

    gives_back = False
    """A graph outlives the `ms.jit` that made it (measured on MindSpore 2.10)."""

    def __init__(self, model: ms.nn.Cell, arguments: CompileArguments) -> None:
        self._model = model
        self._arguments = arguments
        self._call = type(model).__call__
        self._lock = threading.RLock()

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return self._call(self._model, *args, **kwargs)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        return (_seen(args), _seen(kwargs), self._model.training)

    def new(self) -> Callable[..., Any]:
        construct = jitted(self._model, self._arguments)
        held = vars(self._model)

        def version(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                held["construct"] = construct
                try:
                    return self._call(self._model, *args, **kwargs)
                finally:
                    del held["construct"]

        return version

    def warm(self) -> None:
        """Nothing to do: all shapes cost the same."""

    def drop(self, version: Callable[..., Any]) -> None:
        """Nothing to do: see `gives_back`."""

    def state(self) -> object:
        return None

    def rehearsal(
        self, version: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any] | None:
        """Never: a Cell cannot be called eagerly while it is compiled."""
        return None

    def memory_bytes(self) -> int | None:
        return None


def _seen(value: Any) -> Hashable:
    if isinstance(value, ms.Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_seen, value))
    if isinstance(value, dict):
        return tuple((name, _seen(each)) for name, each in value.items())
    kind: Any = type(value)
    return (kind, value) if isinstance(value, (bool, int, float, str, type(None))) else kind
