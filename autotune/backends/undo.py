"""`UndoLog`: what applying a config changes outside the compiled code, so that it can be undone, and done again.

Rule of this file: a change is a pair of functions that put one thing into its new and its old state; both may be
called any number of times, always in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class UndoLog:
    """UndoLog in the order in which they were made. All of them stand, or none does."""

    def __init__(self) -> None:
        self._made: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self._stand = True

    def make(self, do: Callable[[], object], undo: Callable[[], object]) -> None:
        """Call `do` now, and note how it is undone. If `do` raises, nothing is noted."""
        do()
        self._made.append((do, undo))

    def set_attribute(self, owner: Any, name: str, value: object) -> None:
        """`owner.name = value`, undone by the value that it has now."""
        before = getattr(owner, name)
        self.make(lambda: setattr(owner, name, value), lambda: setattr(owner, name, before))

    def undo(self) -> None:
        """Put everything back, the last change first. Nothing happens if nothing stands."""
        if self._stand:
            for _, undo in reversed(self._made):
                undo()
            self._stand = False

    def redo(self) -> None:
        """Make everything stand again that was undone."""
        if not self._stand:
            for do, _ in self._made:
                do()
            self._stand = True

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within: as if nothing had been changed."""
        self.undo()
        try:
            yield
        finally:
            self.redo()
