"""The frame of a benchmark: its cases run one after the other, their records are kept and judged, and make a section.

For benchmarks that ask how well the tool does, with a bar that is met or missed. Such a benchmark is a module with a
docstring (the question), `cases`, `run(case) -> record`, `judge(records)`, `section(records)`, and a `Benchmark` that
names them. The frame does the rest: flags, progress, records as JSON, and the text between the markers of
docs/benchmarks.md.

Not for the scripts that benchmarks start (`plain*.py`, `*_job.py`), and not for `knobs.py`: that one
has no bar, writes another page and keeps whole trials. `record_table.py` records tables in its own way, since they are
data for other benchmarks; only its report is one of these.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from autotune.errors import AutotuneError
from autotune.files import write_whole
from benchmarks.record import DOCS, RESULTS, Conditions, Goal, Kept, read, with_section


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

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """The command: measure, or only report, and write records and section."""
        told = sys.argv[1:] if arguments is None else list(arguments)
        self.execute(self.parser().parse_args(told), shlex.join([Path(sys.argv[0]).name, *told]))

    def parser(self) -> argparse.ArgumentParser:
        """The flags that all benchmarks have, and this one's own."""
        parser = argparse.ArgumentParser(description=(self.question or "").partition("\n")[0])
        if self.options is not None:
            self.options(parser)
        parser.add_argument("--quick", action="store_true", help="a smoke run; nothing is written")
        parser.add_argument("--report-only", action="store_true", help="run nothing: the section from kept records")
        return parser

    @errors_in_words()
    def execute(self, given: argparse.Namespace, command: str) -> None:
        """Do what the flags say, and print the section."""
        file = RESULTS / f"{self.name}.json"
        kept = read(file) if given.report_only else self.measure(given, command)
        kept.goals, text = self.report(kept)
        print(text)
        if given.quick:
            return
        if not given.report_only:
            write_whole(file, json.dumps(kept.model_dump(mode="json"), indent=2) + "\n")
        docs = DOCS.read_text(encoding="utf-8") if DOCS.exists() else ""
        write_whole(DOCS, with_section(docs, self.name, text))

    def measure(self, given: argparse.Namespace, command: str) -> Kept:
        """Run all cases, one after the other."""
        conditions, begun = Conditions.now(), time.perf_counter()
        adapter, records, cases = TypeAdapter(self.record), {}, list(self.cases(given))
        for number, case in enumerate(cases, start=1):
            start = time.perf_counter()
            records[case.name] = adapter.dump_python(self.run(case), mode="json")
            print(f"{self.name} {number}/{len(cases)} {case.name}: {time.perf_counter() - start:.0f} s", flush=True)
        minutes = (time.perf_counter() - begun) / 60
        return Kept(benchmark=self.name, command=command, minutes=minutes, conditions=conditions, records=records)

    def report(self, kept: Kept) -> tuple[list[Goal], str]:
        """The goals, and the section with title, goals, and how it was measured."""
        adapter = TypeAdapter(self.record)
        records: list[R] = [adapter.validate_python(each) for each in kept.records.values()]
        goals = list(self.judge(records))
        about, _, body = self.section(records).partition("\n\n")
        numbers = f"numbers: [{self.name}.json](../benchmarks/results/{self.name}.json)"
        again = f"(`python benchmarks/{kept.command}`, {kept.minutes:.0f} minutes; {numbers}.)"
        listed = "\n".join(f"* {goal.in_words()}" for goal in goals)
        parts = (f"## {self.title}", about, listed, body, f"{kept.conditions.in_words()} {again}\n")
        return goals, "\n\n".join(filter(None, parts))
