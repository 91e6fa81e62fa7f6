"""A study under traffic: each shape with what it takes, untuned and tuned, and what the first pass cost."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.answer.format import count, percent, seconds, times
from autotune.answer.result import StudyResult
from autotune.measure.measurement import Measurement, Replay

NUM_SHOWN = 12
"""Shapes in a table; of more, so many at equal distances."""


def traffic_table(answer: StudyResult) -> RenderableType | None:
    """The shapes that were called, of which a long list is thinned out; None without traffic, or before a trial."""
    compared = _compared(answer)
    if answer.traffic is None or not compared:
        return None
    replay = _replay(next(iter(compared.values())))
    table = Table("shape", box=None, header_style="bold", pad_edge=False)
    for name in ("share", "calls", *compared, *(["x"] if len(compared) > 1 else []), "compiled"):
        table.add_column(name, justify="right")
    shown = _spread(len(replay.sizes))
    for shape in shown:
        table.add_row(*_row(shape, answer, compared))
    thinned = "" if len(shown) == len(replay.sizes) else f"; {len(shown)} of {len(replay.sizes)} shapes shown"
    title = Text(f"traffic {answer.traffic}, a stream of {len(replay.stream)} calls{thinned}:")
    notes = [f"  {name:<11} {pass_line(each)}" for name, each in compared.items()]
    return Group(title, table, *map(Text, notes))


def pass_line(measurement: Measurement) -> str:
    """What the stream cost, e.g. `first pass 21.3 s, then 1.27 s; 8 graphs compiled; 1 function left to eager`."""
    replay = _replay(measurement)
    steady_s = len(replay.stream) * measurement.steady_call_s
    told = [f"first pass {seconds(sum(replay.cold_s))}, then {seconds(steady_s)}"]
    if replay.num_compilations is not None:
        told.append(f"{count(replay.num_compilations)} graphs compiled")
    if replay.num_fallbacks:
        functions = "1 function" if replay.num_fallbacks == 1 else f"{replay.num_fallbacks} functions"
        told.append(f"the limit of compilations was hit and {functions} left to eager execution")
    return "; ".join(told)


def traffic_document(answer: StudyResult) -> dict[str, Any] | None:
    """Plain data; the keys are documented in docs/json.md."""
    if answer.traffic is None:
        return None
    compared = _compared(answer)
    replay = next(map(_replay, compared.values()), None)
    return {
        "asked": str(answer.traffic),
        "num_calls": replay and len(replay.stream),
        "passes": {name: _pass_document(each) for name, each in compared.items()},
        "shapes": [] if replay is None else [_shape(shape, answer, compared) for shape in range(len(replay.sizes))],
    }


def _compared(answer: StudyResult) -> dict[str, Measurement]:
    """The untuned model and the answer, as far as there are two."""
    records = {"untuned": answer.untuned, "tuned": None if answer.best == answer.untuned else answer.best}
    return {
        name: record.measurement
        for name, record in records.items()
        if record is not None and record.measurement.replay is not None
    }


def _replay(measurement: Measurement) -> Replay:
    assert measurement.replay is not None
    return measurement.replay


def _row(shape: int, answer: StudyResult, compared: dict[str, Measurement]) -> list[str]:
    told = _shape(shape, answer, compared)
    latencies_s = [each.shape_s(shape) for each in compared.values()]
    return [
        " ".join(f"{name}={size}" for name, size in told["sizes"].items()),
        percent(told["share"]),
        count(told["num_calls"]),
        *map(seconds, latencies_s),
        *([times(latencies_s[0] / latencies_s[1])] if len(latencies_s) > 1 else []),
        count(_replay(list(compared.values())[-1]).compiled_for(shape)),
    ]


def _shape(shape: int, answer: StudyResult, compared: dict[str, Measurement]) -> dict[str, Any]:
    assert answer.traffic is not None
    first = _replay(next(iter(compared.values())))
    sizes = first.sizes[shape]
    return {
        "sizes": sizes,
        "share": next(each.share for each in answer.traffic.loads if each.sizes == sizes),
        "num_calls": first.stream.count(shape),
        "latency_s": {name: each.shape_s(shape) for name, each in compared.items()},
        "num_graphs": {name: _replay(each).compiled_for(shape) for name, each in compared.items()},
    }


def _pass_document(measurement: Measurement) -> dict[str, Any]:
    replay = _replay(measurement)
    return {
        "cold_s": sum(replay.cold_s),
        "steady_s": len(replay.stream) * measurement.steady_call_s,
        "compilations": replay.num_compilations,
        "fallbacks": replay.num_fallbacks,
    }


def _spread(number: int) -> list[int]:
    """Indices of those to show, the first and the last among them."""
    if number <= NUM_SHOWN:
        return list(range(number))
    return [round(index * (number - 1) / (NUM_SHOWN - 1)) for index in range(NUM_SHOWN)]
