"""A result as a notebook shows it: the headline and a short table, in HTML. Names and errors in it stay text."""

from __future__ import annotations

from html import escape

from autotune.answer.result import StudyResult
from autotune.answer.sections import sections
from autotune.answer.sections.verdict import headline
from autotune.errors import printable
from autotune.render.terminal import facts


def result_html(answer: StudyResult) -> str:
    """No scripts, no styles of a page: it takes on those of the notebook."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left">{_text(label)}</th>'
        f'<td style="text-align: left">{_text(value)}</td></tr>'
        for label, value in (("study", answer.study), *facts(sections(answer)))
    )
    return f"<div><p><b>{_text(headline(answer))}</b></p><table>{rows}</table></div>"


def _text(content: str) -> str:
    return escape(printable(content))
