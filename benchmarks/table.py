"""`Table`: every config of a space, measured once on one workload. Searches are replayed on it, so it is kept as data.

The folder `tables/` holds the recorded tables (`NAME.json`) and, as `definitions.yaml`, which ones there are.
"""

from __future__ import annotations

import math
import statistics
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, ValidationError

from autotune.config import Config, Scalar
from autotune.environment import Environment
from autotune.errors import InputError
from autotune.files import parse_as, read_yaml
from autotune.schema import Record
from autotune.space.schema import Preset
from autotune.space.space import SearchSpace

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

    @property
    def best(self) -> Row:
        """The fastest that works. Raises ValueError where none does."""
        return min((row for row in self.rows if row.works), key=lambda row: row.latency_s or 0.0)

    @property
    def num_programs(self) -> int:
        """Different programs among the configs that work; one whose program is unknown counts as different."""
        works = [row for row in self.rows if row.works]
        return len({row.program for row in works if row.program}) + sum(row.program is None for row in works)

    @property
    def program_spread(self) -> float | None:
        """By what share two processes of one program differ: the root mean square of the log ratios to their means.

        None where no program was measured twice. With k rows of a program, k - 1 of its deviations are free.
        """
        logs: dict[str, list[float]] = {}
        for row in self.rows:
            if row.program and row.latency_s:
                logs.setdefault(row.program, []).append(math.log(row.latency_s))
        several = [each for each in logs.values() if len(each) > 1]
        free = sum(len(each) - 1 for each in several)
        return math.sqrt(sum(statistics.variance(each) * (len(each) - 1) for each in several) / free) if free else None

    def as_json(self) -> str:
        """The file's content, a line for each row so that two recordings can be compared by eye."""
        head = self.model_copy(update={"rows": ()}).model_dump_json(by_alias=True, indent=1)
        rows = ",\n".join(f"  {row.model_dump_json()}" for row in self.rows)
        return head.replace('"rows": []', f'"rows": [\n{rows}\n ]') + "\n"


class Definition(Record):
    """A table to be recorded: a workload, and the space file (beside the definitions) whose every config is tried."""

    model: str
    """A bundled model, or FILE.py:FUNCTION seen from the repository's root."""
    framework: str
    arguments: dict[str, Scalar] = {}
    space: str
    preset: Preset = "exhaustive"
    tolerance: PositiveFloat
    seed: int = 0


class Definitions(Record):
    """`definitions.yaml`: the tables that there are, in the order in which they are worth recording."""

    schema_: Literal[1] = Field(1, alias="schema")
    tables: dict[str, Definition] = Field(min_length=1)


def read_definitions(path: Path = TABLES / "definitions.yaml") -> dict[str, Definition]:
    """Name -> definition. Raises InputError with file and key."""
    return parse_as(Definitions, read_yaml(path), path).tables


def read_table(path: Path) -> Table:
    """A recorded table. Raises InputError where it is missing, or is none of this version's."""
    try:
        return Table.model_validate_json(path.read_bytes())
    except OSError as error:
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.json"))) or "none"
        raise InputError(f"cannot read {path}: {error.strerror}", tip=f"tables there: {known}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise InputError(
            f"{path}: key {key}: {first['msg']}", tip=f"record it again: python benchmarks/record_table.py {path.stem}"
        ) from None


def recorded_tables(folder: Path = TABLES) -> dict[str, Table]:
    """Every table of the folder, by name. Raises InputError for a broken one."""
    return {path.stem: read_table(path) for path in sorted(folder.glob("*.json"))}
