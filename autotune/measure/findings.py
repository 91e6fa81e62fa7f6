"""`Finding`: a graph break or recompile of a model at one place, with what it costs.

Made from what a trial recorded (`findings_of`), so that a study's report and `diagnose` say the same.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from typing import Literal

from autotune.measure.diagnosis import BreakKind, Diagnosis, GraphBreak, Recompile
from autotune.measure.profile import EVERYWHERE, Profile
from autotune.schema import Record

Kind = Literal["graph_break", "recompile"]
_VAGUE = frozenset({BreakKind.FOREIGN_CALL, BreakKind.OTHER})
"""They give way to a better name for the same place."""


class FindingCost(Record):
    """What one finding costs here. `per_call` and `once` say of which kind the seconds are."""

    kind: Literal["per_call", "once"]
    seconds: float
    """`per_call`: median of a call with it minus median of a call without it. `once`: compiling again, all times."""
    num_graphs_without: int | None = None
    how: str
    """How it was measured, in words."""


class Finding(Record):
    """`source` is the line itself; `cost` None: not measured."""

    kind: Kind
    ailment: BreakKind
    location: str | None
    source: str | None
    reason: str
    """In the framework's words; of a recompile the guard that failed first."""
    hint: str | None = None
    """The framework's own advice."""
    count: int = 1
    gives_up: bool = False
    """The whole function around it ran eagerly because of it."""
    cost: FindingCost | None = None


def findings_of(diagnosis: Diagnosis) -> list[Finding]:
    """The findings of a compiled model, each place once for each kind; graph breaks first."""
    broken = _merged(_of_break(each) for each in diagnosis.graph_breaks or ())
    again = _merged(_of_recompile(each) for each in diagnosis.recompiles or ())
    return [*_by_their_better_name(broken), *again]


def _by_their_better_name(broken: Sequence[Finding]) -> list[Finding]:
    named = {each.location for each in broken if each.ailment not in _VAGUE}
    vague = [each for each in broken if each.ailment in _VAGUE and each.location in named]
    lost = {each.location for each in vague if each.gives_up}
    return [
        each.model_copy(update={"gives_up": each.gives_up or each.location in lost})
        for each in broken
        if each not in vague
    ]


def with_profiled_cost(findings: list[Finding], profile: Profile | None) -> list[Finding]:
    """The breaks that nothing else told the cost of, with what the profiler saw at their places, if it did."""
    at_breaks_s = {} if profile is None else profile.at_breaks_s
    num_places = sum(each.kind == "graph_break" for each in findings)
    found = []
    for each in findings:
        seconds = at_breaks_s.get(each.location or "", at_breaks_s.get(EVERYWHERE))
        if each.kind == "graph_break" and each.cost is None and seconds is not None:
            how = "by the profiler, which makes it look more expensive: spent outside of compiled code"
            if each.location not in at_breaks_s and num_places > 1:
                how = f"{how}; of all {num_places} places together"
            cost = FindingCost(kind="per_call", seconds=seconds, how=how)
            found.append(each.model_copy(update={"cost": cost}))
        else:
            found.append(each)
    return found


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The most expensive first: by seconds of every call, then by seconds of recompiling, then what was not
    measured, of that first what gives a whole function up and what breaks more often; what was measured to cost nothing
    is last. What only follows from another break comes after it."""

    def place(each: Finding) -> tuple[int, float, bool, bool, int]:
        seconds = 0.0 if each.cost is None else each.cost.seconds
        if each.cost is None:
            group = 2
        elif seconds <= 0:
            group = 3
        else:
            group = 0 if each.cost.kind == "per_call" else 1
        return group, -seconds, not each.gives_up, each.ailment is BreakKind.AFTER_BREAK, -each.count

    return sorted(findings, key=place)


def source_line(location: str | None) -> str | None:
    """The line that a `file:LINE` names, as it stands in the file now; None where there is none."""
    file, _, line = (location or "").rpartition(":")
    return (linecache.getline(file, int(line)).strip() or None) if file and line.isdecimal() else None


def _of_break(each: GraphBreak) -> Finding:
    return Finding(
        kind="graph_break",
        ailment=each.ailment or BreakKind.OTHER,
        location=each.location,
        source=source_line(each.location),
        reason=each.reason,
        hint=each.hint,
        count=each.count,
        gives_up=each.gives_up,
    )


def _of_recompile(each: Recompile) -> Finding:
    paid = None
    if each.compile_s is not None:
        paid = FindingCost(kind="once", seconds=each.compile_s, how="by the compiler's own clock")
    return Finding(
        kind="recompile",
        ailment=each.ailment or BreakKind.OTHER,
        location=each.location,
        source=source_line(each.location),
        reason=each.reason,
        cost=paid,
    )


def _merged(findings: Iterable[Finding]) -> Sequence[Finding]:
    seen: dict[tuple[str | None, BreakKind], Finding] = {}
    for each in findings:
        known = seen.get((each.location, each.ailment))
        seen[each.location, each.ailment] = each if known is None else _together(known, each)
    return tuple(seen.values())


def _together(first: Finding, more: Finding) -> Finding:
    cost = first.cost
    if cost is not None and more.cost is not None:
        cost = cost.model_copy(update={"seconds": cost.seconds + more.cost.seconds})
    update = {"count": first.count + more.count, "gives_up": first.gives_up or more.gives_up, "cost": cost}
    return first.model_copy(update=update)
