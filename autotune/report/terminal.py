"""A study in a terminal: the table of trials and the summary."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from autotune.answer import Answer
from autotune.duel import Result
from autotune.measurement import Failure, GraphBreak, Measurement
from autotune.record import DRIFTING, Confirmation, TrialRecord, failures_by_reason
from autotune.report.units import ABOUT_THE_SECOND, count, error, interval, num_bytes, percent, seconds, times
from autotune.statistics import MARGIN, TOO_WIDE, Verdict
from autotune.verify import Verification

MAX_BREAKS_SHOWN = 5


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


def comparison_lines(result: Result, names: tuple[str, str]) -> list[str]:
    """Two configs side by side, or which of them failed and why."""
    first, second = names
    if result.failure is not None:
        who = {"first": first, "second": second}.get(result.failed or "", "the untuned model")
        return [f"{who} fails ({result.failure.reason} at {result.failure.stage}): {result.failure.error}"]
    assert result.verdict is not None
    assert result.speedup is not None
    first_s, second_s = result.latencies_s
    width = max(len(first), len(second))
    return [
        f"{second} against {first}: {ABOUT_THE_SECOND[result.verdict]}, {interval(result.speedup)}",
        f"  {first:<{width}}  {seconds(first_s)} a call",
        f"  {second:<{width}}  {seconds(second_s)} a call",
    ]


def verification_lines(verification: Verification) -> list[str]:
    """Whether an exported answer still holds, with the figures of then and of today."""
    lines = [f"{verification.outcome}: {verification.why}"]
    if verification.promised is not None:
        lines.append(f"  promised  {interval(verification.promised)}")
    result = verification.result
    if result is not None and result.speedup is not None:
        untuned_s, tuned_s = result.latencies_s
        lines.append(f"  today     {interval(result.speedup)}")
        lines.append(f"  untuned   {seconds(untuned_s)} a call, tuned {seconds(tuned_s)}")
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
        _state(record),
        seconds(outcome.latency.p50),
        seconds(outcome.latency.p99),
        _ratio(outcome, untuned),
        num_bytes(outcome.peak_memory_bytes),
        seconds(outcome.compile_s),
        count(outcome.diagnosis.num_graph_breaks),
        error(outcome.relative_error),
        config + (f"  ({escape(outcome.diagnosis.note)})" if outcome.diagnosis.note else ""),
    ]


def _state(record: TrialRecord) -> str:
    """A second name of a program is marked with the trial whose samples it has."""
    if record.reused_from is None:
        return record.state
    alias = f"= trial {record.reused_from}"
    return alias if record.state == "measured" else f"{record.state} ({alias})"


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
        return f"faster: {interval(answer.speedup)}"
    if answer.verdict is Verdict.TIE:
        margin = answer.confirmation.margin if answer.confirmation else MARGIN
        return f"tie: no config is shown to be more than {margin:.1%} faster than the untuned model; keep it untuned"
    if answer.verdict is Verdict.UNDECIDED:
        return "undecided: this machine is too noisy to tell; the model is kept untuned"
    return "keep untuned: nothing is faster than leaving the model as it is"


def _figures(answer: Answer) -> list[str]:
    lines = []
    if answer.best is not None:
        lines.append(f"config      trial {answer.best.number}: {answer.best.config}")
    if answer.verdict is Verdict.FASTER and answer.confirmation is not None:
        lines += _confirmed_figures(answer, answer.confirmation)
    elif answer.speedup is not None and answer.confirmation is not None:
        lines.append(f"closest     trial {answer.confirmation.candidate}: {interval(answer.speedup)}")
    return lines + _others(answer) + _noise(answer) + _idle_knobs(answer)


def _others(answer: Answer) -> list[str]:
    """Who else was compared with the untuned model."""
    if answer.confirmation is None:
        return []
    configs = {each.number: each.config for each in answer.records}
    return [
        f"{'also':<11} trial {number}: {interval(speedup)}  {configs[number]}"
        for number, speedup in answer.confirmation.compared.items()
        if number != answer.confirmation.candidate
    ]


def _idle_knobs(answer: Answer) -> list[str]:
    """Knobs that were turned and changed nothing in what ran."""
    idle = [each.knob for each in answer.effects if each.verdict == "no effect"]
    return [f"no effect   here: {', '.join(idle)} (the same program ran whatever they were set to)"] if idle else []


def _noise(answer: Answer) -> list[str]:
    """How far the machine can be trusted."""
    lines = []
    if answer.noise_floor is not None:
        lines.append(f"noise       two processes of the untuned model differ by {percent(answer.noise_floor.spread)}")
    if answer.drift is not None and answer.drift > DRIFTING:
        lines.append(
            f"drift       the untuned model's own latency changed by {percent(answer.drift)} during the search; "
            "the comparison is made side by side and does not suffer"
        )
    if answer.speedup is not None and answer.speedup.high > TOO_WIDE * answer.speedup.low:
        lines.append("note        so wide an interval means a noisy machine: let nothing else run, and `resume`")
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
    if answer.verdict is Verdict.UNDECIDED:
        return [f"{command} resume {answer.study}{studies_dir_flag}     (confirms again, on a quieter machine)"]
    if answer.verdict is Verdict.INFEASIBLE:
        return ["loosen a constraint or give more time under another --study NAME"]
    steps = [f"{command} export {answer.study} -o best.yaml{studies_dir_flag}"]
    if answer.verdict is Verdict.FASTER:
        steps.append('model = autotune.load("best.yaml").apply(model)')
    return steps
