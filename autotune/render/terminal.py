"""A study in a terminal: the tables of its sections, and the summary; and two configs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from autotune.answer.content import Section, Table
from autotune.answer.format import ABOUT_THE_SECOND
from autotune.answer.objectives import gain, shown
from autotune.answer.result import StudyResult
from autotune.answer.sections import sections
from autotune.answer.sections.trials import TrialsSection
from autotune.answer.sections.verdict import headline
from autotune.command_line import flag
from autotune.errors import worded
from autotune.measure.objective import Objective
from autotune.render.console import Hanging
from autotune.verification.comparison import ComparisonResult
from autotune.verification.verify import Verification

ROOM_FOR_ALL = 120
"""Characters of a line below which a table leaves out its wide columns."""
_LABEL = 12
"""Characters that a line's label takes, the space after it included."""
_BRIEF = frozenset(
    {
        *("config", "untuned", "tuned", "tokens", "instances", "compile"),
        *("closest", "rounded", "sustained", "growth", "failed", "note", "beyond", "read alone"),
    }
)
_STYLES = {"best": "green", "broken": "yellow", "failed": "dim"}


def tables(answer: StudyResult, *, width: int = ROOM_FOR_ALL) -> list[RenderableType]:
    """What `show` prints above the summary; the trials come first."""
    told = [section for section in sections(answer) if not section.is_long]
    told.sort(key=lambda section: not isinstance(section, TrialsSection))
    notes = ["config: what differs from the untuned model"]
    return [
        drawn(table, width, notes if isinstance(section, TrialsSection) else ())
        for section in told
        for table in section.tables()
    ]


def drawn(content: Table, width: int = ROOM_FOR_ALL, more_notes: Sequence[str] = ()) -> RenderableType:
    """A table under its caption, with its notes. In a line of few characters what says least is left out."""
    hidden = content.on_page | (content.wide if width < ROOM_FOR_ALL else frozenset())
    indices = [n for n, name in enumerate(content.columns) if name not in hidden]
    table = RichTable(box=None, header_style="bold", pad_edge=False)
    for n in indices:
        name = content.columns[n]
        is_text = name in content.texts
        # The number of a trial needs no heading, which would be wider than it.
        table.add_column("" if name == "trial" else name, justify="left" if is_text else "right", no_wrap=not is_text)
    for number, row in enumerate(content.rows):
        table.add_row(*(worded(row[n]) for n in indices), style=_STYLES.get((content.marks or {}).get(number, "")))
    # A title of the table would be wrapped where the table is narrow.
    caption = [Text(content.caption, style="italic")] if content.caption else []
    notes = [
        *content.notes,
        *more_notes,
        *([f"a wider terminal has more columns, {flag('as_json')} has all"] if content.wide & hidden else []),
    ]
    return Group(*caption, table, *(Text(worded(f"{'  ' * bool(caption)}{note}"), style="dim") for note in notes))


def summary(answer: StudyResult, *, with_next: bool = True, why: bool = False) -> RenderableType:
    """Verdict, config, what it changes, when that pays, and what to do next. `why`: also what the verdict rests on and
    what stands in the way."""
    found = sections(answer)
    lines: list[RenderableType] = [Text(headline(answer), style="bold")]
    lines += [Hanging(f"  {label:<{_LABEL - 1}} {text}", _LABEL + 2) for label, text in facts(found, why=why)]
    if with_next:
        lines += [Text(worded(f"next: {line}")) for section in found for line in section.advice()]
    return Group(*lines)


def facts(found: Sequence[Section], *, why: bool = True) -> list[tuple[str, str]]:
    """The lines of the summary, each with its label. Without `why`, those that every reader is shown."""
    return [fact for section in found for fact in section.facts() if why or fact[0] in _BRIEF]


def comparison_lines(result: ComparisonResult, names: tuple[str, str]) -> list[str]:
    """Two configs side by side, or which of them failed and why."""
    first, second = names
    if result.failure is not None:
        who = {"first": first, "second": second}.get(result.failed or "", "the untuned model")
        return [f"{who} fails ({result.failure.reason} at {result.failure.stage}): {result.failure.error}"]
    assert result.verdict is not None
    assert result.speedup is not None
    objective, values = result.objective, result.values
    width = max(len(first), len(second))
    word = ABOUT_THE_SECOND[result.verdict]
    if not objective.is_latency:
        word = {"faster": "better", "slower": "worse"}.get(word, word)
    return [
        f"{second} against {first}: {word}, {gain(objective, result.speedup)}",
        *(f"  {name:<{width}}  {value_words(objective, value)}" for name, value in zip(names, values, strict=True)),
    ]


def verification_lines(verification: Verification) -> list[str]:
    """Whether an exported answer still holds, with the figures of then and of today."""
    lines = [f"{verification.outcome}: {verification.why}"]
    if verification.promised is not None:
        lines.append(f"  promised  {gain(verification.objective, verification.promised)}")
    result = verification.result
    if result is not None and result.speedup is not None:
        untuned, tuned = (value_words(result.objective, value) for value in result.values)
        lines.append(f"  today     {gain(result.objective, result.speedup)}")
        then = ""
        if verification.then is not None:
            then = " (then {} and {})".format(*(shown(result.objective, value) for value in verification.then))
        lines.append(f"  untuned   {untuned}, tuned {tuned}{then}")
    return lines


def value_words(objective: Objective, value: float) -> str:
    """A value of the objective with its unit and, of a time, of what."""
    is_of_a_call = objective.quantity in ("latency", "p90", "p99")
    return shown(objective, value) + (" a call" if is_of_a_call else "")
