"""The figures of a report about trials: the search, memory and compile time, samples. Each is None without data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from autotune.answer.configs import config_text
from autotune.answer.format import num_bytes, seconds, times
from autotune.answer.objectives import as_good_as, shown
from autotune.answer.result import StudyResult
from autotune.measure.measurement import Measurement
from autotune.measure.objective import Objective
from autotune.render.html.content import Figure, Table
from autotune.render.html.drawing import BAD, BEST, INK, MUTED, OTHER, UNTUNED, draw, label
from autotune.study.records import Confirmation, TrialRecord


def search_history(answer: StudyResult) -> Figure | None:
    """Each trial in order, the best so far as a step, failures below."""
    if answer.untuned is None:
        return None
    objective = answer.objective
    start = objective.value(answer.untuned.measurement)
    ratio = {
        each.number: start / objective.value(each.measurement)
        for each in answer.records
        if isinstance(each.outcome, Measurement) and math.isfinite(objective.value(each.measurement))
    }
    good = [each for each in answer.records if each.number in ratio and each.state == "measured"]
    broken = [each.number for each in answer.records if each.number in ratio and each.state == "infeasible"]
    failed = [each.number for each in answer.records if each.state == "failed"]
    is_timed = objective.quantity == "latency"
    checks = [(each.after + 0.5, start / each.latency_s) for each in answer.drift_checks] if is_timed else []

    def paint(axes: Axes) -> None:
        axes.axhline(1.0, color=UNTUNED, linewidth=1.2)
        best = np.maximum.accumulate([ratio[each.number] for each in good])
        axes.step([each.number for each in good], best, where="post", color=BEST, label="best so far")
        calm = [each.number for each in good if each.disturbed is None]
        busy = [each.number for each in good if each.disturbed is not None]
        for numbers, marker, color, name in (
            (calm, "o", OTHER, "trial"), (busy, "o", MUTED, "disturbed trial"),
            (broken, "v", BAD, "breaks a constraint"),
        ):  # fmt: skip
            if numbers:
                hollow = "full" if numbers is calm else "none"
                y = [ratio[number] for number in numbers]
                axes.plot(numbers, y, marker, color=color, fillstyle=hollow, markersize=5, label=name)
        if checks:
            axes.plot(*zip(*checks, strict=True), "d", color=UNTUNED, markersize=5, label="untuned model again")
        if failed:
            axes.plot(
                failed, [0.03] * len(failed), "x", color=BAD, transform=axes.get_xaxis_transform(), label="failed"
            )
        axes.set_xlabel("trial")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}x"))
        axes.margins(y=0.12)
        figure = axes.get_figure()
        assert figure is not None
        figure.legend(loc="outside lower center", ncols=3, fontsize=9, handlelength=1.6, columnspacing=1.2)

    words = (
        f"Times {as_good_as(objective)} the untuned model, by one process each. These figures choose the finalists; "
        "the verdict rests on the comparison in fresh processes."
    )
    table = Table(
        "The trials in order",
        ("trial", "state", objective.name, "ratio"),
        [
            (
                str(each.number), each.state,
                shown(objective, objective.value(each.measurement)) if each.number in ratio else "-",
                times(ratio[each.number]) if each.number in ratio else "-",
            )
            for each in answer.records
        ],
        texts=frozenset({"state"}),
    )  # fmt: skip
    title = "The search"
    return Figure("search", title, words, draw("search", title, words, 3.4, paint), table)


def memory(answer: StudyResult) -> Figure | None:
    """Latency against peak memory."""
    return _scatter(answer, "memory", "peak memory", lambda m: m.peak_memory_bytes, lambda v: num_bytes(round(v)))


def compile_time(answer: StudyResult) -> Figure | None:
    """Latency against the time that compiling takes."""
    return _scatter(answer, "compile", "compile time", lambda m: max(m.compile_s, 0.0), seconds)


def _scatter(
    answer: StudyResult,
    name: str,
    what: str,
    value: Callable[[Measurement], float | None],
    text: Callable[[float], str],
) -> Figure | None:
    points = {
        each.number: (float(against), each.measurement.latency.p50)
        for each in answer.records
        if isinstance(each.outcome, Measurement) and (against := value(each.measurement)) is not None
    }
    if len(points) < 2:
        return None
    on_front = {each.number for each in answer.front} if len(answer.objectives) > 1 else set()
    best = None if answer.best is None else answer.best.number
    untuned = None if answer.untuned is None else answer.untuned.number

    def look(number: int) -> tuple[str, str, bool]:
        if number == untuned:
            return "s", UNTUNED, True
        if number == best:
            return "D", BEST, True
        return "o", OTHER, number in on_front

    def paint(axes: Axes) -> None:
        for number, point in points.items():
            marker, color, is_full = look(number)
            axes.plot(*point, marker, color=color, fillstyle="full" if is_full else "none", markersize=6)
        for number in sorted(points.keys() & {untuned, best, *on_front}):
            axes.annotate(
                "untuned" if number == untuned else f"trial {number}", points[number], xytext=(5, 5),
                textcoords="offset points", fontsize=9, color=INK,
            )  # fmt: skip
        axes.set_xlabel(f"{what} (left is better)")
        axes.set_title("latency (lower is better)", loc="left", fontsize=10, color=MUTED)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: text(max(v, 0.0))))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: seconds(max(v, 0.0))))
        axes.margins(0.12)

    front = f" Filled: on the Pareto front of {', '.join(o.name for o in answer.objectives)}." if on_front else ""
    words = f"Median of a call against {what}, of each measured trial, by one process each.{front}"
    configs = {each.number: config_text(each.config, answer.space) for each in answer.records}
    table = Table(
        f"Latency and {what} of each measured trial",
        ("trial", "latency", what, *(["on the front"] if on_front else []), "config"),
        [
            (
                str(number), seconds(latency_s), text(against),
                *(["yes" if number in on_front else "no"] if on_front else []), configs[number],
            )
            for number, (against, latency_s) in points.items()
        ],
    )  # fmt: skip
    title = f"Latency against {what}"
    return Figure(name, title, words, draw(name, title, words, 3.2, paint), table)


def processes(answer: StudyResult) -> Figure | None:
    """What each process of the confirmation measured, block by block."""
    confirmation = answer.confirmation
    if confirmation is None or not confirmation.blocks:
        return None
    columns = [
        (_name(number, confirmation), *_role(number, confirmation), [row[n] for row in confirmation.blocks])
        for n, number in enumerate(confirmation.contestants)
    ]
    return by_block(answer.objective, columns, "Processes of the confirmation")


def by_block(objective: Objective, columns: Sequence[tuple[str, str, str, Sequence[float]]], caption: str) -> Figure:
    """A line for each contestant: its name, colour, marker, and the objective's value of its process in each block."""
    blocks = range(1, len(columns[0][3]) + 1)

    def paint(axes: Axes) -> None:
        for name, color, marker, values in columns:
            # matplotlib leaves out of a legend what begins with an underscore.
            shown_name = label(f" {name}" if name.startswith("_") else name)
            axes.plot(blocks, values, color=color, marker=marker, markersize=5, linewidth=1, label=shown_name)
        axes.set_xlabel("block")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: shown(objective, v) if v > 0 else "0"))
        axes.set_ylim(0, 1.1 * max(max(values) for *_, values in columns))
        is_short = all(len(name) < 16 for name, *_ in columns)
        axes.legend(fontsize=9, ncols=3 if is_short else 1, loc="lower left")

    words = (
        f"The {objective.name} of each fresh process. The processes of a block run in the same minutes and take "
        "turns; the verdict compares within blocks."
    )
    table = Table(
        caption,
        ("block", *(name for name, *_ in columns)),
        [
            (str(n), *(shown(objective, value) for value in row))
            for n, row in zip(blocks, zip(*(values for *_, values in columns), strict=True), strict=True)
        ],
    )
    title = "Process by process"
    return Figure("processes", title, words, draw("processes", title, words, 3.2, paint), table)


def samples(answer: StudyResult) -> Figure | None:
    """The distribution of the samples of one process each: the untuned model's and the best trial's."""
    records = {each.number: each for each in (answer.untuned, answer.best) if each is not None}
    if not records:
        return None
    sorted_s = {number: np.sort(record.measurement.samples.latency_s) for number, record in records.items()}

    def paint(axes: Axes) -> None:
        for number, values in sorted_s.items():
            is_untuned = answer.untuned is not None and number == answer.untuned.number
            name, color = ("untuned", UNTUNED) if is_untuned else (f"trial {number}", BEST)
            shares = np.arange(1, len(values) + 1) / len(values)
            step = np.linspace(0, len(values) - 1, min(len(values), 300)).astype(int)
            axes.step(
                values[step],
                shares[step],
                where="post",
                color=color,
                label=name,
                linestyle="-" if is_untuned else (0, (5, 1.5)),
            )
        axes.set_xlabel("latency of a call")
        axes.set_title("share of calls that are no slower", loc="left", fontsize=10, color=MUTED)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: seconds(max(v, 0.0))))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.0%}"))
        axes.set_ylim(0, 1.03)
        axes.margins(x=0.08)
        axes.legend(loc="lower right")

    words = "Every sample of the trial's own process in the search: how far single calls scatter."
    table = Table(
        "Samples of one process each",
        ("trial", "samples", "fastest", "median", "p90", "p99", "slowest"),
        [_sample_row(record) for record in records.values()],
    )
    title = "Call by call"
    return Figure("samples", title, words, draw("samples", title, words, 3.0, paint), table)


def _sample_row(record: TrialRecord) -> tuple[str, ...]:
    values, latency = record.measurement.samples.latency_s, record.measurement.latency
    figures = (min(values), statistics.median(values), latency.p90, latency.p99, max(values))
    return str(record.number), str(len(values)), *map(seconds, figures)


def _name(number: int, confirmation: Confirmation) -> str:
    return "untuned" if number == confirmation.contestants[0] else f"trial {number}"


def _role(number: int, confirmation: Confirmation) -> tuple[str, str]:
    if number == confirmation.contestants[0]:
        return UNTUNED, "s"
    return (BEST, "D") if number == confirmation.candidate else (OTHER, "o")
