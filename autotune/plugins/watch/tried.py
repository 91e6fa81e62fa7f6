"""What a job said of its tuned and untuned calls: the documents of its processes, in figures and in words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from autotune.answer.format import count, interval, seconds, short_interval
from autotune.answer.objectives import gain
from autotune.command_line import flag
from autotune.measure.blocks import Blocks
from autotune.measure.looks import Look
from autotune.measure.objective import Objective
from autotune.measure.statistics import Speedup
from autotune.plugins.watch.document import PROCESSES
from autotune.plugins.watch.stretches import LEAST_PAIRS
from autotune.schema import Record
from autotune.tuned.tuned_config import TunedConfig

_MOST_SHOWN = 8
"""Processes in the table, those with the most calls first."""


class SideFigures(Record):
    """Calls of one side that count."""

    num: int
    mean_s: float
    p50_s: float
    p99_s: float


class TriedModel(Record):
    """One model in one process. In place of calls there are a training job's steps; or texts, whose times are for each
    token."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    file: str
    name: str
    unit: Literal["call", "step", "text"]
    num: int
    num_first: int
    """Before the first stretch: they do not count."""
    num_left_out: int
    """Calls of stretches that do not count either."""
    num_needed: int
    """For an interval."""
    untuned: SideFigures | None
    tuned: SideFigures | None
    pairs: tuple[tuple[float, float], ...]
    """Seconds of an untuned and of a tuned call in each pair of stretches: medians, or means where shapes vary."""
    notes: tuple[str, ...]

    def is_of(self, path: str) -> bool:
        """By this file, of which a component's has its name, too."""
        return self.file == path or self.file.startswith(f"{path} (")

    @property
    def delivered(self) -> Speedup | None:
        """Untuned time over tuned time, judged by stretches; None: there were too few."""
        return Look(Blocks(self.pairs)).speedup_of(0) if len(self.pairs) >= LEAST_PAIRS else None

    @property
    def missing(self) -> str | None:
        """What is missing for an interval, as a sentence."""
        if len(self.pairs) >= LEAST_PAIRS:
            return None
        found = f"{count(self.num)} {self.unit}{'s' * (self.num != 1)}"
        if not self.num:
            return f"no {self.unit} alternated"
        if self.num < self.num_needed:
            return f"{found}; at least {count(self.num_needed)} are needed for an interval"
        return f"{found}, of which too few count for an interval"


class Process(Record):
    """What one process wrote."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    pid: int
    models: tuple[TriedModel, ...]


def read_tried(folder: Path) -> list[tuple[Process, TriedModel]]:
    """Each model in each process of a job, the one with the most calls first."""
    texts = [path.read_text() for path in sorted((folder / PROCESSES).glob("*.json"))]
    processes = [Process.model_validate_json(text) for text in texts]
    found = [(process, tried) for process in processes for tried in process.models]
    return sorted(found, key=lambda pair: -pair[1].num)


def document(
    files: Mapping[str, TunedConfig], found: list[tuple[Process, TriedModel]], status: int
) -> Mapping[str, Any]:
    """All of it, for programs. Times are in seconds."""
    return {
        "exit_status": status,
        "files": {
            path: {
                "objective": tuned.workload.objective,
                "promised": tuned.evidence.speedup and tuned.evidence.speedup.model_dump(),
            }
            for path, tuned in files.items()
        },
        "models": [
            {
                "host": process.host,
                "pid": process.pid,
                **tried.model_dump(mode="json"),
                "delivered": tried.delivered and tried.delivered.model_dump(),
                "missing": tried.missing,
            }
            for process, tried in found
        ],
    }


def lines(files: Mapping[str, TunedConfig], found: list[tuple[Process, TriedModel]]) -> Iterator[str]:
    """All of it, for people: of each file the models that alternated, by process."""
    for path, tuned in files.items():
        shown, of_file = os.path.relpath(path), [pair for pair in found if pair[1].is_of(path)]
        called = [pair for pair in of_file if pair[1].num] or of_file[:1]
        if not called:
            yield f"{shown}: no call of a model with its class and parameters was seen in any process of the job"
        for process, tried in called[:_MOST_SHOWN]:
            part = tried.file.removeprefix(path)
            promised = _promised(tuned) + (" for the whole pipeline" if part else "")
            yield f"{shown}{part}: {tried.name} in process {process.pid}"
            yield from _of_model(tried, promised)
        if len(called) > _MOST_SHOWN:
            yield f"{shown}: {len(called) - _MOST_SHOWN} more processes are in the document of {flag('as_json')}"


def _of_model(tried: TriedModel, promised: str) -> Iterator[str]:
    what = f"{tried.unit}s"
    each, rate = ("/token", "tokens/s") if tried.unit == "text" else ("", f"{what}/s")
    if tried.untuned is not None and tried.tuned is not None:
        yield f"  {'':9}{what:>10}{'p50' + each:>12}{'p99' + each:>12}{rate:>12}"
        for name, side in (("untuned", tried.untuned), ("tuned", tried.tuned)):
            times = f"{seconds(side.p50_s):>12}{seconds(side.p99_s):>12}{1 / side.mean_s:>12,.4g}"
            yield f"  {name:9}{count(side.num):>10}{times}"
        left_out = f"  left out: the first {count(tried.num_first)} {what}"
        others = f", {count(tried.num_left_out)} in which something was compiled, or that were unlike the others"
        yield f"{left_out}{others if tried.num_left_out else ''}, and the first of each stretch"
    delivered = tried.delivered
    yield f"  {tried.missing}" if delivered is None else f"  delivered {interval(delivered)}, {promised}"
    for note in tried.notes:
        yield f"  note: {note}"


def _promised(tuned: TunedConfig) -> str:
    promised, objective = tuned.evidence.speedup, Objective.parse(tuned.workload.objective)
    if promised is None:
        return "promised nothing, since the study compared nothing"
    said = short_interval(promised) if objective.quantity == "latency" else gain(objective, promised)
    return f"promised {said}"
