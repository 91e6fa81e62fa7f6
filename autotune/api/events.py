"""The events that callbacks receive. Those of a study come from `tuning`; three are of calls outside of any study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.bench.workers import NeighboursFound, NeighboursStarted, WorkerChanged
from autotune.measure.objective import Objective
from autotune.tuning import events as of_a_study
from autotune.tuning.events import (
    AnswerProven,
    BlockMeasured,
    BlockStarted,
    BudgetShort,
    ConfigProbed,
    DeviceTaken,
    DriftChecked,
    EnginesMissing,
    EnginesStarted,
    MachineBusy,
    ModelChecked,
    ModelSaved,
    NoiseFloorMeasured,
    NoiseFloorStarted,
    PriorsGiven,
    PriorsOffered,
    RoomShort,
    RuleLearned,
    ScatterExplained,
    SearchEnded,
    SearchStarted,
    StageEntered,
    TimeLeftEstimated,
    TrialDisturbed,
    TrialEnded,
    TrialLost,
    TrialsCompiling,
    TrialStarted,
)

__all__ = [
    "AnswerProven",
    "BlockMeasured",
    "BlockStarted",
    "BothMeasured",
    "BudgetShort",
    "Callback",
    "ConfigProbed",
    "DeviceTaken",
    "DiagnosisStep",
    "DriftChecked",
    "EnginesMissing",
    "EnginesStarted",
    "Event",
    "MachineBusy",
    "ModelChecked",
    "ModelSaved",
    "NeighboursFound",
    "NeighboursStarted",
    "NoiseFloorMeasured",
    "NoiseFloorStarted",
    "PairMeasured",
    "PriorsGiven",
    "PriorsOffered",
    "RoomShort",
    "RuleLearned",
    "ScatterExplained",
    "SearchEnded",
    "SearchStarted",
    "StageEntered",
    "TimeLeftEstimated",
    "TrialDisturbed",
    "TrialEnded",
    "TrialLost",
    "TrialStarted",
    "TrialsCompiling",
    "WorkerChanged",
]


@dataclass(frozen=True)
class PairMeasured:
    """`verify` and `compare`: the objective's values (seconds or bytes) of both configs in one block."""

    objective: Objective
    first: float
    second: float


@dataclass(frozen=True)
class BothMeasured:
    """`verify_against`: the objective's values (seconds or bytes) in one block, by name: `untuned`, `tuned`,
    `untuned-there`, `tuned-there`."""

    objective: Objective
    values: Mapping[str, float]


@dataclass(frozen=True)
class DiagnosisStep:
    """`diagnose`: what is about to be measured, in words."""

    what: str


Event = of_a_study.Event | PairMeasured | BothMeasured | DiagnosisStep
Callback = Callable[[Event], object]
"""Called with every event, in the thread that runs the study, between two trials or while one runs. What it returns is
not looked at."""
