"""A study in a terminal: the table of trials and the summary."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autotune.answer import Answer
from autotune.measurement import Failure, GraphBreak, Measurement
from autotune.record import Confirmation, TrialRecord
from autotune.report.units import count, error, num_bytes, seconds, times
from autotune.statistics import MARGIN, Verdict
from autotune.tune import failures_by_reason

MAX_BREAKS_SHOWN = 5
NOISY = 1.15
"""An interval whose ends differ by more than this factor says more about the machine than about the config."""


def trials_table(answer: Answer) -> Table:
    """Every trial with its figures, the best marked; failures with their reason."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=name not in _TEXTS)
    for record in answer.records:
        is_best = answer.best is not None and record.number == answer.best.number
        table.add_row(*_row(record, answer.untuned), style="green" if is_best else _STYLES.get(record.state))
    return table


def summary(answer: Answer, studies_dir_flag: str = "") -> RenderableType:
    """Verdict, figures, what stands in the way, and what to do next."""
    lines = [Text.from_markup(f"[bold]{_headline(answer)}[/bold]")]
    lines += [Text(f"  {line}") for line in (*_figures(answer), *_obstacles(answer))]
    lines += [Text(f"next: {line}") for line in _next_steps(answer, studies_dir_flag)]
    return Group(*lines)


def failure_lines(answer: Answer) -> list[str]:
    """Failures counted by reason, each with the first error of its kind."""
    lines = []
    for reason, number in failures_by_reason(answer.records).items():
        first = next(
            each for each in answer.records if isinstance(each.outcome, Failure) and each.outcome.reason == reason
        )
        assert isinstance(first.outcome, Failure)
        lines.append(f"{number} x {reason}, first in trial {first.number}: {first.outcome.error[:160]}")
    return lines


_COLUMNS = ("", "state", "median", "p99", "x*", "memory", "compile", "breaks", "error", "config")
_TEXTS = ("state", "config")
_STYLES = {"failed": "dim", "lost": "dim", "infeasible": "yellow"}


def _row(record: TrialRecord, untuned: TrialRecord | None) -> list[str]:
    outcome = record.outcome
    config = escape(str(record.config))
    if not isinstance(outcome, Measurement):
        state = record.state if outcome is None else outcome.reason.value
        return [str(record.number), state, *["-"] * (len(_COLUMNS) - 3), config]
    return [
        str(record.number),
        record.state,
        seconds(outcome.latency.p50),
        seconds(outcome.latency.p99),
        _ratio(outcome, untuned),
        num_bytes(outcome.peak_memory_bytes),
        seconds(outcome.compile_s),
        count(outcome.diagnosis.num_graph_breaks),
        error(outcome.relative_error),
        config + (f"  ({escape(outcome.diagnosis.note)})" if outcome.diagnosis.note else ""),
    ]


def _ratio(outcome: Measurement, untuned: TrialRecord | None) -> str:
    if untuned is None or not isinstance(untuned.outcome, Measurement):
        return "-"
    return times(untuned.outcome.latency.p50 / outcome.latency.p50)


def _headline(answer: Answer) -> str:
    if answer.verdict is None:
        return "no verdict yet: the winner was not confirmed in fresh processes"
    if answer.verdict is Verdict.INFEASIBLE:
        note = answer.confirmation.note if answer.confirmation else None
        return f"infeasible: no config is usable; {escape(note or '')}"
    if answer.verdict is Verdict.FASTER and answer.speedup is not None:
        low, high = times(answer.speedup.low), times(answer.speedup.high)
        return f"faster: {times(answer.speedup.median)} (95 % interval {low} to {high})"
    if answer.verdict is Verdict.TIE:
        return f"tie: no config is shown to be more than {MARGIN:.0%} faster than the untuned model; keep it untuned"
    return "keep untuned: nothing is faster than leaving the model as it is"


def _figures(answer: Answer) -> list[str]:
    lines = []
    if answer.best is not None:
        lines.append(f"config      trial {answer.best.number}: {answer.best.config}")
    if answer.verdict is Verdict.FASTER and answer.confirmation is not None:
        lines += _confirmed_figures(answer, answer.confirmation)
    elif answer.speedup is not None and answer.confirmation is not None:
        low, high = times(answer.speedup.low), times(answer.speedup.high)
        lines.append(f"closest     trial {answer.confirmation.candidate}: {low} to {high} as fast as the untuned model")
    if answer.speedup is not None and answer.speedup.high > NOISY * answer.speedup.low:
        lines.append("note        so wide an interval means a noisy machine: try another --study on a quiet one")
    return lines


def _confirmed_figures(answer: Answer, confirmation: Confirmation) -> list[str]:
    """Latencies of the confirmation's fresh processes; memory and cold compile time of the search's trial."""
    untuned_s, tuned_s = confirmation.latencies_s
    lines = []
    for name, record, median_s in (("untuned", answer.untuned, untuned_s), ("tuned", answer.best, tuned_s)):
        assert record is not None
        lines.append(f"{name:<11} {seconds(median_s)} a call, memory {num_bytes(record.measurement.peak_memory_bytes)}")
        cold_s = record.measurement.compile_s
    lines.append(
        f"compile     {seconds(cold_s)} cold, {seconds(confirmation.compile_warm_s)} with caches; "
        f"calls that earn it back: {count(answer.break_even_calls)}"
    )
    return lines


def _obstacles(answer: Answer) -> list[str]:
    """Graph breaks of the best compiled trial, failures, notes."""
    lines = []
    for each in _breaks(answer)[:MAX_BREAKS_SHOWN]:
        lines.append(f"graph break {each.location or 'place unknown'}: {each.reason[:110]}")
    lines += [f"failed      {line}" for line in failure_lines(answer)]
    if answer.confirmation is not None and answer.confirmation.note and answer.verdict is not Verdict.INFEASIBLE:
        lines.append(f"note        {answer.confirmation.note}")
    if answer.is_outdated:
        lines.append("note        trials were added after this verdict; `resume` confirms again")
    return lines


def _breaks(answer: Answer) -> tuple[GraphBreak, ...]:
    """Of the winner, or where that is the untuned model of the framework's default compile."""
    compiled = (answer.best, *answer.records)
    for record in compiled:
        if (
            record is not None
            and isinstance(record.outcome, Measurement)
            and record.outcome.diagnosis.compiled is not False
        ):
            return record.outcome.diagnosis.graph_breaks or ()
    return ()


def _next_steps(answer: Answer, studies_dir_flag: str) -> list[str]:
    command = "python cli.py"
    if answer.verdict is None:
        return [f"{command} resume {answer.study}{studies_dir_flag}"]
    if answer.verdict is Verdict.INFEASIBLE:
        return ["loosen a constraint or give more time under another --study NAME"]
    steps = [f"{command} export {answer.study} -o best.yaml{studies_dir_flag}"]
    if answer.verdict is Verdict.FASTER:
        steps.append('model = autotune.load("best.yaml").apply(model)')
    return steps
