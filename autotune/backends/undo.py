"""`UndoLog`: what applying a config changes outside the compiled code, so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


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

    def undo(self) -> None:
        """Put everything back, the last change first. The log is empty then. What cannot be put back keeps nothing else
        from it: the error is raised at the end."""
        with ExitStack() as undos:
            while self._undos:
                undos.callback(self._undos.pop(0))
