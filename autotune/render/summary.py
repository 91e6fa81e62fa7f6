"""A study in a terminal: the table of trials and the summary."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.answer.configs import config_text
from autotune.answer.format import count, error, num_bytes, percent, promise, seconds, times
from autotune.answer.objectives import as_good_as, described, faster, gain, stopped, to_be_better
from autotune.answer.result import StudyResult
from autotune.command_line import asked, command
from autotune.measure.measurement import Failure, Measurement
from autotune.measure.statistics import COMPILED, MARGIN, TOO_WIDE, Verdict
from autotune.render.accelerator import accelerator_remarks
from autotune.render.console import Hanging
from autotune.render.constraints import constraint_lines, feasible, infeasible, misses
from autotune.render.failure_rules import priors_summary, rules_summary
from autotune.render.findings import KINDS, findings_of_best, one_line
from autotune.study.equivalence import equivalence_classes
from autotune.study.records import (
    DRIFTING,
    UNRELIABLE_DRIFT,
    Confirmation,
    StopReason,
    TrialRecord,
    failures_by_reason,
)

MAX_BREAKS_SHOWN = 5
_COLUMNS = ("", "state", "median", "p99", "x*", "memory", "compile", "breaks", "error", "config")
_NARROW = ("", "state", "median", "x*", "compile", "config")
ROOM_FOR_ALL = 120
"""Characters of a line below which the table has the narrow columns alone."""
_TEXTS = ("state", "config")
_STYLES = {"failed": "dim", "lost": "dim", "infeasible": "yellow"}


def trials_table(answer: StudyResult, *, full: bool = False, width: int = ROOM_FOR_ALL) -> Table:
    """Every trial with its figures, the best marked; failures with their reason. `full`: each config in full.

    In a line of few characters what says least of a trial is left out, so that its config can be read.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    shown = _COLUMNS if width >= ROOM_FOR_ALL else _NARROW
    for name in shown:
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=name not in _TEXTS)
    for record, cells in zip(answer.records, _rows(answer, full=full), strict=True):
        is_best = answer.best is not None and record.number == answer.best.number
        style = "green" if is_best else _STYLES.get(record.state)
        table.add_row(*(cells[_COLUMNS.index(name)] for name in shown), style=style)
    return table


def trials_markdown(answer: StudyResult) -> str:
    """The verdict and the table, to paste where Markdown is read."""
    header = ["trial", *_COLUMNS[1:]]
    header[_COLUMNS.index("x*")] = f"times {as_good_as(answer.objective)} trial 0"
    rows = [header, ["---"] * len(header), *_rows(answer, full=False)]
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join([f"**{headline(answer)}**", "", *lines])


def _rows(answer: StudyResult, *, full: bool) -> list[list[str]]:
    aliases = _aliases(answer.records)
    return [_row(record, answer, aliases.get(record.number), full=full) for record in answer.records]


def summary(
    answer: StudyResult, studies_dir_flag: str = "", *, with_next: bool = True, full: bool = False
) -> RenderableType:
    """Verdict, figures, what stands in the way, and what to do next. `full`: each config in full."""
    lines: list[RenderableType] = [Text(headline(answer), style="bold")]
    lines += [Hanging(f"  {line}", _LABEL + 2) for line in _lines(answer, full=full)]
    if with_next:
        lines += [Text(f"next: {line}") for line in _next_steps(answer, studies_dir_flag)]
    return Group(*lines)


def summary_rows(answer: StudyResult) -> list[tuple[str, str]]:
    """The same lines as pairs of a label and a text."""
    return [(line[:_LABEL].strip(), line[_LABEL:].strip()) for line in _lines(answer, full=False)]


_LABEL = 12
"""Characters that a line's label takes, the space after it included."""


def _lines(answer: StudyResult, *, full: bool) -> list[str]:
    return [*_figures(answer, full=full), *priors_summary(answer), *_obstacles(answer)]


def failure_lines(answer: StudyResult) -> list[str]:
    """Failures counted by reason, each with the first error of its kind."""
    lines = []
    for reason, number in failures_by_reason(answer.records).items():
        first = next(
            each for each in answer.records if isinstance(each.outcome, Failure) and each.outcome.reason == reason
        )
        assert isinstance(first.outcome, Failure)
        lines.append(f"{number} x {reason}, first in trial {first.number}: {first.outcome.error[:160]}")
    return lines


def _row(record: TrialRecord, answer: StudyResult, alias: int | None, *, full: bool) -> list[str]:
    outcome = record.outcome
    config = config_text(record.config, answer.space, full=full)
    if not isinstance(outcome, Measurement):
        state = record.state if outcome is None else outcome.reason.value
        return [str(record.number), state, *["-"] * (len(_COLUMNS) - 3), config]
    return [
        str(record.number),
        _state(record, alias),
        seconds(outcome.latency.p50),
        seconds(outcome.latency.p99),
        _ratio(outcome, answer),
        num_bytes(outcome.peak_memory_bytes),
        seconds(outcome.compile_s),
        count(outcome.diagnosis.num_graph_breaks),
        error(outcome.relative_error),
        config + "".join(f"  ({each})" for each in _remarks(record, outcome) if each),
    ]


def _remarks(record: TrialRecord, outcome: Measurement) -> tuple[str | None, ...]:
    crashed = None if outcome.first_crash is None else "a first process crashed"
    return misses(record), outcome.diagnosis.note, crashed, *accelerator_remarks(outcome)


def _aliases(records: Sequence[TrialRecord]) -> dict[int, int]:
    """Trial -> the first one that ran the same program."""
    return {name.number: names[0].number for names in equivalence_classes(records) for name in names[1:]}


def _state(record: TrialRecord, alias: int | None) -> str:
    """A second name of a program is marked with the trial that ran it first."""
    state: str = record.state
    if alias is not None:
        state = f"= trial {alias}" if state == "measured" else f"{state} (= trial {alias})"
    return f"{state}, disturbed" if record.disturbed else state


def _ratio(outcome: Measurement, answer: StudyResult) -> str:
    """How much less of the objective than the untuned model's."""
    if answer.untuned is None:
        return "-"
    value = answer.objective.value(outcome)
    return times(answer.objective.value(answer.untuned.measurement) / value) if math.isfinite(value) else "-"


def headline(answer: StudyResult) -> str:
    """The verdict in one sentence."""
    if answer.verdict is None:
        return "no verdict yet: the winner was not confirmed in fresh processes"
    if answer.verdict is Verdict.INFEASIBLE:
        return infeasible(answer)
    if answer.verdict is Verdict.FEASIBLE:
        return feasible(answer)
    if answer.verdict is Verdict.FASTER and answer.speedup is not None:
        return faster(answer.objective, answer.speedup) + _uncompared(answer)
    return _why_untuned(answer)


def _uncompared(answer: StudyResult) -> str:
    """How much of what the winner gives nobody has looked into."""
    number = 0 if answer.best is None else len(answer.best.measurement.not_compared)
    return f", {number} output{'' if number == 1 else 's'} not compared" if number else ""


def _why_untuned(answer: StudyResult) -> str:
    objective, confirmation = answer.objective, answer.confirmation
    if answer.verdict is Verdict.TIE:
        better = to_be_better(objective, f"{confirmation.margin if confirmation else MARGIN:.1%}")
        return f"tie: {_nothing_tried(answer)} is shown to {better} the untuned model; keep it untuned"
    why = confirmation.why if confirmation else None
    if answer.verdict is Verdict.UNDECIDED:
        was_cut = confirmation is not None and confirmation.cut_short
        why = why or ("the time did not hold the whole confirmation" if was_cut else _TOO_NOISY)
        return f"undecided: {why}; the model is kept untuned"
    if objective.quantity == "latency":
        return f"keep untuned: {_nothing_tried(answer)} is faster than leaving the model as it is"
    return f"keep untuned: {_nothing_tried(answer)} is shown to {to_be_better(objective)} leaving the model as it is"


def _nothing_tried(answer: StudyResult) -> str:
    """A search says nothing about configs that it did not try."""
    untuned = None if answer.untuned is None else answer.untuned.config
    number = sum(each.counts and each.config != untuned for each in answer.records)
    return f"nothing else that was tried ({count(number)} config{'' if number == 1 else 's'})"


_TOO_NOISY = "this machine is too noisy to tell"


def _figures(answer: StudyResult, *, full: bool) -> list[str]:
    lines = []
    if answer.best is not None:
        config = config_text(answer.best.config, answer.space, full=full)
        lines.append(f"config      trial {answer.best.number}: {config}")
    if answer.verdict in COMPILED and answer.confirmation is not None and answer.speedup is not None:
        lines += _confirmed_figures(answer, answer.confirmation)
    elif answer.speedup is not None and answer.confirmation is not None:
        lines.append(f"closest     trial {answer.confirmation.candidate}: {gain(answer.objective, answer.speedup)}")
    return (
        lines
        + _others(answer, full=full)
        + constraint_lines(answer)
        + _noise(answer)
        + _search(answer)
        + _idle_knobs(answer)
    )


def _search(answer: StudyResult) -> list[str]:
    """How far the search went, and why no further."""
    if answer.stop_reason is None:
        return []
    of_all = "" if answer.num_configs is None else f" of {answer.num_configs}"
    more = "; `resume` goes on" if answer.stop_reason is StopReason.TIME else ""
    why = stopped(answer.stop_reason) if answer.early_stop is None else promise(answer.early_stop)
    return [f"searched    {answer.num_tried}{of_all} configs: {why}{more}"]


def _others(answer: StudyResult, *, full: bool) -> list[str]:
    """Who else was compared with the untuned model."""
    if answer.confirmation is None:
        return []
    configs = {each.number: config_text(each.config, answer.space, full=full) for each in answer.records}
    return [
        f"{'also':<11} trial {number}: {gain(answer.objective, speedup)}  {configs[number]}"
        for number, speedup in answer.confirmation.compared.items()
        if number != answer.confirmation.candidate
    ]


def _idle_knobs(answer: StudyResult) -> list[str]:
    """Knobs whose values made no difference to the program that ran."""
    idle = [each.knob for each in answer.effects if each.verdict == "no effect"]
    return [f"no effect   here: {', '.join(idle)} (the same program ran with every value)"] if idle else []


def _noise(answer: StudyResult) -> list[str]:
    """How far the machine can be trusted."""
    lines = []
    if answer.noise_floor is not None:
        lines.append(f"noise       two processes of the untuned model differ by {percent(answer.noise_floor.spread)}")
    if answer.drift is not None and answer.drift > DRIFTING:
        which = "the search's own figures cannot be trusted" if answer.drift > UNRELIABLE_DRIFT else ""
        lines.append(
            f"drift       the untuned model's own latency changed by {percent(answer.drift)} during the search: "
            + (which or "the confirmation compares side by side and is not affected")
        )
    if answer.speedup is not None and answer.speedup.high > TOO_WIDE * answer.speedup.low:
        again = ", and `resume`" if answer.verdict is Verdict.UNDECIDED else ""
        lines.append(f"wide        processes of one config differ here; stop other programs, if any{again}")
    return lines


def _confirmed_figures(answer: StudyResult, confirmation: Confirmation) -> list[str]:
    """The objective's values in the confirmation's fresh processes; the rest as the search's trial measured it."""
    untuned, tuned = confirmation.values
    lines = []
    for name, record, value in (("untuned", answer.untuned, untuned), ("tuned", answer.best, tuned)):
        assert record is not None
        lines.append(f"{name:<11} {described(answer.objective, value, record)}")
        cold_s = record.measurement.compile_s
    warm = "" if answer.objective.compiles_cold else f", {seconds(confirmation.compile_warm_s)} with caches"
    shipped = "" if answer.artifact is None else f", {seconds(answer.artifact.compile_s)} with the exported artifact"
    calls = answer.break_even_calls
    plural = "" if calls == 1 else "s"
    pays = "never breaks even" if calls is None else f"breaks even after {count(calls)} call{plural}"
    lines.append(f"compile     {seconds(cold_s)} cold{warm}{shipped}; {pays}")
    return lines


def _obstacles(answer: StudyResult) -> list[str]:
    """Graph breaks and recompiles of the best compiled trial, failures, notes."""
    lines = []
    for each in findings_of_best(answer)[:MAX_BREAKS_SHOWN]:
        lines.append(f"{KINDS[each.kind]:<11} {one_line(each)}")
    if answer.best is not None:
        lines += [
            f"unchecked   {each}: what is in it was not compared" for each in answer.best.measurement.not_compared
        ]
    lines += [f"failed      {line}" for line in failure_lines(answer)]
    lines += rules_summary(answer)
    lines += [f"unchecked   {each}" for each in _not_varied(answer)]
    if answer.confirmation is not None and answer.confirmation.note:
        lines.append(f"note        {answer.confirmation.note}")
    if answer.is_outdated:
        lines.append("note        trials were added after this verdict; `resume` confirms again")
    elif answer.confirmation is not None and answer.confirmation.cut_short:
        lines.append("note        the confirmation is not complete; `resume` confirms again")
    return lines


def _not_varied(answer: StudyResult) -> tuple[str, ...]:
    """Said of the inputs, which are the same for all trials."""
    return () if answer.untuned is None else answer.untuned.measurement.not_varied


def _next_steps(answer: StudyResult, studies_dir_flag: str) -> list[str]:
    def with_study(verb: str, *more: str, **fields: str) -> str:
        return command(verb, answer.study, *more, **fields) + studies_dir_flag

    if answer.verdict is None:
        return [with_study("resume")]
    if answer.verdict is Verdict.UNDECIDED:
        when = "with more time" if answer.confirmation and answer.confirmation.cut_short else "on a quieter machine"
        return [f"{with_study('resume')}     (confirms again, {when})"]
    if answer.verdict is Verdict.INFEASIBLE:
        relax = f"relax a constraint in another study ({asked('study', 'NAME')})"
        if answer.stop_reason is StopReason.EXHAUSTED:
            return [relax]
        return [f"{with_study('resume', trials='N')}     (tries further configs), or {relax}"]
    steps = [with_study("export", "-o", "best.yaml")]
    if answer.verdict in COMPILED:
        steps.append('model = autotune.load("best.yaml").apply(model)')
    return steps
