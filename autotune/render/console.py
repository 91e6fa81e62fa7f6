"""The console that tables and summaries are printed on: what it shows cannot act on the terminal."""

from __future__ import annotations

import errno
import os
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from autotune.errors import OUTPUT, naming, printable_lines, worded


class PlainConsole(Console):
    """Text is text: neither escape sequences nor rich's own markup in a name or an error have any effect."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def print(self, *objects: Any, **settings: Any) -> None:
        """On stdout are results: that they cannot be written is an error. On stderr is progress, which ends no run
        where nobody can read it."""
        try:
            with naming(OUTPUT):
                super().print(*objects, **settings)
        except OSError:
            if not self.stderr:
                raise
            self.quiet = True

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, where rich would end the program with status 1."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable_lines(text), style, control)


class Hanging:
    """A line of text. On a terminal, what does not fit goes on in the next one, below column `indent`."""

    def __init__(self, line: str, indent: int) -> None:
        self._line, self._indent = worded(line), indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.no_wrap:
            yield Text(self._line)
            return
        width = max(options.max_width, 2 * self._indent)
        start = self._line[: len(self._line) - len(self._line.lstrip())]
        wrapped = textwrap.wrap(
            self._line.lstrip(), width, initial_indent=start, subsequent_indent=" " * self._indent,
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
        yield from map(Text, wrapped)


def console(width: int | None = None) -> PlainConsole:
    """For stdout. A pipe has no width of its own and is given this one; its lines are not wrapped."""
    is_terminal = sys.stdout.isatty()
    return PlainConsole(width=None if is_terminal else width, soft_wrap=not is_terminal)
