"""What a report consists of, before it is HTML: tables, and figures with the table of what they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text. The columns in `texts` are aligned to the left, all others hold numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    texts: frozenset[str] = frozenset({"config"})


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in a sentence, and its figures as a table."""

    name: str
    """Unique in the page: the id of the drawing, and the beginning of all ids in it."""
    title: str
    words: str
    svg: str
    """An `<svg>` element, ready to stand in the page; all text in it is escaped."""
    table: Table


@dataclass(frozen=True)
class Section:
    """Tables under a heading, after a sentence."""

    name: str
    title: str
    words: str
    tables: tuple[Table, ...] = ()
