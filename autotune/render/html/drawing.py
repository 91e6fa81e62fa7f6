"""A matplotlib figure as an SVG element for a page: its text stays text, its colours follow the page's.

Colours are drawn as stand-ins and written as the CSS variables of the page, so that it is dark where the page is.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from autotune.errors import printable

INK, MUTED, GRID, BAND, CARD, UNTUNED, BEST, OTHER, BAD = (f"#0{number}0{number}0{number}" for number in range(1, 10))
_VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid", BAND: "band", CARD: "card",
    UNTUNED: "untuned", BEST: "best", OTHER: "other", BAD: "bad",
}  # fmt: skip
WIDTH = 4.8
"""Inches, of 72 units each: letters are as large as the page's where the drawing is as wide as a phone."""
MOST_LETTERS = 54
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # A name may hold a dollar sign.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def draw(name: str, title: str, words: str, height: float, paint: Callable[[Axes], None]) -> str:
    """The SVG element of what `paint` draws; `title` and `words` are what a screen reader says."""
    # A name in letters that the font lacks is drawn by the reader's browser, which has them.
    settings: Any = {**_STYLE, "svg.hashsalt": name}  # matplotlib's type of it lists the names of one release.
    with matplotlib.rc_context(settings), warnings.catch_warnings(action="ignore"):
        figure = Canvas(figsize=(WIDTH, height), layout="constrained")
        paint(figure.add_subplot())
        written = io.BytesIO()
        figure.savefig(written, format="svg", transparent=True)
    return _for_page(written.getvalue(), name, title, words)


def label(text: str) -> str:
    """Foreign text for a drawing, in one line that fits."""
    text = printable(text)
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def ratios(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis of ratios from left to right, with a line at 1."""
    shown = [1.0, *values]
    low, high = min(shown), max(shown)
    room = max((high / low) ** 0.08, 1.01)
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    axes.xaxis.set_major_locator(LogLocator(subs=_steps(high / low), numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}x"))
    if high / low < 1.5:  # A logarithmic scale has too few round numbers here, and is nearly straight.
        axes.set_xscale("linear")
        axes.set_xlim(low / room, high * room)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}x"))
    axes.axvline(1.0, color=UNTUNED, linewidth=1.2)


def _steps(spread: float) -> tuple[float, ...]:
    if spread < 4:
        return 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0
    if spread < 20:
        return 1.0, 1.5, 2.0, 3.0, 5.0, 7.0
    return (1.0, 3.0) if spread < 300 else (1.0,)


def rows(axes: Axes, names: Iterable[str]) -> None:
    """A row for each name, from above, the name over its row: on a phone nothing is left for a margin of names."""
    names = list(names)
    axes.set_ylim(len(names) - 0.4, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for row, name in enumerate(names):
        axes.text(
            0.0, row - 0.3, label(name), transform=axes.get_yaxis_transform(), verticalalignment="bottom", fontsize=9,
            bbox={"facecolor": CARD, "linewidth": 0, "pad": 1.5},
        )  # fmt: skip


def _for_page(written: bytes, name: str, title: str, words: str) -> str:
    root = ElementTree.fromstring(written)
    for parent in list(root.iter()):
        for child in list(parent):
            # What the file is made with, and a style sheet that would be the whole page's.
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = {
            ("href" if key == _LINK else key): _own(key, value, name) for key, value in element.attrib.items()
        }
    box = root.attrib["viewBox"]
    root.attrib = {"viewBox": box, "role": "img", "aria-labelledby": f"{name}-title {name}-words"}
    for number, (tag, text) in enumerate((("title", title), ("desc", words))):
        told = ElementTree.Element(tag, {"id": f"{name}-{'words' if number else 'title'}"})
        told.text = printable(text)
        root.insert(number, told)
    return ElementTree.tostring(root, encoding="unicode")


def _own(key: str, value: str, name: str) -> str:
    """An attribute as the page needs it: ids of this drawing only, colours of the page."""
    if key == "id":
        return f"{name}-{value}"
    if key == _LINK:
        return value.replace("#", f"#{name}-", 1)
    value = value.replace("url(#", f"url(#{name}-")
    for stand_in, variable in _VARIABLES.items():
        value = value.replace(stand_in, f"var(--{variable})")
    return value
