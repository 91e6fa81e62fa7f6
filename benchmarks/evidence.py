"""What an evidence script is made of: cases, records of them, goals, and a section of docs/benchmarks.md.

A script is a module with a docstring (the question), `cases`, `run(case) -> record`, `judge(records)`,
`section(records)`, and a `Benchmark` that names them. This module does the rest: flags, progress, records as JSON under
the conditions in which they were taken, and the text between the two comments that name the section; all else in the
page is left as it is.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from autotune import environment
from autotune.errors import AutotuneError, InputError
from autotune.files import write_whole

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs" / "benchmarks.md"
RESULTS = REPOSITORY / "benchmarks" / "results"

_MEASURED = (
    "autotune",
    "search_spaces",
    "cli.py",
    "benchmarks/*.py",
    "benchmarks/on_device",
    "benchmarks/models",
    "benchmarks/spaces",
)
"""Where an uncommitted change makes the commit's hash a lie."""


class Conditions(environment.Environment):
    """Under which a benchmark ran. Taken before it starts: its own load must not be taken for the machine's."""

    started: datetime
    commit: str

    @classmethod
    def now(cls) -> Conditions:
        machine = environment.describe(device="cpu", variables={}).model_dump()
        return cls(started=datetime.now(UTC).replace(microsecond=0), commit=commit(), **machine)

    def in_words(self) -> str:
        """Date, processor, cores, framework and commit; the rest stands with the records."""
        frameworks = [f"{name} {self.packages[name]}" for name in ("torch", "mindspore") if name in self.packages]
        accelerator = "" if self.device == "cpu" else f", {self.device} (driver {self.driver or 'unknown'})"
        on = f"{self.processor}, {self.num_cores} cores{accelerator}"
        return ", ".join([f"{self.started:%Y-%m-%d}", on, *frameworks, f"commit {self.commit}"])


@dataclass(frozen=True)
class Goal:
    """What was hoped for, what was found, and whether that is it."""

    text: str
    found: str
    met: bool

    def in_words(self) -> str:
        return f"**{'Met' if self.met else 'Fell short'}**: {self.text}. Found: {self.found}."


class Kept(BaseModel):
    """A run of a benchmark as it is kept: under which conditions, for how long, and the records by case."""

    benchmark: str
    command: str
    minutes: float
    conditions: Conditions
    goals: list[Goal] = []
    """For readers of the file; a report judges the records again."""
    records: dict[str, Any]


def read(file: Path) -> Kept:
    """The kept run of a benchmark. Raises InputError where there is none, or one of an older format."""
    try:
        return Kept.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", tip="run the benchmark first") from None
    except ValidationError:
        raise InputError(f"{file} was written by an older version", tip="run the benchmark again") from None


def with_section(text: str, name: str, section: str) -> str:
    """`text` with the section of this name replaced, or added at its end. Raises ValueError if a marker is alone."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    framed = f"{begin}{section}{end}"
    if begin not in text and end not in text:
        return f"{text.rstrip()}\n\n{framed}".lstrip()
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"only one of the two markers of section {name!r} is there, or they are swapped")
    return f"{before}{framed}{after}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """A share as people read it: 0.015 is `1.5 %`."""
    return f"{100 * share:.1f} %"


def commit() -> str:
    """Of this checkout; a lent machine may have neither git nor the repository's history."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return f"{head} with uncommitted changes" if _git("status", "--porcelain", "--", *_MEASURED) else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def is_of_this_code(of: str) -> bool:
    """Whether a record that was taken at this commit is one of the code as it is now."""
    now = commit()
    return of == now and "uncommitted" not in now


def by_commit(commits: Iterable[str]) -> str:
    """Which code the records are of; empty where all are of one commit."""
    counted = Counter(commits)
    words = ", ".join(f"{count} at {name}" for name, count in counted.most_common())
    return f"Records by commit: {words}." if len(counted) > 1 else ""


def _git(*arguments: str) -> str:
    told = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return told.stdout.strip()


@contextmanager
def errors_in_words() -> Iterator[None]:
    """An error that the operator can mend is told with its tip, and not as a traceback."""
    try:
        yield
    except AutotuneError as error:
        print(f"error: {error}\ntip: {error.tip or 'see above'}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


class Case(Protocol):
    """One thing to measure. It holds all that `run` needs to know; its name is the key of its record."""

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Case)
R = TypeVar("R")


@dataclass(frozen=True)
class Benchmark(Generic[C, R]):
    """A benchmark's parts. `section` returns Markdown; the goals are put behind its first paragraph."""

    name: str
    """Of the section and of the file with its records."""
    title: str
    question: str | None
    """The module's docstring; its first line is the help."""
    record: Any
    """The type of the records, a dataclass or a union of dataclasses: read from JSON as pydantic does."""
    cases: Callable[[argparse.Namespace], Iterable[C]]
    run: Callable[[C], R]
    judge: Callable[[Sequence[R]], Sequence[Goal]]
    section: Callable[[Sequence[R]], str]
    options: Callable[[argparse.ArgumentParser], object] | None = None
    holds: Callable[[R], bool] | None = None
    """For a benchmark that takes hours: whether a record of an earlier run still holds, so that its case is not run
    again. Each record is kept as soon as it is there, and those of cases that are not asked for stay."""

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The command: measure, or only report, and write records and section."""
        told = sys.argv[1:] if arguments is None else list(arguments)
        self.execute(self.parser().parse_args(told), shlex.join([Path(sys.argv[0]).name, *told]))

    def parser(self) -> argparse.ArgumentParser:
        """The flags that all benchmarks have, and this one's own."""
        parser = argparse.ArgumentParser(description=(self.question or "").partition("\n")[0])
        if self.options is not None:
            self.options(parser)
        if self.holds is not None:
            parser.add_argument("--again", action="store_true", help="run again what was measured at this commit, too")
        parser.add_argument("--quick", action="store_true", help="a smoke run; nothing is written")
        parser.add_argument("--report-only", action="store_true", help="run nothing: the section from kept records")
        return parser

    @errors_in_words()
    def execute(self, given: argparse.Namespace, command: str) -> None:
        """Do what the flags say, and print the section."""
        kept = read(self.file) if given.report_only else self.measure(given, command)
        kept.goals, text = self.report(kept)
        print(text)
        if given.quick:
            return
        if not given.report_only:
            self._write(kept)
        docs = DOCS.read_text(encoding="utf-8") if DOCS.exists() else ""
        write_whole(DOCS, with_section(docs, self.name, text))

    @property
    def file(self) -> Path:
        """Where the records are kept."""
        return RESULTS / f"{self.name}.json"

    def measure(self, given: argparse.Namespace, command: str) -> Kept:
        """Run all cases that no kept record answers, one after the other."""
        adapter, cases = TypeAdapter(self.record), list(self.cases(given))
        keeps = self.holds is not None and not given.quick
        earlier = read(self.file) if keeps and self.file.exists() else None
        records = dict(earlier.records) if earlier else {}
        done = [case for case in cases if case.name in records and not given.again]
        done = [case for case in done if self._holds(adapter.validate_python(records[case.name]))]
        kept = Kept(
            benchmark=self.name,
            command=command,
            minutes=earlier.minutes if earlier and done else 0.0,
            conditions=Conditions.now(),
            records=records,
        )
        for number, case in enumerate(cases, start=1):
            if case in done:
                continue
            start = time.perf_counter()
            kept.records[case.name] = adapter.dump_python(self.run(case), mode="json")
            seconds = time.perf_counter() - start
            kept.minutes += seconds / 60
            print(f"{self.name} {number}/{len(cases)} {case.name}: {seconds:.0f} s", flush=True)
            if keeps:
                self._write(kept)
        return kept

    def _holds(self, record: R) -> bool:
        return self.holds is not None and self.holds(record)

    def _write(self, kept: Kept) -> None:
        write_whole(self.file, json.dumps(kept.model_dump(mode="json"), indent=2) + "\n")

    def report(self, kept: Kept) -> tuple[list[Goal], str]:
        """The goals, and the section with title, goals, and how it was measured."""
        adapter = TypeAdapter(self.record)
        records: list[R] = [adapter.validate_python(record) for record in kept.records.values()]
        goals = list(self.judge(records))
        about, _, body = self.section(records).partition("\n\n")
        numbers = f"[{self.name}.json](../benchmarks/results/{self.name}.json)"
        command = f"`python benchmarks/{kept.command}`, {kept.minutes:.0f} minutes"
        taken = f"{kept.conditions.in_words()}: {command}, {numbers}.\n"
        listed = "\n".join(f"* {goal.in_words()}" for goal in goals)
        parts = (f"## {self.title}", about, listed, body, taken)
        return goals, "\n\n".join(filter(None, parts))
