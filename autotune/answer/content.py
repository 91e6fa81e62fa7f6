"""What a finding consists of before it is shown: a `Section` with lines, tables and figures, all plain data.

A terminal, a page and a document for scripts are made of the same sections (`autotune.render`). A finding is one module
of `autotune.answer.sections`, with one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from autotune.answer.configs import config_text
from autotune.answer.result import StudyResult
from autotune.measure.statistics import Speedup
from autotune.study.records import TrialRecord
from autotune.tuning.events import Event

Fact = tuple[str, str]
"""A line of the summary: a label of at most 11 characters, and a text."""


Mark = Literal["best", "broken", "failed"]


@dataclass(frozen=True)
class Table:
    """Rows of text under a caption. The columns in `texts` are aligned to the left, all others hold numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    texts: frozenset[str] = frozenset({"config"})
    notes: Sequence[str] = ()
    """Lines below the table."""
    wide: frozenset[str] = frozenset()
    """Columns that a narrow terminal leaves out."""
    on_page: frozenset[str] = frozenset()
    """Columns that a terminal leaves out."""
    marks: Mapping[int, Mark] | None = None
    """Index of a row -> how it stands out in a terminal."""


Role = Literal["untuned", "best", "other", "bad", "muted"]
"""What something in a drawing is, which says its colour."""


@dataclass(frozen=True)
class PlotAxis:
    """`text` writes a value at a tick."""

    label: str
    text: Callable[[float], str]
    is_log: bool = False
    is_whole: bool = False
    """Ticks are whole numbers."""
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """Points, joined by a line or with marks of matplotlib's alphabet."""

    x: Sequence[float]
    y: Sequence[float]
    role: Role
    name: str | None = None
    """In the legend; None: not there."""
    line: Literal["-", "--", ":", ""] = ""
    marker: str = ""
    is_filled: bool = True
    is_stepped: bool = False
    is_at_bottom: bool = False
    """`y` is a share of the height of the drawing."""


@dataclass(frozen=True)
class Curves:
    """Series over one pair of axes, with lines at a value of either axis."""

    x: PlotAxis
    y: PlotAxis
    series: Sequence[Series]
    height: float
    """Inches."""
    legend: Literal["lower left", "upper left", "below", ""] = ""
    level: float | None = None
    crossing: tuple[float, str] | None = None
    """A value of `x` where a line stands, and what is written at it."""


@dataclass(frozen=True)
class Intervals:
    """Ratios with their intervals, one a row; the flag is for what counts. With the band in which nothing differs here,
    and the margin that an interval has to exceed, as shares."""

    rows: Sequence[tuple[str, Speedup, bool]]
    noise: float | None = None
    margin: float | None = None


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in a sentence, and its figures as a table."""

    name: str
    """Unique in the page: the id of the drawing, and the beginning of all ids in it."""
    title: str
    words: str
    plot: Curves | Intervals
    table: Table


@dataclass(frozen=True)
class PagePart:
    """Tables of a page under a heading, after a sentence."""

    name: str
    title: str
    words: str
    tables: Sequence[Table] = ()


class Section:
    """One finding about a study, and all that any face says of it. What is not overridden says nothing."""

    place: ClassVar[int]
    """Sections are shown in the order of their places."""
    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    """The heading of its tables on a page."""
    is_long: ClassVar[bool] = False
    """Its tables are for a page: in a terminal its facts are enough."""

    def __init__(self, answer: StudyResult) -> None:
        self.answer = answer

    def facts(self) -> Iterable[Fact]:
        """Lines of the summary."""
        return ()

    @classmethod
    def news(cls, event: Event) -> Iterable[str]:  # noqa: ARG003
        """Lines for whoever watches a run, where the event is about this finding."""
        return ()

    def advice(self) -> Iterable[str]:
        """What to do next: commands, or lines of a program."""
        return ()

    def words(self) -> str:
        """A sentence above its tables on a page."""
        return ""

    def tables(self) -> Sequence[Table]:
        """What a page shows under the title, and a terminal before the summary."""
        return ()

    def figures(self) -> Iterable[Figure]:
        """What a page draws."""
        return ()

    def document(self) -> dict[str, Any]:
        """Keys of the JSON document, which are documented in docs/json.md: all of them, whatever there is to say."""
        return {}

    def config(self, record: TrialRecord) -> str:
        """The config of a trial, in words."""
        return config_text(record.config, self.answer.space)
