"""A Cell in a file, pickled, so that another process can load it.

Cells keep what belongs to their process: hooks aside, that is left out, as it is in a copy that is compiled. Primitives
cannot be pickled; they are made again of what they were made of. The weights stand behind the rest, so that none is
copied where they are written.
"""

from __future__ import annotations

import io
import itertools
import mmap
import pickle
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.tensors import array_of
from autotune.errors import InputError
from autotune.plugins.watch.saving import WAY_OUT

_Type = first("mindspore._c_expression.typing:Type", "mindspore.common.dtype:Type")
_Primitive = first("mindspore._c_expression:Primitive_", "mindspore.ops:Primitive")
unrecorded: Any = first("mindspore.graph.api:_no_grad", "mindspore.common.api:_no_grad") or nullcontext
_OF_PROCESS = ("_compile_cache", "_phase_cache", "_lazy_construct_sig")
"""Attributes of a Cell: graphs by their names, and what is read from its source."""


def write(cell: ms.nn.Cell, path: Path) -> Mapping[str, list[str]]:
    """Returns module -> the classes and functions that the file takes from it. Raises InputError for a Cell that
    another process cannot load, such as one with a lambda in it, and OSError."""
    rest, weights = io.BytesIO(), list[memoryview]()
    with unrecorded():
        writing = _Writing(rest, weights)
        try:
            writing.dump(cell)
        except Exception as error:  # Whatever an attribute's own pickling raises.
            raise InputError(f"a file cannot hold all of it: {error}", tip=WAY_OUT) from None
    with path.open("wb") as file:
        pickle.dump([len(rest.getvalue()), *(each.nbytes for each in weights)], file)
        file.write(rest.getvalue())
        for each in weights:
            file.write(each)
    return writing.needed


def read(path: Path) -> ms.nn.Cell:
    """What `write` wrote. To read it is to run what is in it."""
    with path.open("rb") as file:
        sizes, begin = pickle.load(file), file.tell()
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    ends = list(itertools.accumulate(sizes, initial=begin))
    rest, *weights = (whole[one:end] for one, end in itertools.pairwise(ends))
    return pickle.loads(rest, buffers=weights)


class _Writing(pickle.Pickler):
    """A file in the making."""

    def __init__(self, file: io.BytesIO, weights: list[memoryview]) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda each: weights.append(each.raw()))
        self.needed: dict[str, list[str]] = {}

    def reducer_override(self, value: Any) -> Any:
        """How MindSpore's objects are made again; all others as ever."""
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            self.needed.setdefault(value.__module__ or "builtins", []).append(value.__qualname__)
        elif isinstance(value, ms.Parameter):
            made = (array_of(value), str(value.dtype), value.name, value.requires_grad, value.layerwise_parallel)
            return _parameter, made
        elif isinstance(value, ms.Tensor):
            return _tensor, (array_of(value), str(value.dtype))
        elif isinstance(value, ms.nn.Cell) and _is_plain(type(value)):
            return _empty, (type(value),), _state_of(value), None, None, _fill
        elif isinstance(value, _Primitive):
            return _primitive, (type(value), value.init_attrs, value.attrs, getattr(value, "instance_name", None))
        elif isinstance(value, _Type):
            return _type, (str(value),)
        return NotImplemented


def _is_plain(kind: Any) -> bool:
    """The author has not said how it is pickled."""
    own = ms.nn.Cell.__getstate__
    return (
        kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__ and kind.__getstate__ is own
    )


def _type(name: str) -> Any:
    """`Float32` is `mindspore.float32`."""
    return getattr(ms, {"bool": "bool_"}.get(name.lower(), name.lower()))


def _tensor(array: Any, dtype: str) -> ms.Tensor:
    return ms.Tensor(array, dtype=_type(dtype))


def _parameter(array: Any, dtype: str, name: str, requires_grad: bool, layerwise_parallel: bool) -> ms.Parameter:
    return ms.Parameter(_tensor(array, dtype), name, requires_grad, layerwise_parallel)


def _empty(kind: type) -> ms.nn.Cell:
    made = ms.nn.cell.Cell_.__new__(kind)
    ms.nn.cell.Cell_.__init__(made, str(kind)[8:-2])
    return made


def _state_of(cell: ms.nn.Cell) -> dict[str, Any]:
    """Gradients are not being taken of it any more."""
    held = {**vars(cell), "requires_grad": False, "is_top_cell": False}
    return {name: None if name in _OF_PROCESS else value for name, value in held.items()}


def _fill(cell: ms.nn.Cell, state: dict[str, Any]) -> None:
    object.__setattr__(cell, "__dict__", {**state, "_create_time": time.time_ns()})
    ms.nn.Cell.total_instance_count += 1  # It goes down when a Cell is deleted.


def _primitive(kind: type, made_of: dict[str, Any], attributes: dict[str, Any], name: str | None) -> Any:
    made = kind(**made_of)
    for attribute, value in attributes.items():
        if attribute not in made.attrs:
            made.add_prim_attr(attribute, value)
    if name is not None:
        made.set_prim_instance_name(name)
    return made
