"""What a benchmark leaves: its records under their conditions, and a section of docs/benchmarks.md.

A section stands between two comments that name it; all else in the file is left as it is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from autotune import environment
from autotune.errors import InputError

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
    "benchmarks/knob_pairs",
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
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        load = "unknown" if self.load_1m is None else f"{self.load_1m:.2f}"
        accelerator = "" if self.device == "cpu" else f"{self.device}, driver {self.driver or 'unknown'}. "
        return (
            f"{self.started:%Y-%m-%d %H:%M} UTC. {accelerator}{self.processor}, {self.num_cores} cores, "
            f"{self.memory_bytes / 2**30:.0f} GiB, {self.system}. Python {self.python}, {packages}. "
            f"Load average before: {load}. Commit {self.commit}."
        )


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


def _git(*arguments: str) -> str:
    told = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return told.stdout.strip()
