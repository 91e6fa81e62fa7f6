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
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scipy import stats

from autotune.config import Config, Scalar
from autotune.errors import HarnessError
from autotune.measure.measurement import Measurement
from autotune.planning.models import make_workload
from autotune.space.space import SearchSpace
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.runner.runner import Runner
from benchmarks.record import REPOSITORY, Conditions, Goal, Report, percent, publish, table

TABLES = Path(__file__).with_name("tables")
CONFIDENCE = 0.99
"""That a class is not called too wide by chance, for all classes of a table together; and of each knob's interval."""
WORTH_NAMING = 0.01
"""A knob that shifts latency within its classes by less is not worth a line."""


@dataclass(frozen=True)
class Row:
    """A config that works: median CPU seconds a call in a process of its own, and its program."""

    config: Config
    latency_s: float
    compile_s: float
    trial_s: float
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
    all_trials_s: float
    spared_compile_s: float
    """Cold compiles of configs that differ from an earlier one in runtime knobs alone."""

    def cells(self) -> list[str]:
        return [
            self.name,
            str(self.num_configs),
            str(self.num_programs),
            "-" if self.class_sd is None else percent(self.class_sd),
            f"{percent(self.repeats.sd)} ({len(self.repeats.latencies_s)})",
            f"{sum(each.offends for each in self.widths)} of {len(self.widths)}",
            f"{self.spared_compile_s:.0f} s ({percent(self.spared_compile_s / self.all_trials_s)})",
        ]


def rows_of(content: dict[str, Any]) -> list[Row]:
    """The configs that work, in the table's order."""
    return [
        Row(Config(row["config"]), row["latency_s"], row["compile_s"], row["trial_s"], row["program"])
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


def spared_compile_s(rows: Sequence[Row], space: SearchSpace) -> float:
    """Compile seconds of all configs whose compiled part another one before them has."""
    seen: set[Config] = set()
    spared_s = 0.0
    for row in rows:
        compiled = space.compiled_part(row.config)
        spared_s += row.compile_s if compiled in seen else 0.0
        seen.add(compiled)
    return spared_s


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
        all_trials_s=sum(row["trial_s"] for row in content["rows"]),
        spared_compile_s=spared_compile_s(rows, SearchSpace.model_validate(content["space"])),
    )


def repeat(content: dict[str, Any], num_repeats: int) -> Repeats:
    """The config of the largest class, in so many fresh processes with cold caches. Raises HarnessError if it fails."""
    classes = equivalence_classes(rows_of(content))
    config = max(classes.values(), key=len)[0].config
    space = SearchSpace.model_validate(content["space"])
    model = content["workload"]
    workload = make_workload(
        str(REPOSITORY / model) if ".py:" in model else model, content["arguments"], content["framework"], "cpu", 0
    )
    with (
        tempfile.TemporaryDirectory() as home,
        Runner(workload.framework, {}, preload=True, log=Path(home) / "log") as runner,
    ):
        folder = TrialFolder((Path(home) / "trial").resolve())

        def run(config: Config) -> Measurement:
            request = TrialRequest(
                number=0,
                workload=workload,
                config=config,
                untuned=config == space.untuned(),
                tolerance=content["tolerance"],
                reference=str(Path(home) / "reference.npz"),
                cache=str(folder.path / "cache"),
                cold=True,
            )
            outcome = runner.run(folder, request)
            if not isinstance(outcome, Measurement):
                raise HarnessError(f"{config} failed: {outcome.error}")
            return outcome

        run(space.untuned())
        measured = [run(config) for _ in range(num_repeats)]
    return Repeats(
        config=str(config),
        latencies_s=tuple(_cpu_s(each) for each in measured),
    )


def _cpu_s(measured: Measurement) -> float:
    """Median CPU seconds a call, as the tables have them."""
    usage = measured.samples.usage
    assert usage is not None
    return statistics.median(usage.cpu_s)


def report_of(findings: Sequence[Findings]) -> Report:
    """One row a table; then the classes and knobs that do not hold."""
    wide = [(each.name, width) for each in findings for width in each.widths if width.offends]
    shifts = [(each.name, shift) for each in findings for shift in each.shifts if shift.is_real]
    lines = [f"* {name}: {width.in_words()}." for name, width in wide]
    lines += [f"* {name}: {shift.in_words()}." for name, shift in shifts]
    header = [
        "table", "configs that work", "programs", "scatter within classes", "scatter of one config (processes)",
        "classes too wide", "compiling spared",
    ]  # fmt: skip
    num_classes = sum(len(each.widths) for each in findings)
    return Report(
        name="classes",
        title="Same program, same speed",
        about=(
            "Recorded tables hold every config of a space, each measured for itself, with the digest of its program. "
            "*Scatter*: standard deviation of the log CPU seconds a call, within classes and between processes of one "
            "config that were run here for comparison. *Too wide*: the fastest and the slowest of a class lie further "
            f"apart than so many processes of one config do ({CONFIDENCE:.0%} for all classes of a table together). A "
            f"knob is named where its values differ within classes by {WORTH_NAMING:.0%} or more and the "
            f"{CONFIDENCE:.0%} interval excludes none. *Compiling spared*: cold compiles of configs that differ from "
            "an earlier one in runtime knobs alone, a warm start being taken for free, as a share of all trials."
        ),
        goals=[
            Goal("no class is wider than chance allows", f"{len(wide)} of {num_classes} are", not wide),
            Goal(
                "no knob shifts latency within its classes",
                ", ".join(f"{name}: {shift.knob}" for name, shift in shifts) or "none does",
                not shifts,
            ),
        ],
        body="\n\n".join([table(header, [each.cells() for each in findings]), *(["\n".join(lines)] if lines else [])]),
        results={"tables": [_plain(each) for each in findings]},
    )


def _plain(findings: Findings) -> dict[str, Any]:
    widths = [{**asdict(each), "fastest": str(each.fastest), "slowest": str(each.slowest)} for each in findings.widths]
    return {**asdict(findings), "widths": widths}


def main() -> None:
    """All recorded tables, or those that are named."""
    parser = argparse.ArgumentParser(description="Do configs with the same program run equally fast?")
    parser.add_argument("names", nargs="*", help="tables (default: all that are recorded)")
    parser.add_argument("--repeats", type=int, default=8, help="processes of one config (default: %(default)s)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="their folder (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="three processes, nothing written")
    given = parser.parse_args()

    conditions = Conditions.now()
    names = given.names or sorted(path.stem for path in given.tables.glob("*.json"))
    findings = []
    for name in names:
        content = json.loads((given.tables / f"{name}.json").read_text(encoding="utf-8"))
        findings.append(findings_of(name, content, repeat(content, 3 if given.quick else given.repeats)))
        print(" | ".join(findings[-1].cells()), flush=True)
    publish(report_of(findings), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
