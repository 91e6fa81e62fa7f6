"""What the sections of docs/benchmarks.md are made of: conditions of a run, goals, tables, and where a section stands.

A section stands between two comments that name it; all else in the file is left as it is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune import environment

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
