"""Traffic: each shape with what it takes, untuned and tuned, and what the first pass cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from autotune.answer.content import Section, Table
from autotune.answer.format import count, percent, seconds, times
from autotune.measure.measurement import Measurement, Replay
from autotune.tuning.events import Event, SearchStarted

NUM_SHOWN = 12
"""Shapes in a table; of more, so many at equal distances."""


class TrafficSection(Section):
    """The shapes that were called, of which a long list is thinned out."""

    place = 62
    name, title = "traffic", "Shapes of the traffic"

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        if isinstance(event, SearchStarted) and event.traffic is not None:
            yield f"shapes {event.traffic}, replayed in each trial; objective: {event.objective.name}"

    @cached_property
    def _compared(self) -> dict[str, Measurement]:
        """The untuned model and the answer, as far as there are two."""
        answer = self.answer
        records = {"untuned": answer.untuned, "tuned": None if answer.best == answer.untuned else answer.best}
        return {
            name: record.measurement
            for name, record in records.items()
            if record is not None and record.measurement.replay is not None
        }

    def tables(self) -> list[Table]:
        traffic, compared = self.answer.manifest.workload.traffic, self._compared
        if traffic is None or not compared:
            return []
        replay = _replay(next(iter(compared.values())))
        shown = _spread(len(replay.sizes))
        thinned = "" if len(shown) == len(replay.sizes) else f"; {len(shown)} of {len(replay.sizes)} shapes shown"
        return [
            Table(
                f"traffic {traffic}, a stream of {len(replay.stream)} calls{thinned}:",
                ("shape", "share", "calls", *compared, *(["x"] if len(compared) > 1 else []), "compiled"),
                [self._row(shape) for shape in shown],
                frozenset({"shape"}),
                [f"{name:<11} {pass_line(measured)}" for name, measured in compared.items()],
            )
        ]

    def _row(self, shape: int) -> list[str]:
        told = self._shape(shape)
        latencies_s = list(told["latency_s"].values())
        return [
            " ".join(f"{name}={size}" for name, size in told["sizes"].items()),
            percent(told["share"]),
            count(told["num_calls"]),
            *map(seconds, latencies_s),
            *([times(latencies_s[0] / latencies_s[1])] if len(latencies_s) > 1 else []),
            count(list(told["num_graphs"].values())[-1]),
        ]

    def _shape(self, shape: int) -> dict[str, Any]:
        assert self.answer.manifest.workload.traffic is not None
        first = _replay(next(iter(self._compared.values())))
        sizes = first.sizes[shape]
        return {
            "sizes": sizes,
            "share": next(load.share for load in self.answer.manifest.workload.traffic.loads if load.sizes == sizes),
            "num_calls": first.stream.count(shape),
            "latency_s": {
                name: _replay(measured).shape_s(shape, measured.samples) for name, measured in self._compared.items()
            },
            "num_graphs": {name: _replay(measured).compiled_for(shape) for name, measured in self._compared.items()},
        }

    def document(self) -> dict[str, Any]:
        traffic = self.answer.manifest.workload.traffic
        if traffic is None:
            return {"traffic": None}
        replay = next(map(_replay, self._compared.values()), None)
        return {
            "traffic": {
                "asked": str(traffic),
                "num_calls": replay and len(replay.stream),
                "passes": {name: _pass_document(measured) for name, measured in self._compared.items()},
                "shapes": [] if replay is None else [self._shape(shape) for shape in range(len(replay.sizes))],
            }
        }


def how_compiled(figures: Measurement) -> str:
    """Compiled for how long, or with whose caches; for the untuned model, how long its first call took."""
    replay = figures.replay
    if figures.diagnosis.compiled is False and replay is None:
        return f"first call {seconds(figures.first_call_s)}"
    payer = "" if figures.compiled_from is None else f" by trial {figures.compiled_from}"
    graphs = "" if replay is None or replay.num_compilations is None else f" {count(replay.num_compilations)} graphs"
    eager = ", then left to eager execution" if replay is not None and replay.num_fallbacks else ""
    return f"compiled{graphs} in {seconds(figures.compile_s)}{payer}{eager}"


def pass_lines(measurement: Measurement) -> list[str]:
    """What a trial that is run again has to say of its stream, if it has one."""
    return [] if measurement.replay is None else [pass_line(measurement)]


def pass_line(measurement: Measurement) -> str:
    """What the stream cost, e.g. `first pass 21.3 s, then 1.27 s; 8 graphs compiled; 1 function left to eager`."""
    replay, cost = _replay(measurement), _pass_document(measurement)
    told = [f"first pass {seconds(cost['cold_s'])}, then {seconds(cost['steady_s'])}"]
    if replay.num_compilations is not None:
        told.append(f"{count(replay.num_compilations)} graphs compiled")
    if replay.num_fallbacks:
        functions = "1 function" if replay.num_fallbacks == 1 else f"{replay.num_fallbacks} functions"
        told.append(f"the limit of compilations was hit and {functions} left to eager execution")
    return "; ".join(told)


def _replay(measurement: Measurement) -> Replay:
    assert measurement.replay is not None
    return measurement.replay


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
