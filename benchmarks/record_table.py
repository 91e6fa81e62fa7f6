"""Record tables: every config of a space on one workload, each in a fresh process with cold caches.

    taskset -c 1 python benchmarks/record_table.py                  all that definitions.yaml names and are not there
    taskset -c 1 python benchmarks/record_table.py vit_torch        this one
    taskset -c 1 python benchmarks/record_table.py --sample 4       four configs of each, to estimate how long it takes
    taskset -c 1 python benchmarks/record_table.py NAME --stop-after 60     an hour of it; the same command goes on
    taskset -c 1 python benchmarks/record_table.py NAME --part 1/2          every second config, others elsewhere
    python benchmarks/record_table.py --report                      what the recorded tables hold, as a section

A killed recording goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.errors import InputError
from benchmarks.frame import Benchmark, errors_in_words
from benchmarks.record import Goal, percent
from benchmarks.record import table as table_of
from benchmarks.recording import Part, Recording, estimate, in_ms, record_table
from benchmarks.table import TABLES, Table, read_definitions, read_table

GOAL_TABLES, GOAL_CONFIGS = 4, 48
ABOUT = (
    "Every config of a part of each framework's space, measured once in a fresh process with cold compile "
    "caches; the tables are data ([tables](../benchmarks/README.md)), and searches are replayed on them. "
    "Milliseconds are CPU time of a call on one core, speed-ups are against the untuned model. Configs that "
    "compile to the same program are two measurements of one thing: how far these differ is the table's noise."
)


@dataclass(frozen=True)
class Case:
    """A recorded table."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.stem


@dataclass(frozen=True)
class Summary:
    """What is in a table: how many configs and programs, and what the best ones are worth. Seconds are of a call."""

    name: str
    framework: str
    num_configs: int
    num_programs: int
    num_working: int
    num_near_best: int
    recorded_s: float
    untuned_s: float
    default_s: float | None
    best_s: float
    best_accurate_s: float
    worst_s: float
    program_spread: float | None

    @classmethod
    def of(cls, name: str, table: Table) -> Summary:
        worked = [row.latency_s for row in table.rows if row.latency_s is not None]
        accurate = [row.latency_s for row in table.rows if row.latency_s is not None and (row.error or 0.0) <= 1e-3]
        return cls(
            name=name,
            framework=table.framework,
            num_configs=len(table.rows),
            num_programs=table.num_programs,
            num_working=len(worked),
            num_near_best=sum(each <= 1.02 * min(worked) for each in worked),
            recorded_s=sum(row.trial_s for row in table.rows),
            untuned_s=table.by_config[table.space.untuned()].latency_s or math.nan,
            default_s=table.by_config[table.space.default()].latency_s,
            best_s=min(worked),
            best_accurate_s=min(accurate),
            worst_s=max(worked),
            program_spread=table.program_spread,
        )

    def cells(self) -> list[str]:
        latencies_s = (self.default_s, self.best_s, self.best_accurate_s, self.worst_s)
        return [
            self.name, str(self.num_configs), str(self.num_working), str(self.num_programs),
            f"{self.recorded_s / 60:.0f}", in_ms(self.untuned_s),
            *(_speedup(self.untuned_s, each) for each in latencies_s),
            str(self.num_near_best), "-" if self.program_spread is None else percent(self.program_spread),
        ]  # fmt: skip


def recordings(names: list[str], folder: Path, part: Part | None = None) -> Iterator[Recording]:
    """The named definitions, or all of them in their order. Raises InputError for an unknown name."""
    definitions = read_definitions()
    for name in names or definitions:
        if name not in definitions:
            raise InputError(f"no table {name!r} is defined", tip=f"there are: {', '.join(definitions)}")
        yield Recording(name, definitions[name], TABLES / "spaces", folder, part=part)


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this script alone."""
    parser.add_argument("names", nargs="*", help="tables of definitions.yaml (default: all that are not there yet)")
    parser.add_argument("--output", type=Path, default=TABLES, help="folder of the tables (default: %(default)s)")
    parser.add_argument("--sample", type=int, metavar="N", help="only N configs of each, and how long all would take")
    parser.add_argument(
        "--stop-after", type=float, metavar="MINUTES", default=math.inf,
        help="begin no config after that; the same command goes on",
    )  # fmt: skip
    parser.add_argument(
        "--part", type=Part.parse, metavar="K/N",
        help="of each table every N-th config alone; without it, what the parts leave and the table itself",
    )  # fmt: skip
    parser.add_argument("--report", action="store_true", help="record nothing; write the section about what is there")


def cases(given: argparse.Namespace) -> list[Case]:
    """The tables that are there."""
    return [Case(file) for file in sorted(given.output.glob("*.json"))]


def run(case: Case) -> Summary:
    """Read it."""
    return Summary.of(case.name, read_table(case.file))


def judge(records: Sequence[Summary]) -> list[Goal]:
    """That there are enough tables, and large ones."""
    whole = [each for each in records if each.num_configs >= GOAL_CONFIGS]
    frameworks = {each.framework for each in whole}
    return [
        Goal(
            f"at least {GOAL_TABLES} workloads in both frameworks, with at least {GOAL_CONFIGS} configs each",
            f"{len(whole)} tables of {' and '.join(sorted(frameworks))}",
            met=len(whole) >= GOAL_TABLES and len(frameworks) >= 2,
        )
    ]


def section(records: Sequence[Summary]) -> str:
    """One row for each table."""
    header = [
        "table", "configs", "work", "programs", "minutes", "untuned", "default", "best", "best of error <= 1e-3",
        "worst", "within 2 % of the best", "one program differs by",
    ]  # fmt: skip
    return f"{ABOUT}\n\n{table_of(header, [each.cells() for each in records])}"


BENCHMARK = Benchmark(
    "record_table", "Exhaustive truth: whole spaces, measured", __doc__, Summary, cases, run, judge, section, options
)


@errors_in_words()
def main() -> None:
    """Record the named tables, or all that are not there yet; or write the section about them."""
    given = BENCHMARK.parser().parse_args()
    if given.report or given.report_only:
        BENCHMARK.execute(given, "record_table.py --report")
        return
    begun = time.monotonic()
    for recording in recordings(given.names, given.output, given.part):
        if given.sample:
            _show_estimate(recording, given.sample)
        elif given.names or not recording.table_file.exists():
            table = record_table(recording, given.stop_after - (time.monotonic() - begun) / 60)
            if table is not None:
                _show(recording.name, table)
            elif recording.part is not None and recording.is_whole():
                print(f"{recording.name}: part {recording.part} is recorded", flush=True)
            else:
                print(f"{recording.name}: not whole yet; the same command goes on", flush=True)
                return


def _speedup(untuned_s: float, latency_s: float | None) -> str:
    return "-" if latency_s is None else f"{untuned_s / latency_s:.2f}x"


def _show_estimate(recording: Recording, num_configs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = Recording(recording.name, recording.definition, recording.spaces, Path(folder))
        seconds = estimate(elsewhere, num_configs)
    print(f"{recording.name}: {len(recording.order)} configs, about {seconds / 60:.0f} minutes", flush=True)


def _show(name: str, table: Table) -> None:
    worked = [row for row in table.rows if row.works]
    best, minutes = table.best, sum(row.trial_s for row in table.rows) / 60
    untuned = table.by_config[table.space.untuned()]
    print(
        f"{name}: {len(table.rows)} configs in {minutes:.0f} minutes, {len(worked)} work, {table.num_programs} "
        f"programs; untuned {in_ms(untuned.latency_s)}, best {in_ms(best.latency_s)}: {best.config}",
        flush=True,
    )


if __name__ == "__main__":
    main()
