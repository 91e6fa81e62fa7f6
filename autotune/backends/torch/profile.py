"""What graph breaks cost, by torch.profiler (https://docs.pytorch.org/docs/2.13/profiler.html)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch.profiler import ProfilerActivity

from autotune.backends.torch.counters import given_up_locations, resumed_locations

_REGION, _GRAPH = "Torch-Compiled Region: ", "## Call CompiledFxGraph"


def break_costs(call: Callable[[], None], num_calls: int) -> dict[str, float]:
    """See `Profiler`. What is seen is time on the host."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(num_calls):
            call()
    events = [(event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6) for event in profiler.events()]
    at_breaks = between_graphs(events, resumed_locations())
    lost = given_up_locations()
    if len(lost) == 1:
        at_breaks[lost[0]] = after_the_last_graph(events)
    return {place: seconds / num_calls for place, seconds in at_breaks.items()}


_Event = tuple[str, float, float]
"""Name, start and end in seconds of what the profiler saw."""


def between_graphs(events: Iterable[_Event], resumed: Mapping[str, str]) -> dict[str, float]:
    """Place of a graph break -> seconds on the host between the graph before it and what is compiled after it.

    `resumed` says which compiled region goes on after which break; it lies within the region that broke. What counts is
    the time from the end of the last graph (or the start of the region that broke) to the start of the next graph or
    region: what Python does there, the operators that it calls one by one, and finding the code that goes on.
    """
    marks = _marks(events)
    seconds: dict[str, float] = {}
    for position, (start, end, name) in enumerate(marks):
        place = resumed.get(name.removeprefix(_REGION))
        if place is None:
            continue
        before, after = marks[:position], marks[position + 1 :]
        # Of what is over its end counts; of what is not, and so lies around it, its start.
        left = max((past if past <= start else begun for begun, past, _ in before), default=start)
        entered = min((begun for begun, _, _ in after if begun < end), default=end)
        seconds[place] = seconds.get(place, 0.0) + entered - left
    return seconds


def after_the_last_graph(events: Iterable[_Event]) -> float:
    """Seconds of all calls in which compiled code had been entered, and none ran any more before it was left."""
    seconds, until, inner = 0.0, 0.0, 0.0
    for start, end, name in [*_marks(events), (math.inf, math.inf, "")]:
        if start >= until:
            seconds += until - inner
            until, inner = end, start
        else:
            inner = max(inner, end if name.startswith(_GRAPH) else start)
    return seconds


def _marks(events: Iterable[_Event]) -> list[tuple[float, float, str]]:
    """Compiled regions and graphs: start, end and name, in the order in which they begin."""
    return sorted((start, end, name) for name, start, end in events if name.startswith((_REGION, _GRAPH)))
