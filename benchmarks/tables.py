"""Recorded tables, every config of a space measured once on one workload, and `Replay`, which answers from one.

`tables/NAME.json` are data: searches are run on them in no time, under constraints, and what was asked is counted.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from autotune.config import Config, Scalar
from autotune.environment import Environment
from autotune.measure.constraint import Constraint
from autotune.measure.diagnosis import Diagnosis, GraphBreak, Recompile
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Stage
from autotune.schema import Record
from autotune.space.space import SearchSpace
from benchmarks.simulated import measurement_of

TABLES = Path(__file__).with_name("tables")


class Row(Record):
    """What one config gave: a measurement, or a failure with `failure` (the reason) and `message` set."""

    model_config = ConfigDict(allow_inf_nan=False)

    config: Config
    latency_s: PositiveFloat | None = None
    """Median CPU seconds of the process in a call; None: it failed."""
    wall_s: PositiveFloat | None = None
    """Median wall seconds of a call."""
    compile_s: float | None = None
    """First call minus a steady one, wall seconds, caches empty."""
    trial_s: NonNegativeFloat
    """The whole trial with its process, wall seconds."""
    peak_memory_bytes: int | None = None
    graph_breaks: NonNegativeInt | None = None
    recompiles: NonNegativeInt | None = None
    error: float | None = None
    """Largest relative error of the outputs; None for the untuned model, which is the reference."""
    program: str | None = None
    failure: str | None = None
    message: str | None = None
    """The first line of what went wrong."""

    @property
    def works(self) -> bool:
        """It can be chosen: it ran, and its output is right within the table's tolerance."""
        return self.latency_s is not None


class Table(Record):
    """A whole space, measured. `workload` and `arguments` are the model as a user names it."""

    schema_: Literal[1] = Field(1, alias="schema")
    workload: str
    arguments: dict[str, Scalar]
    framework: str
    about: str
    """How it was measured, in words."""
    space: SearchSpace
    environment: Environment
    tolerance: PositiveFloat
    rows: tuple[Row, ...] = Field(min_length=1)

    @cached_property
    def by_config(self) -> dict[Config, Row]:
        return {row.config: row for row in self.rows}


def read_table(name: str) -> Table:
    """A recorded table, by its name."""
    return Table.model_validate_json((TABLES / f"{name}.json").read_bytes())


def recorded_tables() -> dict[str, Table]:
    """Every recorded table, by name."""
    return {path.stem: read_table(path.stem) for path in sorted(TABLES.glob("*.json"))}


NEAR = 0.02
"""A config within this share of the best feasible one is as good as found: more is below what repeats agree on."""


class Enough(Exception):  # noqa: N818  It ends a search that was successful.
    """What the search was to find is found, or its trials are used up."""


@dataclass(frozen=True)
class Question:
    """A table, and what a config must keep to be chosen."""

    table: Table
    constraints: tuple[Constraint, ...] = ()

    @cached_property
    def best_s(self) -> float:
        """Latency of the best feasible config. Raises ValueError where none is feasible."""
        return min(self.latency_s(row) for row in self.table.rows if self.is_feasible(row))

    def latency_s(self, row: Row) -> float:
        """Of a config that works. Rows of one program repeat one measurement: theirs is the median of all of them.

        Without that the best config of a table would be the luckiest of many that are the same.
        """
        return statistics.median(self._repeats[row.program]) if row.program else row.latency_s or math.inf

    @cached_property
    def _repeats(self) -> dict[str, list[float]]:
        """Program -> latencies of the configs that gave it."""
        repeats: dict[str, list[float]] = defaultdict(list)
        for row in self.table.rows:
            if row.program and row.latency_s:
                repeats[row.program].append(row.latency_s)
        return repeats

    def outcome(self, config: Config) -> Outcome:
        """As a trial of it would have brought back."""
        return _outcome(self.table.by_config[config])

    def is_feasible(self, row: Row) -> bool:
        outcome = _outcome(row)
        return isinstance(outcome, Measurement) and all(bound.violation(outcome) <= 0 for bound in self.constraints)

    def regret(self, row: Row) -> float:
        """By which share it is slower than the best; infinite where it may not be chosen."""
        return self.latency_s(row) / self.best_s - 1 if self.is_feasible(row) else math.inf


@dataclass
class Replay:
    """One search. `run` gives a config's outcome, and raises `Enough` once `goal` is reached or all trials are used.

    Every call counts as a trial: whoever runs a config twice compiles it twice.
    """

    question: Question
    num_trials: int
    goal: float = NEAR
    """Regret at which the search is over."""
    rows: list[Row] = field(default_factory=list)

    def run(self, config: Config) -> Outcome:
        row = self.question.table.by_config[config]
        self.rows.append(row)
        if self.question.regret(row) <= self.goal or len(self.rows) >= self.num_trials:
            raise Enough
        return _outcome(row)

    @property
    def is_found(self) -> bool:
        return any(self.question.regret(row) <= self.goal for row in self.rows)

    @property
    def num_distinct(self) -> int:
        """Trials, if configs that were known had not been run again."""
        return len({row.config for row in self.rows})

    @property
    def num_programs(self) -> int:
        """Different programs among them; one without a known program, a failure too, counts as different."""
        distinct = {row.config: row.program for row in self.rows}.values()
        return len({program for program in distinct if program}) + sum(program is None for program in distinct)

    @property
    def wall_s(self) -> float:
        """What the trials took when the table was recorded."""
        return sum(row.trial_s for row in self.rows)

    @property
    def regret(self) -> float:
        """Of the best one that was run."""
        return min((self.question.regret(row) for row in self.rows), default=math.inf)


def constrained(table: Table, quantity: str) -> Question | None:
    """The question with a quantity kept at or below its median over the configs that work; None if it is unknown."""
    known = sorted(value for row in table.rows if row.works and (value := getattr(row, _COLUMNS[quantity])) is not None)
    if not known or known[0] == known[-1]:
        return None
    median = known[(len(known) - 1) // 2]
    question = Question(table, (Constraint.parse(f"{quantity} <= {median:.9g}{_UNITS[quantity]}"),))
    return question if any(map(question.is_feasible, table.rows)) else None


_COLUMNS = {"compile": "compile_s", "peak_memory": "peak_memory_bytes"}
_UNITS = {"compile": "s", "peak_memory": "B"}


def _outcome(row: Row) -> Outcome:
    if row.latency_s is None:
        error = row.message or "no message was recorded"
        return Failure(reason=Reason(row.failure or Reason.COMPILE_ERROR), stage=Stage.COMPILE, error=error)
    breaks = None if row.graph_breaks is None else (GraphBreak(reason="recorded", count=row.graph_breaks),)
    recompiles = None if row.recompiles is None else (Recompile(reason="recorded"),) * row.recompiles
    return measurement_of((row.latency_s,) * 3).model_copy(
        update={
            "stage_s": {Stage.COMPILE: row.trial_s},
            "compile_s": row.compile_s or 0.0,
            "first_call_s": (row.compile_s or 0.0) + row.latency_s,
            "peak_memory_bytes": row.peak_memory_bytes,
            "relative_error": row.error,
            "program": row.program,
            "diagnosis": Diagnosis(compiled=None, graph_breaks=breaks, recompiles=recompiles),
        }
    )
