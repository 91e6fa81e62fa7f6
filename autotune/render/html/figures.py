"""The figures of a report about speed: finalists, break-even, the knobs' effects. Each is None where it has no data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from autotune.answer.configs import config_text
from autotune.answer.explain import Influence
from autotune.answer.format import count, percent, seconds, times
from autotune.answer.objectives import as_good_as
from autotune.answer.result import StudyResult
from autotune.measure.statistics import Speedup
from autotune.render.html.content import Figure, Table
from autotune.render.html.drawing import BAND, BEST, MUTED, OTHER, UNTUNED, draw, ratios, rows
from autotune.study.records import Confirmation, TrialRecord

MOST_ROWS = 12
"""Rows in a drawing; its table has all."""


def finalists(answer: StudyResult) -> Figure | None:
    """Forest plot: every finalist's ratio with its interval, and the band of what is no difference here."""
    confirmation = answer.confirmation
    if confirmation is None or not confirmation.compared:
        return None
    configs = {each.number: config_text(each.config, answer.space) for each in answer.records}
    ordered = sorted(confirmation.compared.items(), key=lambda item: -item[1].median)
    shown = ordered[:MOST_ROWS]
    noise = 0.0 if answer.noise_floor is None else answer.noise_floor.spread

    def paint(axes: Axes) -> None:
        named = [
            (f"trial {number}: {configs[number]}", speedup, number == confirmation.candidate)
            for number, speedup in shown
        ]
        forest(axes, named, noise, confirmation.margin)

    words = (
        f"Times {as_good_as(answer.objective)} the untuned model (the line at 1), with 98 % intervals that hold for "
        f"all of them at once. Band: two processes of the untuned model differ by {percent(noise)} here. Dashed: "
        f"the whole interval has to lie beyond {1 + confirmation.margin:.3g}x."
    )
    table = Table(
        "The finalists against the untuned model, in fresh processes side by side",
        ("trial", "ratio", "from", "to", "blocks", "config"),
        [
            (
                str(number), times(speedup.median), times(speedup.low), times(speedup.high),
                str(len(confirmation.pairs_of(number))), configs[number],
            )
            for number, speedup in ordered
        ],
    )  # fmt: skip
    title = "Finalists"
    return Figure("finalists", title, words, draw("finalists", title, words, 0.9 + 0.5 * len(shown), paint), table)


def forest(axes: Axes, named: Sequence[tuple[str, Speedup, bool]], noise: float, margin: float) -> None:
    """An interval a row, filled where the flag is set, over the band of the noise and with a line at the margin."""
    ratios(axes, [1 + noise, 1 + margin, *_ends([speedup for _, speedup, _ in named])])
    axes.axvspan(1 / (1 + noise), 1 + noise, color=BAND, linewidth=0)
    axes.axvline(1 + margin, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    rows(axes, (name for name, _, _ in named))
    for row, (_, speedup, is_best) in enumerate(named):
        _interval(axes, row, speedup, is_best=is_best)


def break_even(answer: StudyResult) -> Figure | None:
    """Total time against the number of calls: untuned, tuned with a cold compile, tuned with caches."""
    best, untuned, confirmation = answer.best, answer.untuned, answer.confirmation
    if best is None or untuned is None or confirmation is None or best.number == untuned.number:
        return None
    untuned_s, tuned_s = answer.calls_s(best)
    starts_s = _starts_s(answer, best, confirmation)
    crossing = answer.break_even_calls
    last = 10 ** np.ceil(np.log10(max(1000, 20 * (crossing or 1))))
    calls = np.geomspace(1, last, 200)
    lines = {name: start_s + calls * tuned_s for name, start_s in starts_s.items()}

    def paint(axes: Axes) -> None:
        axes.loglog(calls, calls * untuned_s, color=UNTUNED, label="untuned")
        for style, (name, total_s) in zip(("-", (0, (5, 2)), (0, (1, 1.5))), lines.items(), strict=False):
            axes.loglog(calls, total_s, color=BEST, linestyle=style, label=name)
        if crossing:
            axes.axvline(crossing, color=MUTED, linewidth=1)
            axes.text(crossing, 0.03, f" {_calls(crossing)}", transform=axes.get_xaxis_transform(), color=MUTED)
        axes.set_xlim(1, last)
        axes.set_xlabel("calls")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_tick_params(which="minor", bottom=False)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
        axes.yaxis.set_tick_params(which="minor", left=False)
        axes.legend(loc="upper left", handlelength=3)

    if crossing is None:
        words = "Time of so many calls, compiling included. A call under the config saves no time: it never pays off."
    elif crossing == 0:
        words = "Time of so many calls. The config compiles nothing: it pays off at once."
    else:
        words = (
            f"Time of so many calls, compiling included. After {_calls(crossing)} ({seconds(crossing * untuned_s)}"
            " untuned) the config has paid off its cold compile."
        )
    points = sorted({*(10**n for n in range(int(np.log10(last)) + 1)), *([crossing] if crossing else [])})
    table = Table(
        "Time of so many calls, compiling included",
        ("calls", "untuned", *starts_s),
        [
            (count(n), seconds(n * untuned_s), *(seconds(start_s + n * tuned_s) for start_s in starts_s.values()))
            for n in points
        ],
    )
    title = "When it pays off"
    return Figure("break-even", title, words, draw("break-even", title, words, 3.3, paint), table)


def _starts_s(answer: StudyResult, best: TrialRecord, confirmation: Confirmation) -> dict[str, float]:
    """Way to start -> seconds of compiling."""
    found = {"tuned, compiled cold": max(best.measurement.compile_s, 0.0)}
    if confirmation.compile_warm_s is not None and best.number == confirmation.candidate:
        found["tuned, with caches"] = max(confirmation.compile_warm_s, 0.0)
    if answer.artifact is not None:
        found["tuned, exported cache"] = answer.artifact.compile_s
    return found


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{count(number)} calls"


def knob_effects(influences: Sequence[Influence]) -> Figure | None:
    """What each knob did in pairs of trials that differ in nothing else."""
    if not influences:
        return None
    shown = influences[:MOST_ROWS]

    def paint(axes: Axes) -> None:
        middles = [_middle(each) for each in shown]
        ratios(axes, _ends(middles))
        rows(axes, (f"{each.knob}: {each.slower} → {each.faster}" for each in shown))
        for row, (each, middle) in enumerate(zip(shown, middles, strict=True)):
            _interval(axes, row, middle, is_best=each.is_significant)

    words = (
        "Ratio of speeds in pairs of trials that differ in this one knob. Filled: larger than the noise. Hollow: "
        "cannot be told from it."
    )
    table = Table(
        "The effect of one value of a knob over another",
        ("knob", "from", "to", "ratio", "at least", "at most", "pairs", "measured", "larger than noise"),
        [
            (
                each.knob, str(each.slower), str(each.faster), times(middle.median), times(middle.low),
                times(middle.high), str(len(each.pairs)), "side by side" if each.confirmed else "in the search",
                "yes" if each.is_significant else "no",
            )
            for each, middle in ((each, _middle(each)) for each in influences)
        ],
        texts=frozenset({"knob", "from", "to", "measured"}),
    )  # fmt: skip
    title = "Effect of each knob"
    return Figure("knobs", title, words, draw("knobs", title, words, 0.9 + 0.5 * len(shown), paint), table)


def _middle(each: Influence) -> Speedup:
    """The medians over the pairs."""
    return Speedup(
        median=each.median,
        low=float(np.median([pair.low for pair in each.pairs])),
        high=float(np.median([pair.high for pair in each.pairs])),
    )


def _ends(speedups: Sequence[Speedup]) -> list[float]:
    return [end for each in speedups for end in (each.low, each.high)]


def _interval(axes: Axes, row: int, speedup: Speedup, *, is_best: bool) -> None:
    """A filled mark for what counts, a hollow one for the rest: not by colour alone."""
    color = BEST if is_best else OTHER
    axes.plot((speedup.low, speedup.high), (row, row), color=color, linewidth=2.2, solid_capstyle="butt")
    axes.plot(
        speedup.median, row, marker="D" if is_best else "o", markersize=6, color=color, markeredgewidth=1.6,
        fillstyle="full" if is_best else "none",
    )  # fmt: skip
