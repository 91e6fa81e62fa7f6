"""Events of a running study, passed to one callback. Nothing below the command line prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.bench.workers import WorkerEvent
from autotune.config import Config
from autotune.measure.measurement import Stage
from autotune.measure.objective import LATENCY, Objective
from autotune.measure.scatter import Scatter
from autotune.space.space import SearchSpace
from autotune.study.early_stop import ExpectedGain
from autotune.study.records import AnswerStep, DriftCheck, NoiseFloor, StopReason, TrialRecord
from autotune.tuning.failure_rules import FailureRule
from autotune.tuning.room import Room
from autotune.workload.traffic import Traffic


@dataclass(frozen=True)
class SearchStarted:
    """The study is open: trials recorded so far, trials wanted (None: as many as there is time for), configs there are
    (None: uncountably many), the trials that a dead run had left, the space, what is minimised, the seconds that the
    run may take, and the traffic that is replayed, if any.
    """

    num_done: int
    num_trials: int | None
    num_configs: int | None
    given_back: list[int]
    space: SearchSpace
    objective: Objective = LATENCY
    wall_s: float | None = None
    traffic: Traffic | None = None
    answer: AnswerStep | None = None
    """What an earlier run has proven."""

    @property
    def num_most(self) -> int | None:
        """Trials that the study may come to; None: as many as there is time for."""
        return min((limit for limit in (self.num_trials, self.num_configs) if limit), default=None)


@dataclass(frozen=True)
class EnginesMissing:
    """Engines beside the framework could run this model, and are not installed: their titles."""

    titles: tuple[str, ...]


@dataclass(frozen=True)
class EnginesStarted:
    """There is a verdict, and these engines are timed beside the answer: their titles."""

    titles: tuple[str, ...]


@dataclass(frozen=True)
class ModelSaved:
    """A live model and its inputs were written to a file in the study's folder: trials load them from there, and what
    happens to the live model later does not reach them."""

    path: str
    num_bytes: int


@dataclass(frozen=True)
class PriorsGiven:
    """Configs of other studies or files are tried first: name -> how many that are new here."""

    num_configs: dict[str, int]


@dataclass(frozen=True)
class PriorsOffered:
    """Other studies tuned the same model and may be given as priors."""

    studies: list[str]


@dataclass(frozen=True)
class MachineBusy:
    """Other programs use so many of the cores, before anything was started; and the load average of the last minute."""

    taken: float
    num_cores: int
    load_1m: float | None


@dataclass(frozen=True)
class DeviceTaken:
    """A trial of another run on this machine is timed on the device: trials wait for each other from here on."""


@dataclass(frozen=True)
class TrialDisturbed:
    """A trial (of this config's number, 0 for the untuned model) was disturbed and is about to be repeated once."""

    number: int
    why: str


@dataclass(frozen=True)
class ModelChecked:
    """The study goes on: the untuned model is about to be compared with the recorded reference."""


@dataclass(frozen=True)
class TrialStarted:
    """A child is about to run this config."""

    number: int
    config: Config


@dataclass(frozen=True)
class TrialsCompiling:
    """These compile, beside each other or the processes of a block; what is ready first is looked after next."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class StageEntered:
    """What the child does now."""

    stage: Stage


@dataclass(frozen=True)
class TrialEnded:
    """A trial has been recorded."""

    record: TrialRecord


@dataclass(frozen=True)
class NoiseFloorStarted:
    """The untuned model is about to be compared with itself."""


@dataclass(frozen=True)
class NoiseFloorMeasured:
    """What two processes of the untuned model differ by on this machine."""

    noise_floor: NoiseFloor


@dataclass(frozen=True)
class DriftChecked:
    """How fast the untuned model is now, and was at first, in seconds a call."""

    sentinel: DriftCheck
    first_s: float


@dataclass(frozen=True)
class ConfigProbed:
    """Several trials ended in the same error: a config that worked before is about to be run again."""

    record: TrialRecord


@dataclass(frozen=True)
class SearchEnded:
    """No further config of the space is tried in this run; what is left are blocks."""

    reason: StopReason
    forecast: ExpectedGain | None = None
    """What a search could still gain that was ended because that is too little."""


@dataclass(frozen=True)
class RuleLearned:
    """Settings that make trials fail were found; so many configs have them (None: uncountably many)."""

    rule: FailureRule
    num_excluded: int | None


@dataclass(frozen=True)
class BlockMeasured:
    """The objective's values in one block of live processes: the untuned model's, and those of others by trial."""

    untuned: float
    others: dict[int, float]
    disturbed: str | None = None
    """What disturbed one of its processes, in a sentence."""


@dataclass(frozen=True)
class ScatterExplained:
    """Processes of one config differ visibly, and what was recorded while they were timed says why."""

    record: TrialRecord
    scatter: Scatter


@dataclass(frozen=True)
class BlockStarted:
    """The processes of a block are about to start: the untuned model's, and one of each of these trials."""

    number: int
    finalists: tuple[TrialRecord, ...]


@dataclass(frozen=True)
class AnswerProven:
    """A config is proven to be faster, and is the answer from now on; the run goes on to look for a better one."""

    step: AnswerStep
    record: TrialRecord
    replaced: AnswerStep | None
    """The answer until now."""


@dataclass(frozen=True)
class BudgetShort:
    """The time of the run is not expected to hold a single block: nothing can be proven in it. Told after the first
    call of the untuned model, if that shows it, else after its trial."""

    needed_s: float
    """What a run would take that can prove a large gain."""
    wall_s: float
    call_s: float | None = None
    """Seconds of an untuned call."""


@dataclass(frozen=True)
class RoomShort:
    """There is memory for so many processes of the model at a time, which is fewer than a block may have. Told after
    the untuned model's trial."""

    room: Room


@dataclass(frozen=True)
class TimeLeftEstimated:
    """How long the run will go on, told anew after each trial and each block."""

    left_s: float
    """Seconds until the run ends."""


@dataclass(frozen=True)
class TrialLost:
    """A trial says nothing, since its worker was lost or it found no memory on the device beside others; its config is
    tried again."""

    number: int
    why: str


Event = (
    SearchStarted
    | EnginesMissing
    | EnginesStarted
    | MachineBusy
    | DeviceTaken
    | TrialDisturbed
    | PriorsGiven
    | PriorsOffered
    | ModelChecked
    | ModelSaved
    | TrialStarted
    | TrialsCompiling
    | StageEntered
    | TrialEnded
    | NoiseFloorStarted
    | NoiseFloorMeasured
    | DriftChecked
    | ConfigProbed
    | SearchEnded
    | RuleLearned
    | BlockMeasured
    | BlockStarted
    | ScatterExplained
    | AnswerProven
    | BudgetShort
    | RoomShort
    | TimeLeftEstimated
    | TrialLost
    | WorkerEvent
)
Notify = Callable[[Event], None]
