"""Hot spots: the operators that take the most of a call, of the untuned model and of the best config."""

from __future__ import annotations

from typing import Any

from autotune.answer.content import Section, Table
from autotune.answer.format import percent, seconds
from autotune.measure.profile import HotSpots, OperatorTime, Profile

NUM_SHOWN = 8
_MAX_NAMED = 8


class HotSpotsSection(Section):
    """Two profiles side by side, as far as there are two."""

    place = 64
    name, title = "hot-spots", "Where the time goes"

    def tables(self) -> list[Table]:
        return [] if self.answer.hot_spots is None else [hot_spots_table(self.answer.hot_spots)]

    def document(self) -> dict[str, Any]:
        return {"hot_spots": self.answer.hot_spots and hot_spots_document(self.answer.hot_spots)}


def hot_spots_table(spots: HotSpots) -> Table:
    """The largest side by side, with what disappeared, what is new and what the figures leave out."""
    profiles = {"untuned": spots.untuned, "best": spots.best}
    made = {name: profile for name, profile in profiles.items() if profile is not None}
    rows = [
        (operator, *(cell for profile in made.values() for cell in _cells(profile.operator(operator))))
        for operator in spots.largest(NUM_SHOWN)
    ]
    notes = [f"gone: {_listed(spots.gone())}"] if spots.gone() else []
    notes += [f"new: {_listed(spots.new())}"] if spots.new() else []
    notes += list(dict.fromkeys(profile.note for profile in made.values() if profile.note))
    caption = "where the time of a call goes, by the framework's profiler (its own cost included):"
    columns = ("operator", *(column for name in made for column in (name, "")))
    return Table(caption, columns, rows, frozenset({"operator"}), notes)


def hot_spots_document(spots: HotSpots) -> dict[str, Any]:
    """Plain data; the keys are documented in docs/json.md."""
    return {
        "untuned": spots.untuned and spots.untuned.model_dump(),
        "best": spots.best and spots.best.model_dump(),
        "gone": spots.gone(),
        "new": spots.new(),
    }


def profile_lines(profile: Profile) -> list[str]:
    """The largest of one profile."""
    largest = profile.operators[:NUM_SHOWN]
    width = max((len(operator.name) for operator in largest), default=0)
    lines = [f"  {o.name:<{width}}  {percent(o.share):>7}  {seconds(o.self_s)}, {o.num_calls:g} calls" for o in largest]
    return [*lines, *([f"  {profile.note}"] if profile.note else [])]


def _cells(operator: OperatorTime | None) -> tuple[str, str]:
    return ("-", "") if operator is None else (percent(operator.share), seconds(operator.self_s))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
