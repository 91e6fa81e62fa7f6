"""May a search of a space that its budget holds whole stop early? Parts of the recorded tables, replayed.

A part has 13 to 24 configs: each knob keeps its default, the value that leaves the model untuned, and some others.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna

from benchmarks.frame import Benchmark
from benchmarks.record import Goal, percent, table
from benchmarks.replayed import NEAR, Question, Replay
from benchmarks.searches import own
from benchmarks.table import Table, recorded_tables

FEWEST, MOST = 13, 24
"""Configs of a part: with fewer all are tried, and 24 is the default number of trials."""
KEPT = 0.45
"""Probability that a value is part of a part."""
NUM_PARTS, NUM_SEEDS = 10, 2
MOST_DRAWS = 4000


@dataclass(frozen=True)
class Case:
    """A search on a part of a table."""

    table: str
    part: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.table}, part {self.part}, seed {self.seed}"


@dataclass(frozen=True)
class Stop:
    """Where the search ended, and by which share its best config is slower than the part's best."""

    table: str
    num_configs: int
    num_trials: int
    regret: float


def parts_of(whole: Table) -> list[Table]:
    """Different parts of a table, the same in every run."""
    generator = random.Random(0)
    drawn: dict[frozenset[object], Table] = {}
    for _ in range(MOST_DRAWS):
        part = _drawn(whole, generator)
        if FEWEST <= len(part.rows) <= MOST:
            drawn.setdefault(frozenset(part.by_config), part)
        if len(drawn) == NUM_PARTS:
            break
    return list(drawn.values())


def _drawn(whole: Table, generator: random.Random) -> Table:
    knobs = tuple(
        knob.model_copy(
            update={
                "values": tuple(
                    value for value in knob.values if value in (knob.default, knob.untuned) or generator.random() < KEPT
                )
            }
        )
        for knob in whole.space.knobs
    )
    # Validated, not copied: a space remembers what it made of its knobs.
    space = type(whole.space).model_validate({**whole.space.model_dump(), "knobs": knobs})
    configs = set(space.configs())
    return whole.model_copy(
        update={"space": space, "rows": tuple(each for each in whole.rows if each.config in configs)}
    )


@cache
def parts() -> dict[str, list[Table]]:
    """Of all recorded tables."""
    return {name: parts_of(each) for name, each in recorded_tables().items()}


def cases(given: argparse.Namespace) -> list[Case]:
    """Every part with every seed."""
    num_parts, num_seeds = (1, 1) if given.quick else (NUM_PARTS, NUM_SEEDS)
    return [
        Case(name, number, seed)
        for name, drawn in parts().items()
        for number in range(len(drawn[:num_parts]))
        for seed in range(num_seeds)
    ]


def run(case: Case) -> Stop:
    """The tool's own search, to where it stops by itself or all is tried."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    part = parts()[case.table][case.part]
    replay = Replay(Question(part), len(part.rows), goal=-1.0)
    own(replay, case.seed, stop_early=True)
    return Stop(case.table, len(part.rows), len(replay.rows), replay.regret)


def judge(records: Sequence[Stop]) -> list[Goal]:
    """No search ends with a config that is notably slower than the best."""
    num_near = sum(each.regret <= NEAR for each in records)
    worst = percent(max(each.regret for each in records))
    return [
        Goal(
            "every search ends within 2 % of the part's best config",
            f"{num_near} of {len(records)}, the worst {worst} slower",
            num_near == len(records),
        )
    ]


def section(records: Sequence[Stop]) -> str:
    """A row for each table."""
    about = (
        f"Parts of the recorded tables with {FEWEST} to {MOST} configs, which the default budget holds whole: each "
        "knob keeps its default, the value that leaves the model untuned, and some of the others, drawn at random. The "
        "search stops by its rule ([0011](decisions/0011-early-stop.md)), or when all are tried."
    )
    rows = []
    for name in dict.fromkeys(each.table for each in records):
        those = [each for each in records if each.table == name]
        rows.append(
            [
                name,
                str(len(those)),
                f"{statistics.fmean(each.num_configs for each in those):.1f}",
                f"{statistics.fmean(each.num_trials for each in those):.1f}",
                str(sum(each.num_trials < each.num_configs for each in those)),
                f"{sum(each.regret <= NEAR for each in those)} of {len(those)}",
                percent(max(each.regret for each in those)),
            ]
        )
    header = ["table", "searches", "configs", "trials", "stopped early", "within 2 %", "worst regret"]
    return f"{about}\n\n{table(header, rows)}"


BENCHMARK = Benchmark("small_spaces", "Small spaces, stopped early", __doc__, Stop, cases, run, judge, section)

if __name__ == "__main__":
    BENCHMARK.main()
