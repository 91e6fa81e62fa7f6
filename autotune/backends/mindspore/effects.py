"""What an untuned call of a Cell leaves behind that a graph would not: what it writes to its inputs, and to what the
Cell holds besides Parameters and buffers.

A graph sets Parameters and buffers at each call. Writes to a part of an input, to containers and to arrays are lost,
without a trace in the Cell that was compiled (measured on MindSpore 2.10), so that only an untuned call shows them.
One is looked at where the code of the model's author could write at all.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.regions import cells_of
from autotune.backends.mindspore.state import REGISTERS, Content, Snapshot, is_authors
from autotune.config import Config
from autotune.workload.regions import Region

_WRITING = frozenset({"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR", "STORE_GLOBAL"})
_WRITERS = frozenset(
    {
        *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "setdefault"),
        *("popitem", "add", "discard", "appendleft", "popleft", "extendleft", "setattr", "delattr", "itemset", "fill"),
        *("__setattr__", "__setitem__", "__delitem__", "__iadd__", "copyto", "put"),
    }
)
"""Names of functions and methods that write to what they are given."""
_IN_PLACE = re.compile(r"\w*[^_]_")
"""Methods of tensors such as `add_`."""
_MAX_VALUES = 50_000
"""Values that are looked at for functions of the author's."""


class Effects:
    """What one untuned call changes."""

    def __init__(self, cells: dict[str, ms.nn.Cell], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the call. `cells` are the compiled ones, by their paths."""
        self._cells = cells
        self._before = Snapshot(*cells.values())
        self._inputs = Content([*args, *kwargs.values()])

    def found(self) -> str | None:
        """After it: what has changed, in words."""
        found = [] if self._inputs.holds() else ["its inputs"]
        found += [f"{path}.{name}" if path else name for path, name in self._attributes()]
        if not self._before.constants_hold():
            found.append("a tensor or an array that it holds")
        if not self._before.classes_hold():
            found.append("an attribute of its class")
        return ", ".join(found[:3]) or None

    def _attributes(self) -> Iterator[tuple[str, str]]:
        for path, cell in self._cells.items():
            yield from ((path, name) for name in self._before.changed(vars(cell)) if name not in REGISTERS)


def effects_of(model: ms.nn.Cell, config: Config) -> Callable[[tuple[Any, ...], dict[str, Any]], Effects] | None:
    """Looks at one call; None where nothing is compiled, and where no code of compiled Cells writes to anything that
    outlives a call."""
    if config["execution"] == "pynative":
        return None
    compiled = cells_of(model, Region.of(config))
    if not any(map(_writes, _functions(compiled))):
        return None
    within = {id(inner) for cell in compiled for _, inner in cell.cells_and_names()}
    cells = {path: cell for path, cell in model.cells_and_names() if id(cell) in within}
    return partial(Effects, cells)


def _writes(function: FunctionType) -> bool:
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(
        any(name in _WRITERS or _IN_PLACE.fullmatch(name) for name in code.co_names)
        or any(map(_is_writing, dis.get_instructions(code)))
        for code in codes
    )


def _is_writing(instruction: dis.Instruction) -> bool:
    """`x += y` writes to a tensor `x`."""
    return instruction.opname in _WRITING or (instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="))


def _functions(cells: Iterable[ms.nn.Cell]) -> Iterator[FunctionType]:
    """Functions of the author's that the Cells, and the functions themselves, lead to; without `__init__`."""
    known: dict[int, Any] = {}
    values: list[Any] = [inner for cell in cells for _, inner in cell.cells_and_names()]
    while values and len(known) < _MAX_VALUES:
        value = values.pop()
        if id(value) in known:
            continue
        known[id(value)] = value
        if isinstance(value, FunctionType) and is_authors(value):
            yield value
        values += _parts(value)


def _parts(value: Any) -> Iterable[Any]:
    """What may lead to functions of the author's."""
    for kinds, parts_of in _LEADING:
        if isinstance(value, kinds):
            return parts_of(value)
    has_parts = isinstance(value, ms.nn.Cell) or is_authors(type(value))
    return [type(value), *getattr(value, "__dict__", {}).values()] if has_parts else []


def _named_in(function: FunctionType) -> list[Any]:
    return [function.__globals__.get(name) for name in function.__code__.co_names] if is_authors(function) else []


def _in_class(kind: type) -> list[Any]:
    own = vars(kind).items() if is_authors(kind) else ()
    return [*(member for name, member in own if name != "__init__"), *kind.__bases__]


_LEADING: tuple[tuple[tuple[type, ...], Callable[[Any], Iterable[Any]]], ...] = (
    ((FunctionType,), _named_in),
    ((type,), _in_class),
    ((MethodType, staticmethod, classmethod), lambda value: [value.__func__]),
    ((property,), lambda value: [value.fget]),
    ((list, tuple), lambda value: value),
    ((dict,), lambda value: value.values()),
)
