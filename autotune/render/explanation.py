"""An `Explanation` in a terminal, and as a document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.answer import explain
from autotune.answer.configs import config_text
from autotune.answer.explain import Contrast, Explanation, Influence, Rival
from autotune.answer.format import error, num_bytes, percent, seconds, times
from autotune.answer.objectives import as_good_as
from autotune.answer.sections.hot_spots import hot_spots_document, hot_spots_table
from autotune.config import Scalar
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.render.terminal import drawn

MAX_EFFECTS_SHOWN = 12


def explanation(told: Explanation) -> RenderableType:
    """Why the winner wins, which knobs mattered, and what became of all others. A ratio is one of speeds throughout:
    of two configs that are both named, or over the untuned model."""
    return Group(
        Text(
            f"{_HEADLINES[told.verdict]}: trial {told.winner.number}: {config_text(told.winner.config, told.space)}",
            style="bold",
        ),
        *_rivals(told),
        *_set_aside(told),
        *([Text(), drawn(hot_spots_table(told.hot_spots))] if told.hot_spots else []),
        Text(),
        *_importances(told),
        Text(),
        *_effects(told),
        Text(),
        *_groups(told),
    )


def explanation_document(told: Explanation) -> dict[str, Any]:
    """Plain data; the keys are documented in docs/json.md."""
    return {
        "winner": told.winner.number,
        "is_untuned": told.is_untuned,
        "verdict": told.verdict,
        "disturbed": told.disturbed,
        "importances": [asdict(each) for each in told.importances],
        "effects": [_influence_document(each) for each in told.effects],
        "rivals": [asdict(each) for each in told.rivals],
        "groups": [asdict(each) for each in told.groups],
        "hot_spots": told.hot_spots and hot_spots_document(told.hot_spots),
    }


_UNTUNED = "the untuned model, which is kept"
_HEADLINES: dict[Verdict | None, str] = {
    None: "the best so far, not confirmed yet",
    Verdict.FASTER: "the best config",
    Verdict.FEASIBLE: "the best config that keeps every constraint",
    Verdict.TIE: f"a tie with {_UNTUNED}",
    Verdict.KEEP_UNTUNED: f"nothing is better than {_UNTUNED}",
    Verdict.UNDECIDED: f"undecided between others and {_UNTUNED}",
}


def _influence_document(each: Influence) -> dict[str, Any]:
    return {
        "knob": each.knob,
        "faster": each.faster,
        "slower": each.slower,
        "ratios": each.ratios,
        "median": each.median,
        "confirmed": each.confirmed,
        "is_told": each.is_significant,
    }


def _rivals(told: Explanation) -> list[Text]:
    lines = []
    for rival in told.rivals:
        lines.append(Text(f"  {_against(rival, told.objective)}; differences:"))
        lines += [Text(f"    {_contrast(each)}") for each in rival.contrasts]
    return lines


def _against(rival: Rival, objective: Objective) -> str:
    """`1.50x as fast as the default compile (trial 1), side by side in the confirmation`."""
    name = f"{rival.name} (trial {rival.trial})"
    if rival.ratio is None:
        return f"against {name}: other programs kept the machine busy, so the times say nothing"
    where = "side by side in the confirmation" if rival.confirmed else "one process each in the search"
    return f"{times(rival.ratio)} {as_good_as(objective)} {name}, {where}"


def _set_aside(told: Explanation) -> list[Text]:
    if not told.disturbed:
        return []
    numbers = ", ".join(map(str, told.disturbed))
    return [Text(f"  other programs kept the machine busy during trials {numbers}: their times are left out")]


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


def _effects(told: Explanation) -> list[RenderableType]:
    if not told.effects:
        return [Text("no two undisturbed trials differ in one knob alone")]
    table = Table("knob", "better", "worse", "by", "pairs", "seen", box=None, header_style="bold", pad_edge=False)
    for each in told.effects[:MAX_EFFECTS_SHOWN]:
        seen = "confirmation" if each.confirmed else "search"
        table.add_row(each.knob, value(each.faster), value(each.slower), _by(each), str(len(each.ratios)), seen)
    return [Text(f"pairs of trials that differ in this knob alone (x: times {as_good_as(told.objective)}):"), table]


def _by(each: Influence) -> str:
    if not each.is_significant:
        return "no effect distinguishable from noise"
    many = len(each.ratios) > 1
    return times(each.median) + (f" ({times(min(each.ratios))} to {times(max(each.ratios))})" if many else "")


def _groups(told: Explanation) -> list[RenderableType]:
    if not told.groups:
        return []
    table = Table("setting", "trials", "its best", "and", box=None, header_style="bold", pad_edge=False)
    for each in told.groups:
        best = "-" if each.best_speedup is None else times(each.best_speedup)
        table.add_row(f"{each.knob}={value(each.value)}", str(len(each.trials)), best, _trouble(each))
    what = f"x: times {as_good_as(told.objective)} the untuned model"
    return [Text(f"all others, by the most important setting in which they differ from the best ({what}):"), table]


def _trouble(group: explain.LosingGroup) -> str:
    failed = [f"{number} failed: {reason}" for reason, number in group.failures.items()]
    broke = [f"{number} broke {text}" for text, number in group.violations.items()]
    return "; ".join([*failed, *broke])


def value(setting: Scalar) -> str:
    """A knob's value as it stands in a space file."""
    return setting if isinstance(setting, str) else json.dumps(setting)
