"""A notebook: how it shows a result, and the progress of a run in one output of the cell. Names stay text."""

from __future__ import annotations

import sys
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Any

from autotune.answer.result import StudyResult
from autotune.answer.sections import sections
from autotune.answer.sections.verdict import headline
from autotune.errors import printable
from autotune.render.console import PlainConsole
from autotune.render.live import LiveDisplay
from autotune.render.terminal import facts


def result_html(answer: StudyResult) -> str:
    """No scripts, no styles of a page: it takes on those of the notebook."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left">{_text(label)}</th>'
        f'<td style="text-align: left">{_text(value)}</td></tr>'
        for label, value in (("study", answer.study), *facts(sections(answer), why=False))
    )
    return f"<div><p><b>{_text(headline(answer))}</b></p><table>{rows}</table></div>"


def _text(content: str) -> str:
    return escape(printable(content))


def is_notebook() -> bool:
    """The program runs in a kernel of Jupyter, not in IPython's terminal. It imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookDisplay(LiveDisplay):
    """See `LiveDisplay`. A line on stderr would stand on red, and rich makes an output of each line."""

    def __init__(self) -> None:
        super().__init__(PlainConsole(stderr=True, force_jupyter=False, force_terminal=False))
        self._lines: list[str] = []
        self._end: str | None = None
        self._output: Any = None

    def __enter__(self) -> NotebookDisplay:
        shown = import_module("IPython.display")
        self._output = shown.display(shown.HTML(self._html()), display_id=True)
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticker.stop()
        self._end = "done" if kind is None else f"stopped: {kind.__name__}"
        self._draw()

    def _leave(self, line: str) -> None:
        self._lines.append(line)

    def _draw(self) -> None:
        if self._output is not None:
            self._output.update(import_module("IPython.display").HTML(self._html()))

    def _html(self) -> str:
        """Names and errors in it stay text."""
        progress = self._progress
        share = 1.0 if self._end == "done" else progress.share
        value = "" if share is None else f' max="1" value="{share:.3f}"'
        now = [self._end] if self._end else progress.lines
        told = "<br/>".join(map(_text, (progress.figures, *now)))
        lines = "\n".join(map(_text, self._lines))
        return (
            f'<div><progress aria-label="progress"{value}></progress> {told}</div>'
            f'<pre style="max-height: 20em; overflow: auto">{lines}</pre>'
        )
