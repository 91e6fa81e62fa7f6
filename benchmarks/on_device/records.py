"""What the steps of `device.py` leave, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from autotune.answer.sections.environment import accelerator_remarks
from autotune.measure.measurement import Failure, Measurement, Outcome

Settings = dict[str, Any]
"""A config as plain data."""


@dataclass(frozen=True)
class Machine:
    """What `doctor` says, and what the device says of itself."""

    doctor: list[str]
    facts: dict[str, str]
    kind: Literal["machine"] = "machine"


@dataclass(frozen=True)
class Tried:
    """A config as a trial of the product: what it took, or why it failed."""

    config: Settings
    failure: str | None = None
    median_s: float | None = None
    compile_s: float | None = None
    peak_memory_bytes: int | None = None
    error: float | None = None
    program: str | None = None
    compiled: bool | None = None
    note: str | None = None
    copies_s: float | None = None
    """Of each call, what it takes to copy the outputs of a captured graph."""

    @classmethod
    def of(cls, config: Settings, outcome: Outcome) -> Tried:
        if isinstance(outcome, Failure):
            return cls(config, failure=f"{outcome.reason.value} at {outcome.stage.value}: {outcome.error}")
        return cls._measured(config, outcome)

    @classmethod
    def _measured(cls, config: Settings, seen: Measurement) -> Tried:
        return cls(
            config,
            median_s=seen.latency.p50,
            compile_s=seen.compile_s,
            peak_memory_bytes=seen.peak_memory_bytes,
            error=seen.relative_error,
            program=seen.program,
            compiled=seen.diagnosis.compiled,
            note="; ".join(filter(None, [seen.diagnosis.note, *accelerator_remarks(seen)])) or None,
            copies_s=seen.copies_s,
        )


@dataclass(frozen=True)
class PathSeen:
    """One path of execution, and the untuned model of the same workload."""

    path: str
    tried: Tried
    untuned_s: float | None
    kind: Literal["path"] = "path"


@dataclass(frozen=True)
class TruthSeen:
    """A study whose answer is known."""

    what: str
    right: list[str]
    """The verdicts that are right."""
    verdict: str | None
    speedup: float | None
    kind: Literal["truth"] = "truth"


@dataclass(frozen=True)
class StudySeen:
    """A study of a model, and what it exported."""

    model: str
    minutes: float
    num_trials: int
    num_failed: int
    verdict: str | None
    speedup: tuple[float, float, float] | None
    """Median, low and high."""
    best: Settings
    """What differs from the untuned model."""
    export: str | None
    sizes: Settings = field(default_factory=dict)
    """Of the model, where they are not its own."""
    kind: Literal["study"] = "study"


@dataclass(frozen=True)
class Way:
    """One way of running a model in the plain script: a figure for each fresh process, or why there is none."""

    median_s: list[float] = field(default_factory=list)
    first_call_s: list[float] = field(default_factory=list)
    problem: str | None = None


@dataclass(frozen=True)
class PlainSeen:
    """A model in the plain script, each way in processes of its own."""

    model: str
    verdict: str | None
    promised: tuple[float, float, float] | None
    ways: dict[str, Way]
    kind: Literal["plain"] = "plain"


Result = Annotated[Machine | PathSeen | TruthSeen | StudySeen | PlainSeen, Field(discriminator="kind")]


@dataclass(frozen=True)
class Done:
    """A step that was run: its result, or what stopped it."""

    step: str
    piece: str
    started: str
    seconds: float
    device: str
    commit: str
    result: Result | None = None
    problem: str | None = None
