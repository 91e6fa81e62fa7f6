"""`VirtualMachine`: a bench of a few cores in virtual time, whose costs and noise are known.

A process has work to do until it is warm, in core-seconds; those that work share the cores, and all rest while one is
timed. So a whole study of the real tuner on a recorded table takes a second, and it is known when it would have ended.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autotune.bench.bench import Bench, Running, StageCallback, Waits
from autotune.config import Config
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.measure.sampling import Reading, SamplingPlan
from autotune.study.budget import Budget, BusyMachinePlan
from autotune.study.folder import FolderStudies
from autotune.trial.deadline import Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.loop import Tuner
from benchmarks.simulated import manifest_of, measurement_of
from benchmarks.tables import Question, Table

NUM_CORES = 2
PROCESS_SD = 0.03
"""Of the logarithms of processes of one config."""
START_S, IMPORT_S = 1.0, 3.5
"""Core-seconds from a fork to the first call, and of the first process, which imports the framework."""
WARM_SHARE, SHARED = 0.3, 0.6
"""Share of its cold compile that a process pays which finds the caches of an earlier one of its config, or the kernels
of other configs."""
TIMED_S, TURN_S, SLOW_S, WARM_UP_S = 0.6, 0.1, SamplingPlan().slow_call_s, 0.3
"""Seconds for which a trial is timed, that a turn lasts at least, of a slow call, and to become warm."""


@dataclass
class Costs:
    """What a config's processes take and show, without noise."""

    latency_s: float
    compile_s: float
    program: str | None = None


@dataclass
class VirtualProcess(Running):
    """A process with so much work left until it is warm."""

    bench: VirtualMachine
    costs: Costs
    left_s: float
    compiled_s: float
    is_gated: bool
    log_bias: float
    cache: Path
    outcome: Outcome | None = None
    turns_s: list[float] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        return self.outcome is not None or self.left_s <= 0

    def warm(self, on_stage: StageCallback | None = None) -> None:
        self.bench.first_ready([self])

    def turn(self) -> Reading | None:
        if self.outcome is not None:
            return None
        self.bench.first_ready([self])
        call_s = self.costs.latency_s
        self.bench.now += call_s if call_s > SLOW_S else max(TURN_S, 2 * call_s) + call_s
        self.turns_s.append(self.bench.sample(self))
        return Reading(self.turns_s[-1])

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:
        if self.outcome is not None:
            return self.outcome
        if self.is_gated:
            self.bench.first_ready([self])
            self.bench.now += max(TIMED_S, 3 * self.costs.latency_s)
            self.cache.mkdir(parents=True, exist_ok=True)
            (self.cache / "compiled").touch()
            self.turns_s.append(self.bench.sample(self))
        self.bench.drop([self])
        if not self.turns_s:
            self.outcome = Failure(reason=Reason.SETUP, stage=Stage.WAIT, error="it had no turn")
            return self.outcome
        measured = measurement_of((statistics.median(self.turns_s),) * 3)
        stage_s = {Stage.START: START_S / 2, Stage.BUILD: START_S / 2, Stage.COMPILE: self.compiled_s, Stage.RUN: 0.6}
        update = {"stage_s": stage_s, "compile_s": self.compiled_s, "program": self.costs.program}
        self.outcome = measured.model_copy(update=update)
        return self.outcome


class VirtualMachine(Bench):
    """So many cores, and a clock that runs while somebody waits."""

    is_here = True
    width = None

    def __init__(self, costs: Callable[[Config], Costs | Failure], seed: int) -> None:
        self.now = 0.0
        self._costs = costs
        self._random = np.random.default_rng(seed)
        self._running: list[VirtualProcess] = []
        self._compiled: set[Config] = set()
        self._num_started = 0

    def clock(self) -> float:
        return self.now

    def start(
        self,
        folder: TrialFolder,
        request: TrialRequest,
        waits: Waits = "free",
        *,
        fresh: bool = False,
    ) -> Running:
        costs = self._costs(request.config)
        failed = costs if isinstance(costs, Failure) else None
        known = Costs(1.0, 3.0) if isinstance(costs, Failure) else costs
        share = WARM_SHARE if request.config in self._compiled else SHARED if len(self._compiled) > 2 else 1.0
        self._compiled.add(request.config)
        compile_s = 0.0 if request.untuned else share * known.compile_s
        work_s = START_S + (IMPORT_S if self._num_started == 0 else 0.0) + compile_s + 3 * known.latency_s
        self._num_started += 1
        work_s += WARM_UP_S if waits == "live" else 0.0
        bias = float(self._random.normal(0, PROCESS_SD))
        process = VirtualProcess(self, known, work_s, compile_s, waits != "live", bias, Path(request.cache), failed)
        if failed is not None:
            self.now += work_s / NUM_CORES
        else:
            self._running.append(process)
        return process

    def first_ready(self, started: Sequence[Running]) -> Running:
        while True:
            for running in started:
                if isinstance(running, VirtualProcess) and running.is_ready:
                    return running
            at_work = [process for process in self._running if process.left_s > 0]
            rate = min(1.0, NUM_CORES / len(at_work))
            step_s = min(process.left_s for process in at_work) / rate
            self.now += step_s
            for process in at_work:
                left_s = process.left_s - step_s * rate
                process.left_s = left_s if left_s > 1e-9 else 0.0

    def drop(self, started: Sequence[Running]) -> None:
        self._running = [process for process in self._running if process not in started]

    def sample(self, process: VirtualProcess) -> float:
        """A burst's median, with the bias that the process has for life."""
        return process.costs.latency_s * math.exp(process.log_bias + float(self._random.normal(0, 0.004)))


@dataclass(frozen=True)
class Race:
    """One study: its end, how many trials were measured, and how much slower than the best its answer is."""

    end_s: float
    num_trials: int
    regret: float


def race_on(table: Table, seed: int, folder: Path) -> Race:
    """Tune on a recorded table, in a study of its own, in virtual time and without a limit of it."""
    question, rows = Question(table), table.by_config

    def costs(config: Config) -> Costs | Failure:
        row = rows.get(config)
        if row is None:
            return Failure(reason=Reason.INVALID, stage=Stage.COMPILE, error="it was not recorded")
        outcome = question.outcome(config)
        if isinstance(outcome, Failure):
            return outcome
        return Costs(question.latency_s(row), row.compile_s or 0.0, row.program)

    machine = VirtualMachine(costs, seed)
    budget = Budget(num_jobs=NUM_CORES, quiet=BusyMachinePlan(look_s=0.001, max_repeats=0))
    study = FolderStudies(folder).create(manifest_of(table.space, seed))
    try:
        answer = Tuner(study, budget, machine, deadline=Deadline.after(None, clock=machine.clock)).run().candidate
        assert answer is not None
        num_trials = sum(record.state == "measured" for record in study.records())
        return Race(machine.now, num_trials, question.regret(rows[study.record(answer).config]))
    finally:
        study.close()
