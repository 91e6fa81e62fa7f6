"""The pages about two configs measured side by side: `compare`, and `verify` of an exported one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.answer.format import count, percent, times
from autotune.answer.objectives import as_good_as, gain
from autotune.config import Config
from autotune.measure.statistics import MARGIN, Speedup, Verdict
from autotune.render.accelerator import accelerator_facts
from autotune.render.html.content import Figure, Section, Table
from autotune.render.html.rendering import Rows, render
from autotune.render.html.sections import environment_section, machine_rows
from autotune.render.verification import comparison_lines, value_words, verification_lines
from autotune.verification.comparison import ComparisonResult, PairedRun, Side
from autotune.verification.verify import Verification

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Names = tuple[str, str]
ORIGIN = "Made by autotune from what was measured for this page."


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


def verification_page(verification: Verification, pair: PairedRun | None, name: str, command: str | None) -> str:
    """The HTML document about an exported config, measured again; `name`: its file. Without a pair nothing was."""
    result, names = verification.result, ("untuned", "tuned")
    measured: dict[str, Any] = {"lines": [], "configs": [], "figures": [], "sections": []}
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
        "sections": _sections(result, pair, names),
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
        rows.append(("blocks", count(len(result.comparison.values))))
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
    from autotune.render.html.drawing import BEST, UNTUNED
    from autotune.render.html.trial_figures import by_block

    first, second = zip(*result.comparison.values, strict=True)
    columns = [(names[0], UNTUNED, "s", first), (names[1], BEST, "D", second)]
    return [
        _interval(result, pair, names, promised),
        by_block(pair.objective, columns, "Processes of the comparison"),
    ]


def _interval(result: ComparisonResult, pair: PairedRun, names: Names, promised: Speedup | None) -> Figure:
    from autotune.render.html.drawing import draw
    from autotune.render.html.figures import forest

    assert result.speedup is not None
    today = (names[1] if promised is None else "today", result.speedup, result.verdict is Verdict.FASTER)
    named = [today] if promised is None else [("promised", promised, False), today]

    def paint(axes: Axes) -> None:
        forest(axes, named, pair.noise_floor or 0.0, MARGIN)

    base = "the untuned model" if names[0] == "untuned" else names[0]
    words = f"Times {as_good_as(pair.objective)} {base} (the line at 1), with the 98 % interval."
    if pair.noise_floor is not None:
        words += f" Band: two processes of the untuned model differed by {percent(pair.noise_floor)} in the study."
    words += f" Dashed: the whole interval has to lie beyond {1 + MARGIN:.3g}x."
    table = Table(
        f"{names[1]} against {names[0]}",
        ("config", "ratio", "from", "to"),
        [(name, times(each.median), times(each.low), times(each.high)) for name, each, _ in named],
    )
    title = "Interval"
    svg = draw("interval", title, words, 0.9 + 0.5 * len(named), paint)
    return Figure("interval", title, words, svg, table)


def _sections(result: ComparisonResult, pair: PairedRun, names: Names) -> list[Section]:
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
        Section("settings", "Settings", words, (settings,)),
        environment_section("A result holds for this model, machine and release.", asked, machine),
    ]
