"""Studies in virtual time: the real tuner on a machine of a few cores whose costs and noise are known.

A process has work to do until it is warm, in core-seconds; those that work share the cores, and all rest while one is
timed. So it is known when each answer was there, without a machine that is quiet for hours: what the loop does next can
be tried on recorded tables, in seconds a study. `simulated` has the noise, and no time.

    python -m benchmarks.timeline vit_torch --seeds 5 --budget 120
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autotune.bench.bench import Bench, Running, StageCallback, Waits
from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Stage
from autotune.measure.sampling import Reading, SamplingPlan
from autotune.study.budget import Budget, BusyMachinePlan
from autotune.study.folder import FolderStudies
from autotune.study.records import AnswerStep, Confirmation
from autotune.trial.deadline import Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.events import Event
from autotune.tuning.loop import Tuner
from benchmarks.simulated import manifest_of, measurement_of
from benchmarks.tables import Question, Table, read_table

START_S = 1.0
"""Core-seconds from a fork to the first call: building the model, and the untuned calls of the check."""
IMPORT_S = 3.5
"""Core-seconds of the first process, which imports the framework."""
WARM_SHARE, SHARED = 0.3, 0.6
"""Share of its cold compile that a process pays which finds the caches of an earlier one of its config, or the kernels
of other configs."""
TIMED_S, TURN_S, SLOW_S = 0.6, 0.1, SamplingPlan().slow_call_s
"""Seconds for which a trial is timed, and a turn lasts at least."""
WARM_UP_S = 0.3


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

    def warm(self, on_stage: StageCallback | None = None) -> None:  # noqa: ARG002
        self.bench.first_ready([self])

    def turn(self) -> Reading | None:
        if self.outcome is not None:
            return None
        self.bench.first_ready([self])
        call_s = self.costs.latency_s
        self.bench.now += call_s if call_s > SLOW_S else max(TURN_S, 2 * call_s) + call_s
        self.turns_s.append(self.bench.sample(self))
        return Reading(self.turns_s[-1])

    def finish(self, on_stage: StageCallback | None = None) -> Outcome:  # noqa: ARG002
        if self.outcome is not None:
            return self.outcome
        if self.is_gated:
            self.bench.first_ready([self])
            self.bench.now += max(TIMED_S, 3 * self.costs.latency_s)
            self.cache.mkdir(parents=True, exist_ok=True)
            (self.cache / "compiled").touch()
            self.turns_s.append(self.bench.sample(self))
        self.bench.forget(self)
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

    def __init__(
        self, costs: Callable[[Config], Costs | Failure], num_cores: int, process_sd: float, seed: int
    ) -> None:
        self.now = 0.0
        self._costs = costs
        self._num_cores = num_cores
        self._sd = process_sd
        self._random = np.random.default_rng(seed)
        self._running: list[VirtualProcess] = []
        self._compiled: set[Config] = set()
        self._num_started = 0

    def clock(self) -> float:
        return self.now

    def start(
        self,
        folder: TrialFolder,  # noqa: ARG002
        request: TrialRequest,
        waits: Waits = "free",
        *,
        fresh: bool = False,  # noqa: ARG002
    ) -> Running:
        costs = self._costs(request.config)
        failed = costs if isinstance(costs, Failure) else None
        known = Costs(1.0, 3.0) if isinstance(costs, Failure) else costs
        share = WARM_SHARE if request.config in self._compiled else SHARED if len(self._compiled) > 2 else 1.0
        self._compiled.add(request.config)
        compile_s = 0.0 if request.untuned else share * known.compile_s
        work_s = START_S + (IMPORT_S if self._num_started == 0 else 0.0) + compile_s + 3 * known.latency_s
        self._num_started += 1
        if waits == "live":
            work_s += WARM_UP_S
        bias = float(self._random.normal(0, self._sd))
        process = VirtualProcess(self, known, work_s, compile_s, waits != "live", bias, Path(request.cache), failed)
        if failed is not None:
            self.now += work_s / self._num_cores
        else:
            self._running.append(process)
        return process

    def first_ready(self, started: Sequence[Running]) -> Running:
        while True:
            for running in started:
                if isinstance(running, VirtualProcess) and running.is_ready:
                    return running
            at_work = [process for process in self._running if process.left_s > 0]
            rate = min(1.0, self._num_cores / len(at_work))
            step_s = min(process.left_s for process in at_work) / rate
            self.now += step_s
            for process in at_work:
                process.left_s = max(process.left_s - step_s * rate, 0.0)
                if process.left_s < 1e-9:
                    process.left_s = 0.0

    def drop(self, started: Sequence[Running]) -> None:
        for running in started:
            if isinstance(running, VirtualProcess):
                self.forget(running)

    def forget(self, process: VirtualProcess) -> None:
        if process in self._running:
            self._running.remove(process)

    def sample(self, process: VirtualProcess) -> float:
        """A burst's median, with the bias that the process has for life."""
        return process.costs.latency_s * math.exp(process.log_bias + float(self._random.normal(0, 0.004)))


@dataclass(frozen=True)
class Timeline:
    """One study: when which answer stood, and its end."""

    confirmation: Confirmation
    answers: list[AnswerStep]
    regrets: list[float]
    """How much slower than the best config each answer is, as a share."""
    end_s: float
    num_trials: int
    num_blocks: int
    regret: float | None
    log: list[tuple[float, Event]]


def study_on(table: Table, *, seed: int, wall_s: float | None, cores: int, process_sd: float, jobs: int) -> Timeline:
    """Tune on a recorded table, in a study of its own, in virtual time."""
    question = Question(table)
    rows = table.by_config

    def costs(config: Config) -> Costs | Failure:
        row = rows.get(config)
        if row is None:
            return Failure(reason=Reason.INVALID, stage=Stage.COMPILE, error="it was not recorded")
        if not row.works:
            outcome = question.outcome(config)
            assert isinstance(outcome, Failure)
            return outcome
        return Costs(question.latency_s(row), row.compile_s or 0.0, row.program)

    machine = VirtualMachine(costs, cores, process_sd, seed)
    quiet = BusyMachinePlan(look_s=0.001, max_repeats=0)
    budget = Budget(num_trials=None if wall_s else 24, wall_s=wall_s, num_jobs=jobs, quiet=quiet)
    log: list[tuple[float, Event]] = []
    with tempfile.TemporaryDirectory(prefix="autotune-timeline-") as folder:
        study = FolderStudies(Path(folder)).create(manifest_of(table.space, seed))
        try:
            deadline = Deadline.after(wall_s, clock=machine.clock)
            tuner = Tuner(study, budget, machine, lambda event: log.append((machine.now, event)), deadline)
            confirmation = tuner.run()
            records = {record.number: record for record in study.records()}

            def regret(number: int) -> float:
                return question.regret(rows[records[number].config])

            return Timeline(
                confirmation,
                study.answers,
                [regret(step.trial) for step in study.answers],
                machine.now,
                sum(isinstance(record.outcome, Measurement) for record in records.values()),
                len(study.blocks),
                None if confirmation.candidate is None else regret(confirmation.candidate),
                log,
            )
        finally:
            study.close()


def main() -> None:
    """Print when which answer stood, for each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=None, help="seconds")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scatter", type=float, default=0.03, help="of processes of one config, as a share")
    parser.add_argument("--log", action="store_true", help="print each event with its time")
    given = parser.parse_args()
    table = read_table(given.table)
    for seed in range(given.seeds):
        timeline = study_on(
            table, seed=seed, wall_s=given.budget, cores=given.cores, process_sd=given.scatter, jobs=given.jobs
        )
        if given.log:
            for at_s, event in timeline.log:
                print(f"{at_s:7.1f}  {str(event)[:160]}")
        steps = ", ".join(
            f"{step.after_s:.0f} s {step.speedup.median:.2f}x ({step.num_blocks} blocks, {regret:.1%} off)"
            for step, regret in zip(timeline.answers, timeline.regrets, strict=True)
        )
        verdict, off = timeline.confirmation.verdict, timeline.regret
        end = f"{timeline.end_s:.0f} s: {verdict}, {timeline.num_trials} trials, {timeline.num_blocks} blocks"
        print(f"seed {seed}: {end}{'' if off is None else f', {off:.1%} off'}; {steps or 'no answer before the end'}")


if __name__ == "__main__":
    main()
