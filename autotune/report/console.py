"""The console that tables and summaries are printed on: what it shows cannot act on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autotune.errors import printable_lines


class PlainConsole(Console):
    """Text is text: neither escape sequences nor rich's own markup in a name or an error have any effect."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable_lines(text), style, control)


def console(width: int | None = None) -> PlainConsole:
    """For stdout. A pipe has no width of its own and is given this one; its lines are not wrapped."""
    is_terminal = sys.stdout.isatty()
    return PlainConsole(width=None if is_terminal else width, soft_wrap=not is_terminal)
