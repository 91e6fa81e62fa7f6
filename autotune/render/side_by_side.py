"""Two configs measured side by side, and an exported one measured again: in a terminal and as a page."""

from __future__ import annotations

from typing import Any

from autotune.answer.content import Figure, Intervals, PagePart, Table
from autotune.answer.format import ABOUT_THE_SECOND, count, ends, percent, times
from autotune.answer.objectives import as_good_as, gain, shown
from autotune.answer.sections.confirmation import by_block
from autotune.answer.sections.environment import accelerator_facts, environment_part, machine_rows
from autotune.config import Config
from autotune.measure.objective import Objective
from autotune.measure.statistics import MARGIN, Speedup, Verdict
from autotune.render.html.page import Rows, render
from autotune.verification.comparison import ComparisonResult, PairedRun, Side
from autotune.verification.verify import Verified

Names = tuple[str, str]
ORIGIN = "Made by autotune from what was measured for this page."


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


def verification_lines(verification: Verified) -> list[str]:
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


def comparison_page(result: ComparisonResult, pair: PairedRun, names: Names, command: str | None) -> str:
    """The HTML document about two configs. `command`: what repeats the comparison, if a command line does."""
    return render(
        name=pair.second.workload.model,
        kind="comparison",
        headline=comparison_lines(result, names)[0],
        wins=result.verdict is Verdict.FASTER,
        commands=_commands(command),
        origin=ORIGIN,
        **_measured(result, pair, names, promised=None),
    )


def verification_page(verification: Verified, pair: PairedRun | None, name: str, command: str | None) -> str:
    """The HTML document about an exported config, measured again; `name`: its file. Without a pair nothing was."""
    result, names = verification.result, ("untuned", "tuned")
    measured: dict[str, Any] = {"lines": [], "configs": [], "figures": [], "parts": []}
    if pair is not None and result is not None:
        measured = _measured(result, pair, names, verification.promised)
    return render(
        name=name,
        kind="verification",
        headline=verification_lines(verification)[0],
        wins=verification.outcome == "holds",
        commands=_commands(command),
        origin=ORIGIN if measured["lines"] else "Made by autotune; nothing had to be measured.",
        **measured,
    )


def _measured(result: ComparisonResult, pair: PairedRun, names: Names, promised: Speedup | None) -> dict[str, Any]:
    """The parts of a page that show what was measured."""
    return {
        "lines": _lines(result, pair, names, promised),
        "configs": _configs(pair, names),
        "figures": _figures(result, pair, names, promised),
        "parts": _parts(result, pair, names),
    }


def _lines(
    result: ComparisonResult, pair: PairedRun, names: Names, promised: Speedup | None
) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("model", pair.second.workload.model), ("objective", pair.objective.name)]
    if promised is not None:
        rows.append(("promised", gain(pair.objective, promised)))
    if result.comparison is not None and result.speedup is not None:
        rows.append(("today" if promised else "ratio", gain(pair.objective, result.speedup)))
        rows += [(n, value_words(pair.objective, value)) for n, value in zip(names, result.values, strict=True)]
        rows.append(("blocks", count(len(result.comparison.blocks.values))))
    if result.failure is not None:
        rows += [("error", result.failure.error), ("full log", result.failure.evidence)]
    return rows


def _configs(pair: PairedRun, names: Names) -> list[tuple[str, Rows]]:
    """What of each differs from the untuned model."""

    def changed(config: Config) -> list[tuple[str, object]]:
        knobs = sorted(config.differing(pair.untuned.config) & config.root.keys())
        return [(knob, config[knob]) for knob in knobs] or [("the untuned model", "")]

    return [(name, changed(side.config)) for name, side in zip(names, (pair.first, pair.second), strict=True)]


def _commands(command: str | None) -> list[tuple[str, str]]:
    return [] if command is None else [("measure again", command)]


def _figures(result: ComparisonResult, pair: PairedRun, names: Names, promised: Speedup | None) -> list[Figure]:
    if result.comparison is None:
        return []
    first, second = zip(*result.comparison.blocks.values, strict=True)
    blocks = by_block(
        pair.objective,
        [(names[0], "untuned", "s", first), (names[1], "best", "D", second)],
        "Processes of the comparison",
    )
    return [_interval(result, pair, names, promised), blocks]


def _interval(result: ComparisonResult, pair: PairedRun, names: Names, promised: Speedup | None) -> Figure:
    assert result.speedup is not None
    today = (names[1] if promised is None else "today", result.speedup, result.verdict is Verdict.FASTER)
    named = [today] if promised is None else [("promised", promised, False), today]
    other = "the untuned model" if names[0] == "untuned" else names[0]
    words = f"Times {as_good_as(pair.objective)} {other} (the line at 1), with the 98 % interval."
    if pair.noise_floor is not None:
        words += f" Band: two processes of the untuned model differed by {percent(pair.noise_floor)} in the study."
    words += f" Dashed: the whole interval has to lie beyond {1 + MARGIN:.3g}x."
    table = Table(
        f"{names[1]} against {names[0]}",
        ("config", "ratio", "from", "to"),
        [(name, times(speedup.median), *ends(speedup)) for name, speedup, _ in named],
    )
    return Figure("interval", "Interval", words, Intervals(named, pair.noise_floor or 0.0, MARGIN), table)


def _parts(result: ComparisonResult, pair: PairedRun, names: Names) -> list[PagePart]:
    titles: tuple[str, ...] = names
    sides: tuple[Side, ...] = (pair.first, pair.second)
    if pair.untuned != pair.first:
        titles, sides = ("untuned model", *names), (pair.untuned, *sides)
    knobs = dict.fromkeys(knob for side in sides for knob in side.config.root)
    rows = [
        ("framework", *(side.workload.framework for side in sides)),
        ("model", *(side.workload.model for side in sides)),
        *((knob, *(str(side.config.get(knob, "-")) for side in sides)) for knob in knobs),
    ]
    columns = ("setting", *titles)
    settings = Table("The configs in full", columns, rows, frozenset(columns))
    words = "A dash: the config does not have this knob."
    workload = pair.second.workload
    asked = [
        ("device", workload.device),
        ("arguments", " ".join(f"{name}={value}" for name, value in workload.arguments.items()) or "-"),
        ("seed", str(workload.seed)),
        ("tolerance", "by the precision of the model" if pair.tolerance is None else f"{pair.tolerance:g}"),
        *sorted(pair.variables.items()),
    ]
    measured = result.second
    machine = [] if measured is None else [*machine_rows(measured.environment), *accelerator_facts(measured)]
    return [
        PagePart("settings", "Settings", words, (settings,)),
        environment_part("A result holds for this model, machine and release.", asked, machine),
    ]
