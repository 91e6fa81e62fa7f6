"""Versions of a Cell under `ms.jit`, each compiled for one shape.

MindSpore compiles a graph for each shape by itself. Here each shape has its own `CompiledCell`, so that its graph can
be told from the others'.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.apply import prepare
from autotune.backends.mindspore.call_values import call_key
from autotune.backends.mindspore.compiled_cell import CompiledCell
from autotune.backends.mindspore.knobs import CompileArguments
from autotune.backends.undo import UndoLog
from autotune.config import Config


def versions(model: ms.nn.Cell, config: Config, changes: UndoLog) -> CellVersions | None:
    """See `PerShape`. Only for the whole Cell under `ms.jit` in its own precision: Cells compiled alone serve
    all calls, and without a compilation mixed precision does."""
    if config.get("execution") != "jit" or "region" in config.root or config.get("amp_level") not in (None, "O0"):
        return None
    return CellVersions(model, prepare(model, config, "infer", changes))


class CellVersions:
    """See `Versions`."""

    gives_back = False
    """A graph outlives the `ms.jit` that made it (measured on MindSpore 2.10)."""

    def __init__(self, model: ms.nn.Cell, arguments: CompileArguments) -> None:
        self._model = model
        self._arguments = arguments

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        return type(self._model).__call__(self._model, *args, **kwargs)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        return (call_key(args), call_key(kwargs), self._model.training)

    def new(self) -> Callable[..., Any]:
        return CompiledCell(self._model, self._arguments)

    def warm(self) -> None:
        """Nothing to do: all shapes cost the same."""

    def drop(self, version: Callable[..., Any]) -> None:
        """Nothing to do: see `gives_back`."""

    def memory_bytes(self) -> int | None:
        return None
