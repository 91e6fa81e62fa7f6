"""The frame of a benchmark: its cases run one after the other, their records are kept and judged, and make a section.

For benchmarks that ask how well the tool does, with a bar that is met or missed. Such a benchmark is a module with a
docstring (the question), `cases`, `run(case) -> record`, `judge(records)`, `section(records)`, and a `Benchmark` that
names them. The frame does the rest: flags, progress, records as JSON, going on after a kill, and the text between the
markers of docs/benchmarks.md.

Not for the scripts that benchmarks start (`plain*.py`, `neighbours.py`, `*_job.py`), and not for `knobs.py`: that one
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
from dataclasses import asdict, dataclass
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
        given = self.parser().parse_args(told)
        own = _flags_of_files().parse_known_args(told)[1]
        self.execute(given, shlex.join([Path(sys.argv[0]).name, *own]))

    def parser(self) -> argparse.ArgumentParser:
        """The flags that all benchmarks have, and this one's own."""
        about = (self.question or "").partition("\n")[0]
        parser = argparse.ArgumentParser(description=about, parents=[_flags_of_files()])
        if self.options is not None:
            self.options(parser)
        parser.add_argument("--quick", action="store_true", help="a smoke run; nothing is written")
        parser.add_argument("--only", metavar="WORD", help="print the records of these cases alone")
        parser.add_argument("--report-only", action="store_true", help="run nothing: the section from kept records")
        return parser

    @errors_in_words()
    def execute(self, given: argparse.Namespace, command: str) -> None:
        """Do what the flags say, and print the section."""
        file, unfinished = (given.results / f"{self.name}{suffix}" for suffix in (".json", ".jsonl"))
        if given.report_only:
            kept = read(file)
        else:
            is_partial = given.quick or given.only is not None
            kept = self.measure(given, command, None if is_partial else unfinished)
        if given.only is not None and not given.report_only:
            print(json.dumps(kept.records, indent=2))
            return
        goals, text = self.report(kept)
        print(text)
        if given.quick:
            return
        if not given.report_only:
            numbers = {"benchmark": self.name, **kept.head(), "goals": [asdict(each) for each in goals]}
            write_whole(file, json.dumps({**numbers, "records": kept.records}, indent=2) + "\n")
            unfinished.unlink()
        docs = given.docs.read_text(encoding="utf-8") if given.docs.exists() else ""
        write_whole(given.docs, with_section(docs, self.name, text))

    def measure(self, given: argparse.Namespace, command: str, file: Path | None) -> Kept:
        """Run what is not recorded in `file` by an interrupted run; each record goes there as it comes."""
        kept = Kept(command, Conditions.now())
        if file is not None:
            kept = _resumed(file, kept, anew=given.anew)
        adapter, records, minutes = TypeAdapter(self.record), dict(kept.records), kept.minutes
        cases = [each for each in self.cases(given) if (given.only or "") in each.name]
        for number, case in enumerate(cases, start=1):
            if case.name in records:
                print(f"{self.name} {number}/{len(cases)} {case.name}: recorded before", flush=True)
                continue
            start = time.perf_counter()
            records[case.name] = adapter.dump_python(self.run(case), mode="json")
            taken_s = time.perf_counter() - start
            minutes += taken_s / 60
            print(f"{self.name} {number}/{len(cases)} {case.name}: {taken_s:.0f} s", flush=True)
            if file is not None:
                _append(file, {"case": case.name, "minutes": taken_s / 60, "record": records[case.name]})
        return Kept(command, kept.conditions, minutes, {each.name: records[each.name] for each in cases})

    def report(self, kept: Kept) -> tuple[Sequence[Goal], str]:
        """The goals, and the section with title, goals, and how it was measured."""
        adapter = TypeAdapter(self.record)
        records: list[R] = [adapter.validate_python(each) for each in kept.records.values()]
        goals = self.judge(records)
        about, _, body = self.section(records).partition("\n\n")
        numbers = f"numbers: [{self.name}.json](../benchmarks/results/{self.name}.json)"
        again = f"(`python benchmarks/{kept.command}`, {kept.minutes:.0f} minutes; {numbers}.)"
        listed = "\n".join(f"* {goal.in_words()}" for goal in goals)
        parts = (f"## {self.title}", about, listed, body, f"{kept.conditions.in_words()} {again}\n")
        return goals, "\n\n".join(filter(None, parts))


def _flags_of_files() -> argparse.ArgumentParser:
    """Those that change nothing about what is measured; a section does not name them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--anew", action="store_true", help="run all cases, also those of an interrupted run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of records (default: %(default)s)")
    parser.add_argument("--docs", type=Path, default=DOCS, help="file of the section (default: %(default)s)")
    return parser


def _resumed(file: Path, begun: Kept, *, anew: bool) -> Kept:
    """The interrupted run of the file if it is the same command on the same commit; else `begun`, and a new file."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() and not anew else []
    # A kill may have cut off the last line.
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    if told and (told[0]["command"], told[0]["conditions"]["commit"]) == (begun.command, begun.conditions.commit):
        kept = Kept.of(told[0])
        write_whole(file, "".join(line for line in lines if line.endswith("\n")))
        done = told[1:]
        records = {each["case"]: each["record"] for each in done}
        return Kept(kept.command, kept.conditions, sum(each["minutes"] for each in done), records)
    if told:
        print(f"{file} is of another command or commit: begun anew", flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(begun.head()) + "\n")
    return begun


def _append(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
