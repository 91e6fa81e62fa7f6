"""Which Cells `ms.jit` compiles: the model's own, or chosen ones inside PyNative.

Each Cell is a compilation of its own, equal ones too (measured on MindSpore 2.10: 8 graphs for 8 blocks).
"""

from __future__ import annotations

from collections.abc import Mapping

import mindspore as ms

from autotune.errors import InvalidConfigError
from autotune.workload.regions import KNOB, Region, matching_paths

_CONTAINERS = tuple(getattr(ms.nn, name) for name in ("CellList", "CellDict") if hasattr(ms.nn, name))
"""Cells that are never called themselves."""


def modules(model: ms.nn.Cell) -> Mapping[str, ms.nn.Cell]:
    """By their paths; a Cell that stands in two places has the first one's."""
    return dict(model.cells_and_names())


def cells_of(model: ms.nn.Cell, region: Region) -> list[ms.nn.Cell]:
    """The Cells to compile. Raises InvalidConfigError for paths that are not there, and for what cannot be compiled."""
    if region.left:
        raise InvalidConfigError(
            f"knob {KNOB}: MindSpore cannot leave a part of a graph as it is", tip="name the Cells to compile instead"
        )
    if region.is_whole:
        return [model]
    found = modules(model)
    for path in (paths := matching_paths(region.compiled, found)):
        if isinstance(found[path], _CONTAINERS):
            raise InvalidConfigError(
                f"knob {KNOB}: {path} is a {type(found[path]).__name__}, which is never called itself",
                tip=f"write '{path}.*' for what is in it",
            )
        if "construct" in vars(found[path]):
            raise InvalidConfigError(f"knob {KNOB}: {path} is wrapped by ms.jit already")
    return [found[path] for path in paths]


def compiled_paths(model: ms.nn.Cell) -> list[str]:
    """The Cells whose own `construct` is compiled, as the model tells."""
    return [path for path, each in model.cells_and_names() if "construct" in vars(each)]
