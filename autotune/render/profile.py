"""Profiles in a terminal: the operators that take the most of a call, of the untuned model and of the best config."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.answer.format import percent, seconds
from autotune.measure.profile import HotSpots, OperatorTime, Profile

NUM_SHOWN = 8
_MAX_NAMED = 8


def hot_spots_table(spots: HotSpots) -> RenderableType:
    """The largest side by side, with what disappeared, what is new and what the figures leave out."""
    profiles = {"untuned": spots.untuned, "best": spots.best}
    made = {name: profile for name, profile in profiles.items() if profile is not None}
    table = Table("operator", box=None, header_style="bold", pad_edge=False)
    for name in made:
        table.add_column(name, justify="right")
        table.add_column("", justify="right")
    for operator in spots.largest(NUM_SHOWN):
        cells = [cell for profile in made.values() for cell in _cells(profile.operator(operator))]
        table.add_row(operator, *cells)
    notes = [f"gone: {_listed(spots.gone())}"] if spots.gone() else []
    notes += [f"new: {_listed(spots.new())}"] if spots.new() else []
    notes += list(dict.fromkeys(profile.note for profile in made.values() if profile.note))
    title = Text("where the time of a call goes, by the framework's profiler (its own cost included):")
    return Group(title, table, *(Text(f"  {line}") for line in notes))


def profile_lines(profile: Profile) -> list[str]:
    """The largest of one profile."""
    width = max((len(each.name) for each in profile.operators[:NUM_SHOWN]), default=0)
    lines = [
        f"  {each.name:<{width}}  {percent(each.share):>7}  {seconds(each.self_s)}, {each.num_calls:g} calls"
        for each in profile.operators[:NUM_SHOWN]
    ]
    return [*lines, *([f"  {profile.note}"] if profile.note else [])]


def hot_spots_document(spots: HotSpots) -> dict[str, Any]:
    """Plain data; the keys are documented in docs/json.md."""
    return {
        "untuned": spots.untuned and spots.untuned.model_dump(),
        "best": spots.best and spots.best.model_dump(),
        "gone": spots.gone(),
        "new": spots.new(),
    }


def _cells(operator: OperatorTime | None) -> tuple[str, str]:
    return ("-", "") if operator is None else (percent(operator.share), seconds(operator.self_s))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
