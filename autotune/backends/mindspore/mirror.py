"""`Mirror`: what calls of a copy set in its Cells is set in the Cells that it was copied from, as the job's own call
would have done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.state import REGISTERS, Snapshot

_REFILLED = (dict, list, set)


class Mirror:
    """A Cell and its copy, each with all Cells in it. `copies` has the copies by the identity of their originals."""

    def __init__(self, model: ms.nn.Cell, copies: Mapping[int, ms.nn.Cell]) -> None:
        self._copy = copies[id(model)]
        self._pairs = {path: (each, copies[id(each)]) for path, each in model.cells_and_names()}
        self._originals = {id(copy): original for original, copy in self._pairs.values()}
        self._containers: dict[int, tuple[Any, Any]] = {}
        """Those that were copied, by the identity of the copy, with their originals."""
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
