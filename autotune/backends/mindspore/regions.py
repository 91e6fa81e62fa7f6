"""Which Cells `ms.jit` compiles (the model's own, or chosen ones inside PyNative), and the copies that are compiled.

Each Cell is a compilation of its own, equal ones too (measured on MindSpore 2.10: 8 graphs for 8 blocks).
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.state import REGISTERS, Snapshot, initialise
from autotune.errors import InvalidConfigError, UnsuitableCallError
from autotune.workload.regions import KNOB, Region, matching_paths

rewrites = False
"""See `Regions`: what is compiled is a copy in any case (`compiled_cell`)."""
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
    return [path for path, cell in model.cells_and_names() if "construct" in vars(cell)]


# Copies of Cells, with the Parameters of the job's own. Nothing changes the Cell that is copied.

_COPIED = (dict, OrderedDict, list, set)
"""Registers and flags of a Cell: what is put into a copy does not reach the original."""


def copy_cells(model: ms.nn.Cell, known: dict[int, ms.nn.Cell] | None = None) -> ms.nn.Cell:
    """The Cell and all Cells in it as new objects: attributes are those of now, and the Parameters are the same ones.

    Compiling marks Cells, mixed precision sets flags in them, and MindSpore finds a graph by its Cell's identity: all
    of that happens to the copy. A Cell that stands in two places does so here.
    """
    known = {} if known is None else known
    if id(model) not in known:
        other = known[id(model)] = empty_cell(type(model), model)
        held = {name: value.copy() if type(value) in _COPIED else value for name, value in vars(model).items()}
        held.update(_create_time=time.time_ns(), _compile_cache=None, _phase_cache=None)
        held.update(requires_grad=False, is_top_cell=False)  # They mark the calls of which gradients are taken.
        children = vars(model)["_cells"].items()
        held["_cells"] = OrderedDict((name, child and copy_cells(child, known)) for name, child in children)
        object.__setattr__(other, "__dict__", held)
        ms.nn.Cell.total_instance_count += 1  # It goes down when a Cell is deleted.
    return known[id(model)]


def empty_cell(kind: type, model: ms.nn.Cell) -> ms.nn.Cell:
    """A Cell without its author's and MindSpore's `__init__`, but with its C++ part."""
    other = ms.nn.cell.Cell_.__new__(kind)
    ms.nn.cell.Cell_.__init__(other, model._cell_tag)
    return other


# `Mirror`: what calls of a copy set in its Cells is set in the Cells that it was copied from, as the job's own call
# would have done.

_REFILLED = (dict, list, set)


class Mirror:
    """A Cell and its copy, each with all Cells in it. `copies` has the copies by the identity of their originals."""

    def __init__(self, model: ms.nn.Cell, copies: Mapping[int, ms.nn.Cell]) -> None:
        self._copy = copies[id(model)]
        self._pairs = {path: (cell, copies[id(cell)]) for path, cell in model.cells_and_names()}
        self._originals = {id(copy): original for original, copy in self._pairs.values()}
        self._containers: dict[int, tuple[Any, Any]] = {}
        """Containers that were copied, by the identity of the copy, with their originals."""
        for original, copy in self._pairs.values():
            self._note_containers(vars(original), vars(copy))
        self._seen: Snapshot | None = None

    def begin(self) -> None:
        """Before a call: from here on, what is set in the copy was set by calls."""
        if self._seen is None:
            self._seen = Snapshot(self._copy)

    def bring_back(self) -> list[str]:
        """After a call. Returns what it has set: attributes, with the paths of their Cells. After one that failed there
        is nothing to do: the untuned call that is made in its place sets the same."""
        changed = self._changed()
        for path, name in changed:
            original, copy = self._pairs[path]
            if name not in REGISTERS:
                self._put(vars(copy), vars(original), name)
        return [f"{path}.{name}" if path else name for path, name in changed]

    def _changed(self) -> list[tuple[str, str]]:
        if self._seen is None or self._seen.attributes_hold():
            return []
        changed = [(path, name) for path, (_, copy) in self._pairs.items() for name in self._seen.changed(vars(copy))]
        self._seen = None
        return changed

    def _put(self, copy: dict[str, Any], original: dict[str, Any], name: str) -> None:
        if name not in copy:
            original.pop(name, None)
            return
        value = copy[name]
        _, own = self._containers.get(id(value), (None, None))
        if own is not None:
            _refill(own, value)
            value = own
        original[name] = self._originals.get(id(value), value)

    def _note_containers(self, original: dict[str, Any], copy: dict[str, Any]) -> None:
        for name, own in original.items():
            other = copy.get(name)
            if isinstance(own, _REFILLED) and own is not other and name not in REGISTERS:
                self._containers[id(other)] = (other, own)


def _refill(own: Any, value: Any) -> None:
    """Give a container what another one holds; whoever else holds it sees that as well."""
    if isinstance(own, list):
        own[:] = value
    else:
        own.clear()
        own.update(value)


_NEWEST: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""By the identity of a Cell, which what is compiled keeps alive."""


def note_compiled(model: ms.nn.Cell, compiled: Any) -> None:
    """This is compiled in the Cell's place: another Cell, or a `CompiledCell`."""
    _NEWEST[id(model)] = compiled


def compiled_of(model: ms.nn.Cell) -> Any | None:
    """What was compiled last for this Cell, if anybody still holds it."""
    return _NEWEST.get(id(model))


def check_region(model: ms.nn.Cell, region: str) -> None:
    """See `Regions`."""
    cells_of(model, Region.parse(region))


# A copy of a model's Cells that has its Parameters: what variants rewrite in place of the job's model.


class CellCopy:
    """See `capabilities.ModelCopy`.

    A variant is written for the model as it was when it was applied: calls in another mode, or with other attributes or
    parts, are refused. New weights are seen, since the Parameters are the job's own, wherever their data lie.
    """

    def __init__(self, model: ms.nn.Cell) -> None:
        initialise(model)
        copies: dict[int, ms.nn.Cell] = {}
        self.model = copy_cells(model, copies)
        self._original = model
        self._mirror = Mirror(model, copies)
        self._seen = Snapshot(model)

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        note_compiled(self._original, step)

        def called(*args: Any, **kwargs: Any) -> Any:
            self._require_the_same()
            self._mirror.begin()  # What a variant is made of was put into the copy before.
            result = step(*args, **kwargs)
            if self._mirror.bring_back():
                self._seen = Snapshot(self._original)
            return result

        return called

    def _require_the_same(self) -> None:
        if not self._seen.attributes_hold():
            now = Snapshot(self._original)
            if now.has_hooks or not self._seen.has_attributes_of(now):
                raise UnsuitableCallError(
                    "the model has another mode, attribute, part or hook than when its variant was put in",
                    tip="apply the config again once the model is as it is to be used",
                )
            self._seen = now


copy_modules = CellCopy
"""See `Regions`."""
