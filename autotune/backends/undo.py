"""`UndoLog`: what applying a config changes outside the compiled code, so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


class UndoLog:
    """Changes in the order in which they were made, each with the function that undoes it."""

    def __init__(self) -> None:
        self._undos: list[Callable[[], object]] = []

    def make(self, do: Callable[[], object], undo: Callable[[], object]) -> None:
        """Call `do` now, and note how it is undone. If `do` raises, nothing is noted."""
        do()
        self._undos.append(undo)

    def set_attribute(self, owner: Any, name: str, value: object) -> None:
        """`owner.name = value`, undone by the value that it has now."""
        before = getattr(owner, name)
        self.make(lambda: setattr(owner, name, value), lambda: setattr(owner, name, before))

    def rewrite(self, owners: Iterable[Any], rewrite: Callable[[], Result]) -> Result:
        """What `rewrite` returns. It may set attributes of the owners, and add to or take from dicts in them; that is
        undone, and nothing else that it does.

        If it raises, nothing is noted, and what it had set by then stands.
        """
        parts = list(owners)
        before = [_attributes(each) for each in parts]
        result = rewrite()
        after = [_attributes(each) for each in parts]
        differing = [
            (part, name, old.get(name, _ABSENT))
            for part, old, new in zip(parts, before, after, strict=True)
            for name in old.keys() | new.keys()
            if not _same(old.get(name, _ABSENT), new.get(name, _ABSENT))
        ]

        def undo() -> None:
            for part, name, old in differing:
                _put(part, name, old)

        self._undos.append(undo)
        return result

    def undo(self) -> None:
        """Put everything back, the last change first. The log is empty then."""
        while self._undos:
            self._undos.pop()()


_ABSENT = object()
_CLASS = "__class__"
"""Stands among the attributes, since an object can be given another class."""


def _attributes(owner: Any) -> dict[str, Any]:
    """Dicts as copies: a framework's module keeps its parts in one, which stays the same object."""
    held = {name: value.copy() if isinstance(value, dict) else value for name, value in vars(owner).items()}
    return {**held, _CLASS: type(owner)}


def _same(one: Any, other: Any) -> bool:
    """By identity: to ask tensors whether they are equal gives a tensor."""
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(
            key == same_key and one[key] is other[same_key] for key, same_key in zip(one, other, strict=True)
        )
    return one is other


def _put(owner: Any, name: str, value: Any) -> None:
    """Past an owner's own bookkeeping, which would take what it is given for a part."""
    held = vars(owner)
    if name == _CLASS:
        owner.__class__ = value
    elif value is _ABSENT:
        held.pop(name, None)
    elif isinstance(value, dict) and isinstance(held.get(name), dict):
        held[name].clear()
        held[name].update(value)
    else:
        held[name] = value
