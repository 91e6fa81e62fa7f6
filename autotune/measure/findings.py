"""`Finding`: a graph break or recompile of a model at one place, with what it costs.

Made from what a trial recorded (`findings_of`), so that a study's report and `diagnose` say the same.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from autotune.measure.diagnosis import BreakKind, Diagnosis, GraphBreak, Recompile
from autotune.schema import Record

EVERYWHERE = "everywhere"
"""All places of graph breaks together."""

Kind = Literal["graph_break", "recompile"]
_VAGUE = frozenset({BreakKind.FOREIGN_CALL, BreakKind.OTHER})
"""Names that give way to a better one for the same place."""


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
    broken = _merged(map(_of_break, diagnosis.graph_breaks or ()))
    again = _merged(map(_of_recompile, diagnosis.recompiles or ()))
    return [*_by_their_better_name(broken), *again]


def _by_their_better_name(broken: Sequence[Finding]) -> list[Finding]:
    named = {finding.location for finding in broken if finding.ailment not in _VAGUE}
    vague = [finding for finding in broken if finding.ailment in _VAGUE and finding.location in named]
    lost = {finding.location for finding in vague if finding.gives_up}
    return [
        finding.model_copy(update={"gives_up": finding.gives_up or finding.location in lost})
        for finding in broken
        if finding not in vague
    ]


def with_profiled_cost(findings: list[Finding], at_breaks_s: Mapping[str, float]) -> list[Finding]:
    """The breaks that nothing else told the cost of, with what the profiler saw at their places, if it did: seconds of
    a call (see `Profiler`)."""
    num_places = sum(finding.kind == "graph_break" for finding in findings)
    found = []
    for finding in findings:
        seconds = at_breaks_s.get(finding.location or "", at_breaks_s.get(EVERYWHERE))
        if finding.kind == "graph_break" and finding.cost is None and seconds is not None:
            how = "by the profiler, which makes it look more expensive: spent outside of compiled code"
            if finding.location not in at_breaks_s and num_places > 1:
                how = f"{how}; of all {num_places} places together"
            cost = FindingCost(kind="per_call", seconds=seconds, how=how)
            found.append(finding.model_copy(update={"cost": cost}))
        else:
            found.append(finding)
    return found


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The most expensive first: by seconds of every call, then by seconds of recompiling, then what was not
    measured, of that first what gives a whole function up and what breaks more often; what was measured to cost nothing
    is last. What only follows from another break comes after it."""

    def place(finding: Finding) -> tuple[int, float, bool, bool, int]:
        seconds, group = 0.0, 2
        if finding.cost is not None:
            seconds = finding.cost.seconds
            group = 3 if seconds <= 0 else 0 if finding.cost.kind == "per_call" else 1
        return group, -seconds, not finding.gives_up, finding.ailment is BreakKind.AFTER_BREAK, -finding.count

    return sorted(findings, key=place)


def source_line(location: str | None) -> str | None:
    """The line that a `file:LINE` names, as it stands in the file now; None where there is none."""
    file, _, line = (location or "").rpartition(":")
    return (linecache.getline(file, int(line)).strip() or None) if file and line.isdecimal() else None


def _of_break(broken: GraphBreak) -> Finding:
    return _finding("graph_break", broken, hint=broken.hint, count=broken.count, gives_up=broken.gives_up)


def _of_recompile(recompile: Recompile) -> Finding:
    paid = None
    if recompile.compile_s is not None:
        paid = FindingCost(kind="once", seconds=recompile.compile_s, how="by the compiler's own clock")
    return _finding("recompile", recompile, cost=paid)


def _finding(kind: Kind, found: GraphBreak | Recompile, **further: Any) -> Finding:
    return Finding(
        kind=kind,
        ailment=found.ailment or BreakKind.OTHER,
        location=found.location,
        source=source_line(found.location),
        reason=found.reason,
        **further,
    )


def _merged(findings: Iterable[Finding]) -> Sequence[Finding]:
    seen: dict[tuple[str | None, BreakKind], Finding] = {}
    for finding in findings:
        known = seen.get((finding.location, finding.ailment))
        seen[finding.location, finding.ailment] = finding if known is None else _together(known, finding)
    return tuple(seen.values())


def _together(first: Finding, more: Finding) -> Finding:
    cost = first.cost
    if cost is not None and more.cost is not None:
        cost = cost.model_copy(update={"seconds": cost.seconds + more.cost.seconds})
    update = {"count": first.count + more.count, "gives_up": first.gives_up or more.gives_up, "cost": cost}
    return first.model_copy(update=update)
