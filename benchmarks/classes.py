"""Does "the same program" hold? Whole recorded tables, in which every config was measured for itself.

If two configs with the same program really are one config, then latencies within a class scatter as those of one
config do from process to process, and no knob shifts them. How much one config scatters is measured here, on the
table's own workload: the config of the largest class, again and again in fresh processes.

    taskset -c 1 python benchmarks/classes.py                 all recorded tables (on the core where they were recorded)
    taskset -c 1 python benchmarks/classes.py vit_torch --repeats 12
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from autotune.measure.measurement import Measurement
from autotune.planning.models import make_workload
from autotune.space.space import SearchSpace
from autotune.trial.request import Limits
from benchmarks.cold_trials import UNTUNED, in_rounds
from benchmarks.frame import Benchmark
from benchmarks.program_classes import (
    CONFIDENCE,
    WORTH_NAMING,
    Repeats,
    Shift,
    Width,
    class_sd_of,
    equivalence_classes,
    rows_of,
    shifts_of,
    widths_of,
)  # fmt: skip
from benchmarks.record import REPOSITORY, Goal, percent, table
from benchmarks.table import TABLES

ABOUT = (
    "Recorded tables hold every config of a space, each measured for itself, with the digest of its program. "
    "*Scatter*: standard deviation of the log CPU seconds a call, within classes and between processes of one "
    "config that were run here for comparison. *Too wide*: the fastest and the slowest of a class lie further "
    f"apart than so many processes of one config do ({CONFIDENCE:.0%} for all classes of a table together). A "
    f"knob is named where its values differ within classes by {WORTH_NAMING:.0%} or more and the "
    f"{CONFIDENCE:.0%} interval excludes none."
)


@dataclass(frozen=True)
class Case:
    """A recorded table, and processes of one config."""

    file: Path
    repeats: int

    @property
    def name(self) -> str:
        return self.file.stem


@dataclass(frozen=True)
class Findings:
    """What one table says."""

    name: str
    num_configs: int
    num_programs: int
    class_sd: float | None
    """Pooled standard deviation of the logs within classes; None where no class has two configs."""
    repeats: Repeats
    widths: tuple[Width, ...]
    shifts: tuple[Shift, ...]

    def cells(self) -> list[str]:
        return [
            self.name,
            str(self.num_configs),
            str(self.num_programs),
            "-" if self.class_sd is None else percent(self.class_sd),
            f"{percent(self.repeats.sd)} ({len(self.repeats.latencies_s)})",
            f"{sum(each.offends for each in self.widths)} of {len(self.widths)}",
        ]


def findings_of(name: str, content: dict[str, Any], repeats: Repeats) -> Findings:
    """Everything that is reported of a table."""
    rows = rows_of(content)
    classes = equivalence_classes(rows)
    num_named = sum(len(each) for each in classes.values())
    return Findings(
        name=name,
        num_configs=len(rows),
        num_programs=len(classes) + len(rows) - num_named,
        class_sd=class_sd_of(classes),
        repeats=repeats,
        widths=widths_of(classes, repeats),
        shifts=shifts_of(classes),
    )


def repeat(content: dict[str, Any], num_repeats: int) -> Repeats:
    """The config of the largest class, in so many fresh processes with cold caches. Raises HarnessError if it fails."""
    config = max(equivalence_classes(rows_of(content)).values(), key=len)[0].config
    configs = {UNTUNED: SearchSpace.model_validate(content["space"]).untuned(), "repeated": config}
    model = content["workload"]
    workload = make_workload(
        str(REPOSITORY / model) if ".py:" in model else model, content["arguments"], content["framework"], "cpu", 0
    )
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home).resolve()
        trials = in_rounds(workload, configs, num_repeats, folder, Limits(), tolerance=content["tolerance"])
        return Repeats(str(config), tuple(_cpu_s(measured) for name, measured, _ in trials if name != UNTUNED))


def _cpu_s(measured: Measurement) -> float:
    """Median CPU seconds a call, as the tables have them."""
    usage = measured.samples.usage
    assert usage is not None
    return statistics.median(usage.cpu_s)


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("names", nargs="*", help="tables (default: all that are recorded)")
    parser.add_argument("--repeats", type=int, default=8, help="processes of one config (default: %(default)s)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="their folder (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """All recorded tables, or those that are named; for a smoke run three processes each."""
    names = given.names or sorted(path.stem for path in given.tables.glob("*.json"))
    return [Case(given.tables / f"{name}.json", 3 if given.quick else given.repeats) for name in names]


def run(case: Case) -> Findings:
    """Repeat one config of the table, and hold the table against that."""
    content = json.loads(case.file.read_text(encoding="utf-8"))
    return findings_of(case.name, content, repeat(content, case.repeats))


def judge(records: Sequence[Findings]) -> list[Goal]:
    """That classes and knobs hold."""
    num_classes = sum(len(each.widths) for each in records)
    num_wide, shifts = len(_wide(records)), _shifts(records)
    return [
        Goal("no class is wider than chance allows", f"{num_wide} of {num_classes} are", not num_wide),
        Goal(
            "no knob shifts latency within its classes",
            ", ".join(f"{name}: {shift.knob}" for name, shift in shifts) or "none does",
            not shifts,
        ),
    ]


def section(records: Sequence[Findings]) -> str:
    """One row a table; then the classes and knobs that do not hold."""
    lines = [f"* {name}: {width.in_words()}." for name, width in _wide(records)]
    lines += [f"* {name}: {shift.in_words()}." for name, shift in _shifts(records)]
    header = [
        "table", "configs that work", "programs", "scatter within classes", "scatter of one config (processes)",
        "classes too wide",
    ]  # fmt: skip
    parts = [ABOUT, table(header, [each.cells() for each in records]), "\n".join(lines)]
    return "\n\n".join(filter(None, parts))


def _wide(records: Sequence[Findings]) -> list[tuple[str, Width]]:
    return [(each.name, width) for each in records for width in each.widths if width.offends]


def _shifts(records: Sequence[Findings]) -> list[tuple[str, Shift]]:
    return [(each.name, shift) for each in records for shift in each.shifts if shift.is_real]


BENCHMARK = Benchmark("classes", "Same program, same speed", __doc__, Findings, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
