"""Configs that compile to the same program: how far their latencies lie apart, and how far they may by chance."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from scipy import stats

from autotune.config import Config, Scalar
from benchmarks.record import percent

CONFIDENCE = 0.99
"""That a class is not called too wide by chance, for all classes of a table together; and of each knob's interval."""
WORTH_NAMING = 0.01
"""A knob that shifts latency within its classes by less is not worth a line."""


@dataclass(frozen=True)
class Row:
    """A config that works: median CPU seconds a call in a process of its own, and its program."""

    config: Config
    latency_s: float
    program: str | None


@dataclass(frozen=True)
class Repeats:
    """One config in several fresh processes: median CPU seconds a call of each."""

    config: str
    latencies_s: tuple[float, ...]

    @property
    def sd(self) -> float:
        """Standard deviation of the logs: the share by which single processes of one config differ."""
        return statistics.stdev(math.log(each) for each in self.latencies_s)

    @property
    def num_degrees(self) -> int:
        return len(self.latencies_s) - 1


@dataclass(frozen=True)
class Shift:
    """A knob whose values differ within classes: mean log ratio of pairs that differ in it alone, with its interval."""

    knob: str
    values: tuple[Scalar, Scalar]
    num_pairs: int
    mean: float
    low: float
    high: float

    @property
    def is_real(self) -> bool:
        return not self.low <= 0 <= self.high and abs(self.mean) >= WORTH_NAMING

    def in_words(self) -> str:
        first, second = self.values
        return (
            f"{self.knob}={first} over {self.knob}={second}: {100 * self.mean:+.1f} % "
            f"({100 * self.low:+.1f} to {100 * self.high:+.1f} %, {self.num_pairs} pairs)"
        )


@dataclass(frozen=True)
class Width:
    """How far a class's latencies lie apart, and how far they may by chance (logs)."""

    program: str
    num_configs: int
    found: float
    allowed: float
    fastest: Config
    slowest: Config

    @property
    def offends(self) -> bool:
        return self.found > self.allowed

    def in_words(self) -> str:
        knobs = ", ".join(sorted(self.fastest.differing(self.slowest)))
        return (
            f"{self.num_configs} configs of program {self.program[:8]} lie {percent(math.expm1(self.found))} apart, by "
            f"chance at most {percent(math.expm1(self.allowed))}; the fastest and the slowest differ in: {knobs}"
        )


def rows_of(content: dict[str, Any]) -> list[Row]:
    """The configs that work, in the table's order."""
    return [
        Row(Config(row["config"]), row["latency_s"], row["program"])
        for row in content["rows"]
        if row["latency_s"] is not None
    ]


def equivalence_classes(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Program -> its configs; those without a program are left out."""
    classes: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.program is not None:
            classes[row.program].append(row)
    return dict(classes)


def class_sd_of(classes: dict[str, list[Row]]) -> float | None:
    """Pooled standard deviation of the log latencies within classes."""
    several = [[math.log(row.latency_s) for row in rows] for rows in classes.values() if len(rows) > 1]
    if not several:
        return None
    squares = sum((len(logs) - 1) * statistics.variance(logs) for logs in several)
    return math.sqrt(squares / sum(len(logs) - 1 for logs in several))


def widths_of(classes: dict[str, list[Row]], repeats: Repeats) -> tuple[Width, ...]:
    """Each class's range against the studentised range of as many processes of one config.

    The chance of an offence is shared by all classes of the table (Bonferroni).
    """
    several = {program: rows for program, rows in classes.items() if len(rows) > 1}
    widths = []
    for program, rows in several.items():
        ordered = sorted(rows, key=lambda row: row.latency_s)
        chance = 1 - (1 - CONFIDENCE) / len(several)
        allowed = repeats.sd * float(stats.studentized_range.ppf(chance, len(rows), repeats.num_degrees))
        found = math.log(ordered[-1].latency_s / ordered[0].latency_s)
        widths.append(Width(program, len(rows), found, allowed, ordered[0].config, ordered[-1].config))
    return tuple(sorted(widths, key=lambda each: each.found / each.allowed, reverse=True))


def shifts_of(classes: dict[str, list[Row]], fewest_pairs: int = 3) -> tuple[Shift, ...]:
    """For every two values of a knob that occur in one class: how latency differs between them.

    A digest that leaves something out shows here: the same program, and yet one value is always slower.
    """
    logs: dict[tuple[str, Scalar, Scalar], list[float]] = defaultdict(list)
    for rows in classes.values():
        for first, second in combinations(rows, 2):
            differing = first.config.differing(second.config)
            if len(differing) == 1:
                (knob,) = differing
                low, high = sorted((first, second), key=lambda row: json.dumps(row.config.get(knob)))
                logs[knob, low.config.get(knob), high.config.get(knob)].append(math.log(low.latency_s / high.latency_s))
    return tuple(_shift(knob, (a, b), found) for (knob, a, b), found in logs.items() if len(found) >= fewest_pairs)


def _shift(knob: str, values: tuple[Scalar, Scalar], logs: Sequence[float]) -> Shift:
    mean = statistics.mean(logs)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Shift(knob, values, len(logs), mean, mean - half, mean + half)
