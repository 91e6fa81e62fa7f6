"""What each knob was worth: two configs that differ in it alone, tried on a model where it matters.

    python benchmarks/knobs.py torch                   rewrites the framework's table in docs/knobs.md

The pairs are data, `benchmarks/knob_pairs/FRAMEWORK.yaml`:

    workloads: {NAME: {model: ..., arguments: {...}}}            as on the command line
    pairs:
      - {knob: NAME, values: [A, B], workload: NAME, base: {...}}     base + A against base + B

Each config is a trial like any other, through the product's own runner and worker: a process of its own, empty caches,
outputs checked. A config that several pairs share is tried once. What is compared is CPU seconds a call: they do not
count what other programs do on the machine at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.bench.runner import Runner
from autotune.bench.trials import Trials
from autotune.config import Config, Scalar
from autotune.files import parse_as, read_yaml, write_whole
from autotune.measure.measurement import Failure, Measurement, Outcome
from autotune.planning.models import make_workload
from autotune.schema import Record
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Workload
from benchmarks.record import RESULTS, Conditions, table, with_section

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs" / "knobs.md"
PAIRS = Path(__file__).with_name("knob_pairs")

PATIENT = Limits(start=600, build=600, compile=1800, check=1800, run=600, total=3600)
"""On a busy machine a compile may take its time: nothing is judged by it here."""


class WorkloadEntry(Record):
    """A model as on the command line."""

    model: str
    arguments: dict[str, Scalar] = {}


class PairEntry(Record):
    """`base` with the knob at its first value, and at its second."""

    knob: str
    values: tuple[Scalar, Scalar]
    workload: str
    base: dict[str, Scalar]

    def configs(self) -> tuple[Config, Config]:
        one, other = (Config({**self.base, self.knob: value}) for value in self.values)
        return one, other


class PairsFile(Record):
    """All pairs of a framework. `variables` stand in every process."""

    schema_: Literal[1] = Field(alias="schema")
    framework: str
    tolerance: PositiveFloat
    untuned: dict[str, Scalar]
    variables: dict[str, str] = {}
    workloads: dict[str, WorkloadEntry]
    pairs: list[PairEntry]

    def tries(self, workload: str) -> list[Config]:
        """Every config that is tried on a workload, once, the untuned model first: it writes the reference."""
        pairs = [pair for pair in self.pairs if pair.workload == workload]
        return list(dict.fromkeys([Config(self.untuned), *(config for pair in pairs for config in pair.configs())]))


@dataclass(frozen=True)
class Figures:
    """One config over its processes: medians of seconds a call. The first process stands for all else."""

    wall_s: float
    cpu_s: float | None
    first: Measurement

    @classmethod
    def of(cls, measured: list[Measurement]) -> Figures:
        cpu_s = [statistics.median(each.samples.usage.cpu_s) for each in measured if each.samples.usage is not None]
        return cls(
            wall_s=statistics.median(each.latency.p50 for each in measured),
            cpu_s=statistics.median(cpu_s) if cpu_s else None,
            first=measured[0],
        )


Found = Figures | Failure


@dataclass(frozen=True)
class Seen:
    """A pair and what came of its two configs."""

    pair: PairEntry
    one: Found
    other: Found

    def cells(self) -> list[str]:
        base = " ".join(f"{name}={_value(value)}" for name, value in self.pair.base.items()) or "-"
        one, other = (_value(each) for each in self.pair.values)
        return [
            f"`{self.pair.knob}`", f"{one} → {other}", self.pair.workload, base,
            self._both(lambda each: f"{1e3 * each.wall_s:.3g}"),
            self._both(lambda each: "-" if each.cpu_s is None else f"{1e3 * each.cpu_s:.3g}"),
            self._gain(),
            self._both(lambda each: f"{each.first.compile_s:.1f}"),
            self._both(lambda each: _error(each.first.relative_error)),
            self._programs(),
        ]  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """As plain data: of a trial that failed its reason, else its figures."""
        return {**self.pair.model_dump(mode="json"), "one": _numbers(self.one), "other": _numbers(self.other)}

    def _both(self, figure: Callable[[Figures], str]) -> str:
        return " → ".join(figure(each) if isinstance(each, Figures) else each.reason for each in (self.one, self.other))

    def _gain(self) -> str:
        if isinstance(self.one, Failure) or isinstance(self.other, Failure):
            return "-"
        if self.one.cpu_s and self.other.cpu_s:
            return f"{self.one.cpu_s / self.other.cpu_s:.2f}"
        return f"{self.one.wall_s / self.other.wall_s:.2f}"

    def _programs(self) -> str:
        if isinstance(self.one, Failure) or isinstance(self.other, Failure):
            return "-"
        one, other = self.one.first.program, self.other.first.program
        return "unknown" if None in (one, other) else "the same" if one == other else "another"


HEADER = (
    "knob", "values", "model", "under", "ms a call", "CPU ms a call", "times", "compile s", "error", "program",
)  # fmt: skip


def load_pairs(framework: str) -> PairsFile:
    """The framework's pairs. Raises InputError with file and key."""
    path = PAIRS / f"{framework}.yaml"
    return parse_as(PairsFile, read_yaml(path), path)


def measure(file: PairsFile, folder: Path, num_processes: int) -> list[Seen]:
    """Try every config that a pair needs; outcomes that lie in `folder` already are taken as they are."""
    found: dict[tuple[str, Config], Found] = {}
    for name, entry in file.workloads.items():
        if name not in {pair.workload for pair in file.pairs}:
            continue
        with Runner(file.framework, file.variables, preload=True, log=folder / "log.txt") as runner:
            workload = make_workload(entry.model, dict(entry.arguments), file.framework, "cpu", 0)
            for config in file.tries(name):
                place = folder / name / config.fingerprint
                outcomes = [_try(runner, file, workload, config, place / str(n)) for n in range(num_processes)]
                found[name, config] = _found(outcomes)
    return [Seen(pair, *(found[pair.workload, config] for config in pair.configs())) for pair in file.pairs]


def _try(trials: Trials, file: PairsFile, workload: Workload, config: Config, path: Path) -> Outcome:
    folder = TrialFolder(path)
    done = folder.read_outcome()
    if done is None:
        request = TrialRequest(
            number=0,
            workload=workload,
            config=config,
            untuned=config == Config(file.untuned),
            tolerance=file.tolerance,
            reference=str(path.parent.parent / "reference.npz"),
            cache=str(path / "cache"),
            cold=True,
            limits=PATIENT,
            variables=file.variables,
        )
        done = trials.run(folder, request)
        folder.drop_leftovers()
    print(f"{path.parent.parent.name:12} {config}: {_in_brief(done)}", flush=True)
    return done


def _found(outcomes: list[Outcome]) -> Found:
    failed = [each for each in outcomes if isinstance(each, Failure)]
    return failed[0] if failed else Figures.of([each for each in outcomes if isinstance(each, Measurement)])


def _in_brief(outcome: Outcome) -> str:
    if isinstance(outcome, Failure):
        return f"{outcome.reason}: {outcome.error}"
    figures = Figures.of([outcome])
    cpu_ms = "-" if figures.cpu_s is None else f"{1e3 * figures.cpu_s:.3f}"
    return f"{1e3 * figures.wall_s:.3f} ms, {cpu_ms} ms of CPU, compiled in {outcome.compile_s:.1f} s"


def _numbers(found: Found) -> dict[str, Any]:
    if isinstance(found, Failure):
        return {"failure": found.reason, "error": found.error}
    first = found.first
    return {
        "wall_s": found.wall_s,
        "cpu_s": found.cpu_s,
        "compile_s": first.compile_s,
        "relative_error": first.relative_error,
        "program": first.program,
        "diagnosis": first.diagnosis.model_dump(mode="json"),
    }


def _value(value: Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _error(error: float | None) -> str:
    return "-" if error is None else f"{error:.0e}"


def section(seen: list[Seen], conditions: Conditions, framework: str, num_processes: int) -> str:
    """The framework's table with how it was made."""
    rows = [each.cells() for each in seen]
    return (
        f"{table(HEADER, rows)}\n\n"
        f"Medians; {num_processes} process(es) a config; *times* compares CPU seconds. {conditions.in_words()} "
        f"(`python benchmarks/knobs.py {framework}`; numbers: "
        f"[knobs_{framework}.json](../benchmarks/results/knobs_{framework}.json).)\n"
    )


def keep(seen: list[Seen], conditions: Conditions, text: str, framework: str) -> None:
    """The numbers as JSON, and the table into its place in docs/knobs.md."""
    numbers = {**conditions.model_dump(mode="json"), "pairs": [each.numbers() for each in seen]}
    write_whole(RESULTS / f"knobs_{framework}.json", json.dumps(numbers, indent=2) + "\n")
    docs = DOCS.read_text(encoding="utf-8") if DOCS.exists() else ""
    write_whole(DOCS, with_section(docs, f"knobs-{framework}", text))


def main() -> None:
    """Measure, and write table and numbers."""
    parser = argparse.ArgumentParser(description="What each knob was worth on a model where it matters.")
    parser.add_argument("framework", choices=sorted(path.stem for path in PAIRS.glob("*.yaml")))
    parser.add_argument("--processes", type=int, default=2, help="processes of each config (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="keep the trials here, and go on with those that are there")
    parser.add_argument("--quick", action="store_true", help="the first pair, one process, nothing written")
    given = parser.parse_args()
    os.chdir(REPOSITORY)
    file = load_pairs(given.framework)
    if given.quick:
        file, given.processes = file.model_copy(update={"pairs": file.pairs[:1]}), 1
    conditions = Conditions.now()
    with tempfile.TemporaryDirectory() as temporary:
        seen = measure(file, (given.folder or Path(temporary)).resolve(), given.processes)
    text = section(seen, conditions, given.framework, given.processes)
    print(text)
    if not given.quick:
        keep(seen, conditions, text, given.framework)


if __name__ == "__main__":
    main()
