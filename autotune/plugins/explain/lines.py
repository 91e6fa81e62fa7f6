"""An `Explanation` in a terminal, and as a document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.answer.configs import config_text
from autotune.answer.content import Table
from autotune.answer.format import error, num_bytes, percent, seconds, times
from autotune.answer.objectives import as_good_as
from autotune.config import Scalar
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.plugins.explain.explanation import Anchor, Contrast, Explanation, LosingGroup
from autotune.render.terminal import drawn

_UNTUNED = "the untuned model, which is kept"
_HEADLINES: dict[Verdict | None, str] = {
    None: "the best so far, not proven yet",
    Verdict.FASTER: "the best config",
    Verdict.FEASIBLE: "the best config that keeps every constraint",
    Verdict.TIE: f"a tie with {_UNTUNED}",
    Verdict.KEEP_UNTUNED: f"nothing is better than {_UNTUNED}",
    Verdict.UNDECIDED: f"undecided between others and {_UNTUNED}",
}


def explanation(told: Explanation) -> RenderableType:
    """Why the winner wins, which knobs mattered, and what became of all others. A ratio is one of speeds throughout:
    of two configs that are both named, or over the untuned model."""
    answer, winner = told.answer, told.winner
    headline = f"{_HEADLINES[answer.verdict]}: trial {winner.number}: {config_text(winner.config, answer.space)}"
    parts: list[RenderableType] = [Text(headline, style="bold"), *map(Text, _remarks(told))]
    for table in (_importances(told), *_groups(told)):
        parts += [Text(), drawn(table) if table.rows else Text(table.caption)]
    return Group(*parts)


def explanation_document(told: Explanation) -> dict[str, Any]:
    """Plain data; the keys are documented in docs/json.md."""
    return {
        "winner": told.winner.number,
        "is_untuned": told.winner.config == told.answer.space.untuned(),
        "verdict": told.answer.verdict,
        "disturbed": told.disturbed,
        "importances": [asdict(found) for found in told.importances],
        "rivals": [asdict(anchor) for anchor in told.anchors],
        "groups": [asdict(group) for group in told.groups],
    }


def _remarks(told: Explanation) -> Iterator[str]:
    for anchor in told.anchors:
        yield f"  {_against(anchor, told.answer.objective)}" + ("; the best has" if anchor.contrasts else "")
        for contrast in anchor.contrasts:
            other = "" if contrast.other is None else f"; there {_quantity(contrast, contrast.other)}"
            label = "compile time" if contrast.quantity == "compile seconds" else contrast.quantity
            yield f"    {label} {_quantity(contrast, contrast.winner)}{other}"
    if told.disturbed:
        numbers = ", ".join(map(str, told.disturbed))
        yield f"  other programs kept the machine busy during trials {numbers}: their times are left out"


def _against(anchor: Anchor, objective: Objective) -> str:
    """`1.50x as fast as the default compile (trial 1), side by side in blocks`."""
    name = f"{anchor.name} (trial {anchor.trial})"
    if anchor.ratio is None:
        return f"against {name}: other programs kept the machine busy, so the times say nothing"
    where = "side by side in blocks" if anchor.confirmed else "one process each in the search"
    return f"{times(anchor.ratio)} {as_good_as(objective)} {name}, {where}"


def _quantity(contrast: Contrast, value: float | None) -> str:
    if value is None:
        return "none"
    match contrast.quantity:
        case "peak memory":
            return num_bytes(int(value))
        case "compile seconds":
            return seconds(value)
        case "relative error":
            return error(value)
    return f"{value:g}"


def _importances(told: Explanation) -> Table:
    columns = ("knob", "share", "90 % interval")
    if not told.importances:
        return Table("importance of the knobs: too few trials to tell", columns, [])
    rows = [
        (found.knob, percent(found.share), f"{percent(found.low)} to {percent(found.high)}")
        for found in told.importances
    ]
    what = "what separates the fastest quarter of the trials from all (Optuna, PED-ANOVA):"
    return Table(what, columns, rows, frozenset(columns))


def _groups(told: Explanation) -> list[Table]:
    columns = ("setting", "trials", "its best", "and")
    rows = [
        (
            f"{group.knob}={setting(group.value)}",
            str(len(group.trials)),
            "-" if group.best_speedup is None else times(group.best_speedup),
            _trouble(group),
        )
        for group in told.groups
    ]
    x = f"x: times {as_good_as(told.answer.objective)} the untuned model"
    what = f"all others, by the most important setting in which they differ from the best ({x}):"
    return [Table(what, columns, rows, frozenset(columns))] if rows else []


def _trouble(group: LosingGroup) -> str:
    failed = [f"{number} failed: {reason}" for reason, number in group.failures.items()]
    broke = [f"{number} broke {text}" for text, number in group.violations.items()]
    return "; ".join([*failed, *broke])


def setting(value: Scalar) -> str:
    """A knob's value as it stands in a space file."""
    return value if isinstance(value, str) else json.dumps(value)
