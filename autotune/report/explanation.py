"""An `Explanation` in a terminal, and as a document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune import explain
from autotune.config import Scalar
from autotune.explain import Contrast, Effect, Explanation
from autotune.report.hot_spots import hot_spots_document, hot_spots_table
from autotune.report.units import error, num_bytes, percent, seconds, times

MAX_EFFECTS_SHOWN = 12


def explanation(told: Explanation, noise: float | None) -> RenderableType:
    """Why the winner wins, which knobs mattered, and what became of all others.

    `noise` is the share by which two processes of one config differ: an effect below it is no effect.
    """
    return Group(
        Text(f"the best config: trial {told.winner.number}: {told.winner.config}", style="bold"),
        *_rivals(told),
        *([Text(), hot_spots_table(told.hot_spots)] if told.hot_spots else []),
        Text(),
        *_importances(told),
        Text(),
        *_effects(told.effects, noise or 0.0),
        Text(),
        *_groups(told),
    )


def explanation_document(told: Explanation) -> dict[str, Any]:
    """Plain data; the keys are documented in docs/json.md."""
    return {
        "winner": told.winner.number,
        "is_untuned": told.is_untuned,
        "importances": [asdict(each) for each in told.importances],
        "effects": [{**asdict(each), "median": each.median} for each in told.effects],
        "rivals": [asdict(each) for each in told.rivals],
        "groups": [asdict(each) for each in told.groups],
        "hot_spots": told.hot_spots and hot_spots_document(told.hot_spots),
    }


def _rivals(told: Explanation) -> list[Text]:
    lines = []
    for rival in told.rivals:
        lines.append(Text(f"  {times(rival.ratio)} the cost in {rival.name} (trial {rival.trial}); there:"))
        lines += [Text(f"    {_contrast(each)}") for each in rival.contrasts]
    return lines


def _contrast(contrast: Contrast) -> str:
    return (
        f"{contrast.quantity} {_quantity(contrast.quantity, contrast.other)}, "
        f"in the best {_quantity(contrast.quantity, contrast.winner)}"
    )


def _quantity(name: str, value: float | None) -> str:
    if name == "peak memory":
        return num_bytes(None if value is None else int(value))
    if name == "compile seconds":
        return seconds(value)
    if name == "relative error":
        return error(value)
    return "-" if value is None else f"{value:g}"


def _importances(told: Explanation) -> list[RenderableType]:
    if not told.importances:
        return [Text("importance of the knobs: too few trials to tell")]
    table = Table("knob", "share", "90 % interval", box=None, header_style="bold", pad_edge=False)
    for each in told.importances:
        table.add_row(each.knob, percent(each.share), f"{percent(each.low)} to {percent(each.high)}")
    return [Text("what separates the fastest quarter of the trials from all (Optuna, PED-ANOVA):"), table]


def _effects(effects: list[Effect], noise: float) -> list[RenderableType]:
    if not effects:
        return [Text("no two trials differ in one knob alone")]
    table = Table("knob", "faster", "slower", "by", "pairs", box=None, header_style="bold", pad_edge=False)
    for each in effects[:MAX_EFFECTS_SHOWN]:
        spread = f" ({times(min(each.ratios))} to {times(max(each.ratios))})" if len(each.ratios) > 1 else ""
        by = f"{times(each.median)}{spread}" if each.median > 1 + noise else "no difference beyond the noise"
        table.add_row(each.knob, value(each.faster), value(each.slower), by, str(len(each.ratios)))
    return [Text("pairs of trials that differ in this knob alone, one process each:"), table]


def _groups(told: Explanation) -> list[RenderableType]:
    if not told.groups:
        return []
    table = Table("setting", "trials", "its best", "and", box=None, header_style="bold", pad_edge=False)
    for each in told.groups:
        best = "-" if each.best_ratio is None else f"{times(each.best_ratio)} the cost"
        table.add_row(f"{each.knob}={value(each.value)}", str(len(each.trials)), best, _trouble(each))
    return [Text("all others, by the most important setting in which they differ from the best:"), table]


def _trouble(group: explain.Group) -> str:
    failed = [f"{number} failed: {reason}" for reason, number in group.failures.items()]
    broke = [f"{number} broke {text}" for text, number in group.violations.items()]
    return "; ".join([*failed, *broke])


def value(setting: Scalar) -> str:
    """A knob's value as it stands in a space file."""
    return setting if isinstance(setting, str) else json.dumps(setting)
