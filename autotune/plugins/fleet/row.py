"""`Row`: one model of a fleet, as the table, the page, the JSON document and JUnit tell of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from autotune.answer.content import Table
from autotune.answer.format import short_interval
from autotune.answer.objectives import shown
from autotune.backends.registry import framework_version
from autotune.errors import AutotuneError
from autotune.measure.objective import LATENCY, Objective
from autotune.measure.statistics import Speedup, Verdict
from autotune.study.glance import glance
from autotune.study.manifest import Manifest
from autotune.study.records import Confirmation
from autotune.study.study import Studies
from autotune.tuned.tuned_config import TunedConfig

FAILED, UNMEASURED, UNCLEAR = 1, 2, 3
INTERRUPTED = 130
NOT_BEGUN = "not begun"
"""The outcome of one that the time did not reach."""
_WORST_FIRST = (INTERRUPTED, FAILED, UNMEASURED, UNCLEAR)


def worst(statuses: Iterable[int]) -> int:
    """The exit status of several: an interrupt, then what is wrong, what could not be measured, what is unclear."""
    found = set(statuses)
    return next((status for status in _WORST_FIRST if status in found), max(found, default=0))


@dataclass(frozen=True)
class Row:
    """One model. Everything but its name is empty or None where it is not known."""

    name: str
    """The study, or the exported file."""
    outcome: str
    """A verdict, the fate of a file that was verified, or that it failed."""
    exit_status: int = 0
    why: str = ""
    """What there is to be said or done, in a sentence."""
    model: str = ""
    device: str = ""
    release: str = ""
    """The framework's, with its name."""
    objective: Objective = LATENCY
    untuned: float | None = None
    """Value of the objective in seconds or bytes, the median over blocks; `tuned` too."""
    tuned: float | None = None
    speedups: Mapping[str, Speedup | None] = field(default_factory=dict)
    """What it is of -> untuned value over the tuned one, or what its name says."""
    created: str | None = None
    """When its study began, in ISO 8601."""
    seconds: float = 0.0
    """How long this command was busy with it."""
    was_short: bool = False
    """Its share of the time did not hold what was asked."""

    @classmethod
    def of_error(cls, name: str, error: AutotuneError) -> Row:
        """What could not be read, tuned or measured."""
        return cls(name, "failed", error.exit_code, f"{error}" + (f" ({error.tip})" if error.tip else ""))

    @property
    def value_words(self) -> tuple[str, str]:
        """The untuned and the tuned value with their units."""
        pair = (self.untuned, self.tuned)
        return tuple("-" if value is None else shown(self.objective, value) for value in pair)  # type: ignore[return-value]

    @property
    def age(self) -> str:
        """Days since the study began; a dash where nobody knows."""
        try:
            began = datetime.fromisoformat(self.created or "")
        except ValueError:
            return "-"
        days = (datetime.now(UTC) - began.replace(tzinfo=began.tzinfo or UTC)).days
        return "today" if days < 1 else f"{days} d"

    def document(self) -> dict[str, Any]:
        """Plain data for JSON (docs/json.md)."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "exit_status": self.exit_status,
            "why": self.why,
            "model": self.model,
            "device": self.device,
            "release": self.release,
            "objective": self.objective.name,
            "untuned": self.untuned,
            "tuned": self.tuned,
            "speedups": {name: each and each.model_dump() for name, each in self.speedups.items()},
            "created": self.created,
            "seconds": self.seconds,
        }


def row_of_study(name: str, studies: Studies) -> Row:
    """A study as it is now. What is broken is a row too: it must not hide the others."""
    try:
        found = glance(studies, name)
        return row_of_answer(name, found.manifest, found.confirmation)
    except AutotuneError as error:
        return Row.of_error(name, error)


def row_of_answer(name: str, manifest: Manifest, confirmation: Confirmation | None) -> Row:
    """A study by what was asked and what was found."""
    speedup = None if confirmation is None else confirmation.speedup
    untuned, tuned = (None, None) if confirmation is None or speedup is None else confirmation.values
    return Row(
        name=name,
        outcome="no verdict" if confirmation is None else _worded(confirmation.verdict),
        model=manifest.workload.model,
        device=manifest.workload.device,
        release=f"{manifest.framework} {manifest.framework_version}",
        objective=manifest.objective,
        untuned=untuned,
        tuned=tuned,
        speedups={"gain": speedup},
        created=manifest.created,
    )


def row_of_file(name: str, tuned: TunedConfig) -> Row:
    """An exported file. It does not say when its study began."""
    untuned = values = None
    if tuned.evidence.speedup is not None and tuned.evidence.process_pairs:
        untuned = statistics.median(pair[0] for pair in tuned.evidence.process_pairs)
        values = untuned / tuned.evidence.speedup.median
    return Row(
        name=name,
        outcome=_worded(tuned.verdict),
        model=tuned.workload.model,
        device=tuned.workload.device,
        release=f"{tuned.framework} {tuned.environment.framework_version}",
        objective=Objective.parse(tuned.workload.objective),
        untuned=untuned,
        tuned=values,
        speedups={"gain": tuned.evidence.speedup},
    )


def _worded(verdict: Verdict) -> str:
    return verdict.value.replace("_", " ")


def why_retune(row: Row) -> str:
    """Why a model is to be tuned here and now, in a sentence; empty: it need not be."""
    if row.outcome in ("no verdict", "undecided"):
        return f"tune again: {row.outcome}"
    framework, _, release = row.release.partition(" ")
    here = _installed(framework)
    return f"tune again: {framework} is {here} here" if here is not None and here != release else ""


@cache
def _installed(framework: str) -> str | None:
    """The release in this environment; None where the framework is not installed, or not known."""
    try:
        return framework_version(framework)
    except AutotuneError:
        return None


def notes_of(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Name of each row that has something to say, and what."""
    return [(row.name, row.why) for row in rows if row.why]


def table_of(rows: Sequence[Row]) -> Table:
    """Rows under one heading. Columns in which nothing is known are left out."""
    labels = list(dict.fromkeys(label for row in rows for label in row.speedups))
    columns = ("name", "model", "device", "release", "outcome", "untuned", "tuned", *labels, "age")
    cells = [
        (
            *(row.name, row.model or "-", row.device or "-", row.release or "-", row.outcome, *row.value_words),
            *("-" if (one := row.speedups.get(label)) is None else short_interval(one) for label in labels),
            row.age,
        )
        for row in rows
    ]
    kept = [n for n in range(len(columns)) if any(row[n] not in ("-", "") for row in cells)]
    return Table(
        "",
        tuple(columns[n] for n in kept),
        [tuple(row[n] for n in kept) for row in cells],
        texts=frozenset({"name", "model", "device", "release", "outcome"}),
        marks={n: "failed" for n, row in enumerate(rows) if row.exit_status in (FAILED, UNMEASURED)},
    )
