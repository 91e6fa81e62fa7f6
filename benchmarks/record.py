"""What a benchmark leaves: its records under their conditions, and a section of docs/benchmarks.md.

A section stands between two comments that name it; all else in the file is left as it is.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    "benchmarks/models",
    "benchmarks/spaces",
    "benchmarks/knob_pairs",
)
"""Where an uncommitted change makes the commit's hash a lie."""


@dataclass(frozen=True)
class Conditions:
    """Under which a benchmark ran. Taken before it starts: its own load must not be taken for the machine's."""

    started: datetime
    machine: environment.Environment
    commit: str

    @classmethod
    def now(cls) -> Conditions:
        return cls(datetime.now(UTC), environment.describe(device="cpu", variables={}), _commit())

    @classmethod
    def of(cls, data: dict[str, Any]) -> Conditions:
        """From `as_data`."""
        machine = {name: value for name, value in data.items() if name not in ("started", "commit")}
        started = datetime.fromisoformat(data["started"])
        return cls(started, environment.Environment.model_validate(machine), data["commit"])

    def as_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        started = self.started.isoformat(timespec="seconds")
        return {"started": started, "commit": self.commit, **self.machine.model_dump(mode="json")}

    def in_words(self) -> str:
        machine = self.machine
        packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
        load = "unknown" if machine.load_1m is None else f"{machine.load_1m:.2f}"
        return (
            f"{self.started:%Y-%m-%d %H:%M} UTC. {machine.processor}, {machine.num_cores} cores, "
            f"{machine.memory_bytes / 2**30:.0f} GiB, {machine.system}. Python {machine.python}, {packages}. "
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


@dataclass(frozen=True)
class Kept:
    """A run of a benchmark as it is kept: under which conditions, for how long, and the records by case."""

    command: str
    conditions: Conditions
    minutes: float = 0.0
    records: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: dict[str, Any]) -> Kept:
        return cls(data["command"], Conditions.of(data["conditions"]), data["minutes"], data.get("records", {}))

    def head(self) -> dict[str, Any]:
        """All but the records, as plain data."""
        return {"command": self.command, "minutes": self.minutes, "conditions": self.conditions.as_data()}


def read(file: Path) -> Kept:
    """The kept run of a benchmark. Raises InputError where there is none, or one of an older format."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", tip="run the benchmark first") from None
    if "records" not in data:
        raise InputError(f"{file} has no records: it was written before these were kept", tip="run the benchmark again")
    return Kept.of(data)


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


def _commit() -> str:
    commit = _git("rev-parse", "--short=12", "HEAD")
    return f"{commit} with uncommitted changes" if _git("status", "--porcelain", "--", *_MEASURED) else commit


def _git(*arguments: str) -> str:
    told = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return told.stdout.strip()
