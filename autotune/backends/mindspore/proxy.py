"""Other Cells with the parameters of a job's own: `shadow` is compiled in its place, `twin` is what the job holds.

Neither changes the Cell that it is made from. "Measured" means: on MindSpore 2.10.0, CPU, Linux x86-64.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore as ms

from autotune.backends.proxy_object import proxy_of

_COPIED = (dict, OrderedDict, list, set)
"""Registers and flags of a Cell: what is put into a copy does not reach the original."""


def copy_cells(model: ms.nn.Cell, known: dict[int, ms.nn.Cell] | None = None) -> ms.nn.Cell:
    """The Cell and all Cells in it as new objects: attributes are those of now, and the Parameters are the same ones.

    Compiling marks Cells, mixed precision sets flags in them, and MindSpore finds a graph by its Cell's identity: all
    of that happens to the shadow. A Cell that stands in two places does so here.
    """
    known = {} if known is None else known
    if id(model) not in known:
        other = known[id(model)] = _empty(type(model), model)
        held = {name: value.copy() if type(value) in _COPIED else value for name, value in vars(model).items()}
        held.update(_create_time=time.time_ns(), _compile_cache=None, _phase_cache=None)
        held.update(requires_grad=False, is_top_cell=False)  # They mark the calls of which gradients are taken.
        children = vars(model)["_cells"].items()
        held["_cells"] = OrderedDict((name, each and copy_cells(each, known)) for name, each in children)
        object.__setattr__(other, "__dict__", held)
        ms.nn.Cell.total_instance_count += 1  # It goes down when a Cell is deleted.
    return known[id(model)]


def make_proxy(model: ms.nn.Cell, call: Callable[..., Any]) -> ms.nn.Cell:
    """A Cell that is `model` in all but its calls, which go to `call`: it shares the model's `__dict__`."""

    def entered(*args: Any, **kwargs: Any) -> Any:
        if not other.requires_grad:
            return call(*args, **kwargs)
        # Gradients of this very Cell are being taken: MindSpore has its call marked by the Cell (measured).
        other._call_pre_process(*args, **kwargs)
        output = call(*args, **kwargs)
        other._call_post_process(output, *args, **kwargs)
        return output

    # The graphs that a Cell frees at its end are the model's.
    other: ms.nn.Cell = proxy_of(model, entered, partial(_empty, model=model), __del__=lambda _self: None)
    return other


def _empty(kind: type, model: ms.nn.Cell) -> ms.nn.Cell:
    """A Cell without its author's and MindSpore's `__init__`, but with its C++ part."""
    other = ms.nn.cell.Cell_.__new__(kind)
    ms.nn.cell.Cell_.__init__(other, model._cell_tag)
    return other
