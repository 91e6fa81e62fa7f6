"""Studies without a machine: the real tuner, study and statistics on measurements drawn from a noise model.

A study takes a fraction of a second instead of minutes, so rare mistakes can be counted. Time is virtual: nothing
sleeps, no process starts, records lie in memory, and a seed gives the same study each time. A study ends when its
figures say so, or when a virtual clock does: then the looks at the end of a run count, too. The noise has the parts
that real machines have: a bias that each process keeps for life, a machine that drifts, calls that scatter, and calls
that something else on the machine delays.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import optuna
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import StudyDirection

from autotune import environment
from autotune.bench.bench import Bench, Running, StageCallback, Waits
from autotune.config import Config
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Samples, Signature, Stage
from autotune.measure.objective import Objective
from autotune.measure.sampling import Reading
from autotune.space.space import Knob, SearchSpace
from autotune.study.budget import Budget, BusyMachinePlan
from autotune.study.folder import FolderStudies, SqliteDatabase
from autotune.study.manifest import Manifest
from autotune.study.records import Confirmation
from autotune.study.study import Study
from autotune.trial.deadline import Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.loop import Tuner
from autotune.workload.workload import Workload

UNTUNED_S = 0.010
"""Seconds a call of the untuned model. Any will do: the noise is relative."""

ENDED = ", ended by a clock"
"""In the name of studies that one ends."""
WILD_VARIANT = 1
HIT = 0.5

SHORTEST_S, LONGEST_S = 30.0, 240.0
"""Seconds of a study that a clock ends, beside those of its trials: for three to fifteen blocks."""
_START_S, _TRIAL_S = 4.0, 5.0
"""Until a process has started and compiled, on that clock; and until a trial has ended."""

_CALLS_A_BURST = 20
_BURSTS_A_RUN = 5
_START_SHARE, _BURST_SHARE = 0.5, 0.1
"""Of a trial's time, half goes into starting and compiling, and a tenth into each of its bursts of calls."""


@dataclass(frozen=True)
class Noise:
    """How measurements scatter, as shares of the latency."""

    process_sd: float = 0.015
    """Of the bias that a process keeps for life (lognormal)."""
    has_two_modes: bool = False
    """A process is fast or slow by `process_sd`, as often the one as the other."""
    untuned_factor: float = 1.0
    """The biases of the untuned model's processes are so many times as large."""
    wild_factor: float = 1.0
    """So are those of one of the configs, the `WILD_VARIANT`."""
    block_correlation: float = 0.0
    """Of the biases of a config's processes from one to the next (AR(1)), the trial of the search among them;
    `process_sd` stays what it is."""
    share_hit: float = 0.0
    """Of the processes are slower by `HIT` for life: something else got in their way."""
    call_sd: float = 0.02
    """Of one call (lognormal)."""
    spike_share: float = 0.05
    """Of the calls are delayed by something else,"""
    spike_low: float = 0.10
    spike_high: float = 0.50
    """by this much (uniform)."""
    drift_sd: float = 0.005
    """Step of the machine's random walk in the time of one trial (lognormal)."""


class Machine:
    """Where simulated processes run: one clock rate for all, that wanders."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self.noise = noise
        self._generator = np.random.default_rng(seed)
        self._log_drift = 0.0
        self.clock_s = 0.0
        """What its clock shows: processes that started, and the calls of all."""

    def read_clock(self) -> float:
        """A `Clock`."""
        return self.clock_s

    def pass_time(self, trials: float) -> None:
        """Let the machine drift for so many trials' time."""
        self._log_drift += self._generator.normal(0.0, self.noise.drift_sd * math.sqrt(trials))

    def draw_bias(self, before: float | None = None) -> float:
        """The log bias of a new process that nothing hits; `before` is that of the process of the config before it."""
        new = float(self._generator.normal(0.0, self.noise.process_sd))
        if self.noise.has_two_modes:
            new = math.copysign(self.noise.process_sd, new)
        if before is None:
            return new
        correlation = self.noise.block_correlation
        return correlation * before + math.sqrt(1 - correlation**2) * new

    def draw_hit(self) -> float:
        """The log of what a hit costs a new process; mostly 0."""
        is_hit = self.noise.share_hit > 0 and self._generator.random() < self.noise.share_hit
        return math.log1p(HIT) if is_hit else 0.0

    def call(self, latency_s: float, log_bias: float, num_calls: int) -> list[float]:
        """Seconds that so many calls of a process take just now."""
        noise, generator = self.noise, self._generator
        logs = self._log_drift + log_bias + generator.normal(0.0, noise.call_sd, num_calls)
        is_spiked = generator.random(num_calls) < noise.spike_share
        delays = np.where(is_spiked, generator.uniform(noise.spike_low, noise.spike_high, num_calls), 0.0)
        taken_s = [float(each) for each in latency_s * np.exp(logs) * (1 + delays)]
        self.clock_s += sum(taken_s)
        return taken_s


@dataclass(frozen=True)
class Truth:
    """What a study should find: seconds a call of each config, and the configs that compute something else."""

    latency_s: Mapping[Config, float]
    wrong: frozenset[Config] = frozenset()


class OneByOne(Bench):
    """A bench of a `run` and a `hold`, by which a trial has ended as soon as it is started."""

    is_here = True
    width = 1

    def start(
        self, folder: TrialFolder, request: TrialRequest, waits: Waits = "free", *, fresh: bool = False
    ) -> Running:
        if waits == "live":
            return self.hold(folder, request)
        return EndedTrial(self.run(folder, request))

    def first_ready(self, started: Sequence[Running]) -> Running:
        return started[0]

    def drop(self, started: Sequence[Running]) -> None:
        """There is nothing to end."""


@dataclass
class EndedTrial(Running):
    """A trial that has ended."""

    outcome: Outcome | None

    def warm(self, on_stage: StageCallback | None = None) -> None:
        """It is over."""

    def turn(self) -> None:
        """It is over, so there is none."""

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:
        assert self.outcome is not None
        return self.outcome


@dataclass
class SimulatedProcess(Running):
    """A process that has started, compiled and been checked, and waits for its turns; or has failed in the check."""

    machine: Machine
    latency_s: float
    outcome: Outcome | None
    log_bias: float
    samples_s: list[float] = field(default_factory=list)

    def warm(self, on_stage: StageCallback | None = None) -> None:
        """It is."""

    def turn(self) -> Reading | None:
        """Take one burst of samples."""
        if self.outcome is not None:
            return None
        self.machine.pass_time(_BURST_SHARE)
        taken_s = self.machine.call(self.latency_s, self.log_bias, _CALLS_A_BURST)
        self.samples_s += taken_s
        return Reading(statistics.median(taken_s))

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:
        """A measurement of all samples, or the failure."""
        stage_s = {Stage.START: _START_S, Stage.RUN: sum(self.samples_s)}
        return self.outcome or measurement_of(tuple(self.samples_s)).model_copy(update={"stage_s": stage_s})


class SimulatedTrials(OneByOne):
    """Stands in for `LocalBench`. Every process is fresh: each has a bias of its own, which may resemble that of the
    process of the config before it, be it a trial of the search or one in a block.
    """

    def __init__(self, machine: Machine, truth: Truth) -> None:
        self._machine = machine
        self._truth = truth
        self._log_biases: dict[Config, float] = {}
        """Config -> the bias of its latest process."""

    def run(
        self, folder: TrialFolder, request: TrialRequest, *, fresh: bool = False, on_stage: StageCallback | None = None
    ) -> Outcome:
        process = self._process(request)
        if process.outcome is None:
            for _ in range(_BURSTS_A_RUN):
                process.turn()
        return process.finish()

    def hold(self, folder: TrialFolder, request: TrialRequest, *, on_stage: StageCallback | None = None) -> Running:
        return self._process(request) if request.config in self._truth.latency_s else EndedTrial(_UNKNOWN)

    def _process(self, request: TrialRequest) -> SimulatedProcess:
        self._machine.pass_time(_START_SHARE)
        self._machine.clock_s += _START_S
        config, noise = request.config, self._machine.noise
        self._log_biases[config] = self._machine.draw_bias(self._log_biases.get(config))
        is_wild = not request.untuned and config.get("variant") == WILD_VARIANT
        factor = noise.untuned_factor if request.untuned else noise.wild_factor if is_wild else 1.0
        return SimulatedProcess(
            machine=self._machine,
            latency_s=self._truth.latency_s[config],
            outcome=_WRONG if config in self._truth.wrong else None,
            log_bias=factor * self._log_biases[config] + self._machine.draw_hit(),
        )


class StudiesInMemory(FolderStudies):
    """Studies whose records end with the process: SQLite takes half of the seconds of a simulated study."""

    def _make(self, folder: Path, manifest: Manifest) -> Study:
        opened, directions = InMemoryStorage(), [StudyDirection.MINIMIZE] * len(manifest.objectives)
        optuna.create_study(storage=opened, study_name=manifest.name, directions=directions)
        (folder / "study.db").touch()
        manifest.write(folder / "manifest.json")
        return Study(self, folder, manifest, SqliteDatabase(folder, cast(RDBStorage, opened)))


@dataclass(frozen=True)
class SimulatedStudy:
    """What a study concluded: its confirmation, and the config that was compared (None: nothing was)."""

    confirmation: Confirmation
    candidate: Config | None


def simulate(
    space: SearchSpace, truth: Truth, noise: Noise, *, seed: int, has_clock: bool = False, num_runs: int = 1
) -> SimulatedStudy:
    """Tune in a study of its own, in a temporary folder, until every config of the space has been tried; or until a
    clock ends it, if it has one, at a time that the seed draws. `num_runs`: so often it is resumed and has as much
    time again."""
    machine, wall_s = Machine(noise, seed), None
    if has_clock:
        drawn_s = np.random.default_rng([seed, 1]).uniform(SHORTEST_S, LONGEST_S)
        wall_s = len(truth.latency_s) * _TRIAL_S + float(drawn_s)
    # How busy the machine under the simulation is says nothing.
    budget = Budget(num_trials=len(truth.latency_s), wall_s=wall_s, quiet=BusyMachinePlan(look_s=1e-3))
    trials = SimulatedTrials(machine, truth)
    with tempfile.TemporaryDirectory(prefix="autotune-simulated-") as folder:
        study = StudiesInMemory(Path(folder)).create(manifest_of(space, seed))
        for _ in range(num_runs):
            confirmation = Tuner(study, budget, trials, deadline=Deadline.after(wall_s, clock=machine.read_clock)).run()
        number = confirmation.candidate
        candidate = None if number is None else study.record(number).config
    return SimulatedStudy(confirmation, candidate)


def space_of_variants(num_variants: int) -> SearchSpace:
    """The untuned model, and so many compiled configs that differ in name."""
    execution = Knob(name="execution", doc="", values=("eager", "compile"), when={}, default="compile", untuned="eager")
    variant = Knob(
        name="variant",
        doc="",
        values=tuple(range(num_variants)),
        when={"execution": "compile"},
        default=0,
        untuned=0,
    )
    return SearchSpace(framework="torch", knobs=(execution, variant), forbid=())


def manifest_of(space: SearchSpace, seed: int) -> Manifest:
    """The question of a study that runs no real process."""
    return Manifest(
        schema=4,
        id=f"{seed:032x}",
        name="simulated",
        created="2026-01-01T00:00:00+00:00",
        autotune_version="0",
        optuna_version="0",
        workload=Workload(
            model="simulated",
            reference="simulated:none",
            framework=space.framework,
            device="cpu",
            seed=seed,
            search_path=".",
        ),
        framework_version="0",
        space_file="simulated",
        space=space,
        objectives=(Objective(),),
        constraints=(),
        tolerance=1e-3,
        variables={},
    )


_UNKNOWN = Failure(reason=Reason.INVALID, stage=Stage.COMPILE, error="no simulated machine keeps memory")
_WRONG = Failure(
    reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="WrongResultError: relative error 1", relative_error=1.0
)


def measurement_of(samples_s: tuple[float, ...]) -> Measurement:
    """What a trial of the untuned kind with these seconds a call would have brought back."""
    return Measurement(
        samples=Samples(latency_s=samples_s, warmup_s=samples_s[:3], steady=True, ended_by="precision"),
        first_call_s=1.0,
        compile_s=1.0,
        peak_memory_bytes=None,
        compile_peak_memory_bytes=None,
        relative_error=0.0,
        diagnosis=Diagnosis(compiled=None),
        signature=Signature(
            model_class="Simulated", num_parameters=0, structure_sha256="0" * 64, inputs=(), items_per_call=1
        ),
        environment=_environment(),
    )


@cache
def _environment() -> environment.Environment:
    return environment.describe(device="simulated", variables={})
