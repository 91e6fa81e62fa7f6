"""A matplotlib figure as an SVG element for a page: its text stays text, its colours follow the page's.

Colours are drawn as stand-ins and written as the CSS variables of the page, so that it is dark where the page is.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from autotune.answer.content import Curves, Figure, Intervals, PlotAxis, Role, Series
from autotune.errors import printable

INK, MUTED, GRID, BAND, CARD, UNTUNED, BEST, OTHER, BAD = (f"#0{number}0{number}0{number}" for number in range(1, 10))
_VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid", BAND: "band", CARD: "card",
    UNTUNED: "untuned", BEST: "best", OTHER: "other", BAD: "bad",
}  # fmt: skip
_COLORS: dict[Role, str] = {"untuned": UNTUNED, "best": BEST, "other": OTHER, "bad": BAD, "muted": MUTED}
_LINES: dict[str, Any] = {"-": "-", "--": (0, (5, 2)), ":": (0, (1, 1.5)), "": "none"}
MOST_ROWS = 12
"""Rows of intervals in a drawing; its table has all."""
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


def draw(figure: Figure) -> str:
    """The SVG element of a figure; its title and words are what a screen reader says."""
    paint, height = _painting(figure.plot)
    # A name in letters that the font lacks is drawn by the reader's browser, which has them.
    settings: Any = {**_STYLE, "svg.hashsalt": figure.name}  # matplotlib's type of it lists the names of one release.
    with matplotlib.rc_context(settings), warnings.catch_warnings(action="ignore"):
        canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
        paint(canvas.add_subplot())
        written = io.BytesIO()
        canvas.savefig(written, format="svg", transparent=True)
    return _for_page(written.getvalue(), figure.name, figure.title, figure.words)


def _painting(plot: Curves | Intervals) -> tuple[Callable[[Axes], None], float]:
    """What paints the plot, and the height of the drawing in inches."""
    if isinstance(plot, Curves):
        return partial(_paint_curves, plot), plot.height
    return partial(_paint_intervals, plot), 0.9 + 0.5 * min(len(plot.rows), MOST_ROWS)


def _paint_intervals(plot: Intervals, axes: Axes) -> None:
    """An interval a row, filled where the flag is set, over the band of the noise and with a line at the margin."""
    shown = plot.rows[:MOST_ROWS]
    bounds = [1 + share for share in (plot.noise, plot.margin) if share is not None]
    _ratios(axes, [*bounds, *(end for _, speedup, _ in shown for end in (speedup.low, speedup.high))])
    if plot.noise is not None:
        axes.axvspan(1 / (1 + plot.noise), 1 + plot.noise, color=BAND, linewidth=0)
    if plot.margin is not None:
        axes.axvline(1 + plot.margin, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    _rows(axes, (name for name, _, _ in shown))
    for row, (_, speedup, counts) in enumerate(shown):
        # A filled mark for what counts, a hollow one for the rest: not by colour alone.
        color, marker, fill = (BEST, "D", "full") if counts else (OTHER, "o", "none")
        axes.plot((speedup.low, speedup.high), (row, row), color=color, linewidth=2.2, solid_capstyle="butt")
        axes.plot(speedup.median, row, marker, markersize=6, color=color, markeredgewidth=1.6, fillstyle=fill)


def _paint_curves(plot: Curves, axes: Axes) -> None:
    if plot.level is not None:
        axes.axhline(plot.level, color=UNTUNED, linewidth=1.2)
    for series in plot.series:
        _paint_series(series, axes)
    if plot.crossing is not None:
        where, text = plot.crossing
        axes.axvline(where, color=MUTED, linewidth=1)
        axes.text(where, 0.03, f" {text}", transform=axes.get_xaxis_transform(), color=MUTED)
    axes.margins(0.08, 0.12)
    axes.set_xlabel(plot.x.label)
    axes.set_title(plot.y.label, loc="left", fontsize=10, color=MUTED)
    if plot.x.is_log:
        axes.set_xscale("log")
    if plot.y.is_log:
        axes.set_yscale("log")
    axes.set(xlim=plot.x.limits, ylim=plot.y.limits)
    for axis, content in ((axes.xaxis, plot.x), (axes.yaxis, plot.y)):
        _write_ticks(axis, content)
    _add_legend(plot, axes)


def _paint_series(series: Series, axes: Axes) -> None:
    name = None if series.name is None else label(series.name)
    axes.plot(
        series.x, series.y, color=_COLORS[series.role], marker=series.marker or None, markersize=6,
        linestyle=_LINES[series.line], linewidth=1 if series.marker else 1.8,
        fillstyle="full" if series.is_filled else "none", drawstyle="steps-post" if series.is_stepped else "default",
        # matplotlib leaves out of a legend what begins with an underscore.
        label="_" if name is None else f" {name}" if name.startswith("_") else name,
        transform=axes.get_xaxis_transform() if series.is_at_bottom else axes.transData,
    )  # fmt: skip


def _ratio(value: float, _: object) -> str:
    return f"{value:.3g}x" if value < 999.5 else f"{value:.0f}x"


def _write_ticks(axis: XAxis | YAxis, content: PlotAxis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: content.text(value)))
    if content.is_log:
        axis.set_tick_params(which="minor", bottom=False, left=False)
    else:
        axis.set_major_locator(MaxNLocator(5, integer=content.is_whole))


def _add_legend(plot: Curves, axes: Axes) -> None:
    if plot.legend == "below":
        figure = axes.get_figure()
        assert figure is not None
        figure.legend(loc="outside lower center", ncols=3, fontsize=9, handlelength=1.6, columnspacing=1.2)
    elif plot.legend:
        is_short = all(len(series.name or "") < 16 for series in plot.series)
        axes.legend(loc=plot.legend, fontsize=9, handlelength=3, ncols=3 if is_short and len(plot.series) > 2 else 1)


def label(text: str) -> str:
    """Foreign text for a drawing, in one line that fits."""
    text = printable(text)
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def _ratios(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis of ratios from left to right, with a line at 1."""
    shown = [1.0, *values]
    low, high = min(shown), max(shown)
    room = max((high / low) ** 0.08, 1.01)
    axes.set_xscale("log")
    axes.set_xlim(low / room, high * room)
    axes.xaxis.set_major_locator(LogLocator(subs=_steps(high / low), numticks=20))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_ratio))
    if high / low < 1.5:  # A logarithmic scale has too few round numbers here, and is nearly straight.
        axes.set_xscale("linear")
        axes.set_xlim(low / room, high * room)
        axes.xaxis.set_major_formatter(FuncFormatter(_ratio))
    axes.axvline(1.0, color=UNTUNED, linewidth=1.2)


def _steps(spread: float) -> tuple[float, ...]:
    if spread < 4:
        return 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0
    if spread < 20:
        return 1.0, 1.5, 2.0, 3.0, 5.0, 7.0
    return (1.0, 3.0) if spread < 300 else (1.0,)


def _rows(axes: Axes, names: Iterable[str]) -> None:
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
