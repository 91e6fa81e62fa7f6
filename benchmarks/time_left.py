"""Time left: how far what a run says of its own rest is from what it then takes, confirmation included.

Two kinds of runs. Real studies, run for this; and the recorded tables, on which the real tuner runs on a clock that the
recorded seconds of each trial and compile advance; a process that finds caches pays the share of its compile that was
measured for such configs (`BackendEntry.warm_shares`). After each trial and each block of the confirmation the run says
how long it will go on; what it knew by then (`RemainingWork`) is kept, so that `--report-only` judges the estimator of
today by the recorded runs. Between two estimates the last one counts down, as it does on a screen.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import autotune
from autotune.api.events import Event
from autotune.backends.registry import entry_of
from autotune.measure.measurement import Failure, Outcome, Stage
from autotune.study.budget import Budget
from autotune.study.folder import FolderStudies
from autotune.trial.deadline import Clock, Deadline
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.events import TimeLeftEstimated, TrialEnded
from autotune.tuning.loop import Tuner
from autotune.tuning.remaining_work import RemainingWork
from benchmarks.frame import Benchmark
from benchmarks.record import REPOSITORY, Goal, percent, table
from benchmarks.replayed import Question
from benchmarks.simulated import Machine, Noise, SimulatedProcess, manifest_of
from benchmarks.table import TABLES, read_table

GOAL = 0.30
FROM_SHARE = 1 / 3
"""Of the run; before, too little is known."""
STEPS = 300
"""Moments at which an estimate is held against the truth, evenly spread over the run."""
MODELS = REPOSITORY / "benchmarks" / "models"


@dataclass(frozen=True)
class Estimate:
    """What a run knew after so many seconds."""

    elapsed_s: float
    work: RemainingWork


@dataclass(frozen=True)
class Run:
    """A study from its start to its verdict."""

    name: str
    total_s: float
    search_s: float
    """Of the total, up to the end of the last trial."""
    num_trials: int
    num_blocks: int
    estimates: tuple[Estimate, ...]

    def said_s(self, elapsed_s: float) -> float | None:
        """The time left that was on the screen; None as long as there was none."""
        before = [each for each in self.estimates if each.elapsed_s <= elapsed_s]
        return max(before[-1].work.left_s - (elapsed_s - before[-1].elapsed_s), 0.0) if before else None

    @property
    def errors_s(self) -> list[tuple[float, float]]:
        """Error and truth at each moment from a third of the run on. Where nothing was said, zero was."""
        moments = [self.total_s * (FROM_SHARE + (1 - FROM_SHARE) * step / STEPS) for step in range(STEPS)]
        return [((self.said_s(now) or 0.0) - (self.total_s - now), self.total_s - now) for now in moments]

    @property
    def error_share(self) -> float:
        """Mean absolute error as a share of the mean time left."""
        return sum(abs(error) for error, _ in self.errors_s) / sum(truth for _, truth in self.errors_s)

    @property
    def error_s(self) -> float:
        """Mean absolute error."""
        return sum(abs(error) for error, _ in self.errors_s) / len(self.errors_s)

    def error_at(self, share: float) -> str:
        """What was said at this share of the run, and what it took from there."""
        now = share * self.total_s
        said_s = self.said_s(now)
        return f"{'nothing' if said_s is None else f'{said_s:.0f} s'} / {self.total_s - now:.0f} s"


@dataclass(frozen=True)
class Case:
    """A study to run, or to replay on a table with a seed."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    replayed: tuple[str, int] | None = None


START_S = 2.5
"""Of a fresh process in a replay, importing the framework included."""
SEEDS = (0, 1)
CASES = (
    Case("small MLP, PyTorch", {"build": f"{MODELS}/small_mlp_torch.py:small_mlp", "framework": "torch", "trials": 8}),
    Case(
        "small MLP, PyTorch, two compiled at a time",
        {"build": f"{MODELS}/small_mlp_torch.py:small_mlp", "framework": "torch", "trials": 10, "jobs": 2},
    ),
    Case(
        "small MLP, MindSpore, may stop early",
        {"build": f"{MODELS}/small_mlp_mindspore.py:small_mlp", "framework": "mindspore", "trials": 24},
    ),
    Case("tanh and matmul, MindSpore", {"build": "tanh_matmul", "framework": "mindspore", "trials": 10}),
    Case("tanh and matmul, PyTorch", {"build": "tanh_matmul", "framework": "torch", "trials": 8, "seed": 1}),
    Case(
        "small MLP, PyTorch, 3 minutes",
        {"build": f"{MODELS}/small_mlp_torch.py:small_mlp", "framework": "torch", "budget": "3m", "seed": 2},
    ),
    Case(
        "small MLP of 3 layers, PyTorch",
        {
            "build": f"{MODELS}/small_mlp_torch.py:small_mlp", "framework": "torch", "trials": 12, "seed": 3,
            "arguments": {"layers": 3}, "preset": "quick",
        },
    ),
    *(Case(f"{table} replayed, seed {seed}", replayed=(table, seed)) for table in (
        "vit_torch", "resnet18_torch_exhaustive", "small_mlp_torch", "tanh_matmul_mindspore") for seed in SEEDS),
)  # fmt: skip


def cases(given: argparse.Namespace) -> Sequence[Case]:
    """All studies."""
    return [Case("smoke run", {**CASES[0].arguments, "trials": 3})] if given.quick else CASES


def run(case: Case) -> Run:
    """Run the study and keep what it says of its rest."""
    return recorded(case.name, case.arguments) if case.replayed is None else replayed(case.name, *case.replayed)


@dataclass
class Listener:
    """Keeps what a run says of its rest, and when the last trial ended."""

    clock: Clock
    begun: float = field(init=False)
    estimates: list[Estimate] = field(default_factory=list)
    search_s: float = 0.0

    def __post_init__(self) -> None:
        self.begun = self.clock()

    def __call__(self, event: Event) -> None:
        now = self.clock() - self.begun
        if isinstance(event, TimeLeftEstimated):
            self.estimates.append(Estimate(now, event.work))
        elif isinstance(event, TrialEnded):
            self.search_s = now

    def run(self, name: str, num_trials: int) -> Run:
        """All of it, at the end."""
        num_blocks = len(self.estimates[-1].work.block_s) if self.estimates else 0
        total_s = self.clock() - self.begun
        return Run(name, total_s, self.search_s, num_trials, num_blocks, tuple(self.estimates))


def recorded(name: str, arguments: dict[str, Any]) -> Run:
    """A real study from its start to its verdict."""
    listener = Listener(time.monotonic)
    with tempfile.TemporaryDirectory() as folder:
        result = autotune.tune(**arguments, device="cpu", studies_dir=folder, progress=False, callbacks=listener)
        return listener.run(name, len(result.trials()))


@dataclass
class ReplayedProcess:
    """A live process of a replay: a simulated one, whose turns take their time."""

    process: SimulatedProcess
    pass_time: Callable[[], None]

    @property
    def outcome(self) -> Outcome | None:
        return self.process.outcome

    def turn(self) -> None:
        self.pass_time()
        self.process.turn()

    def finish(self) -> Outcome:
        """With what the process took to get warm."""
        outcome = self.process.finish()
        return outcome.model_copy(update={"stage_s": {Stage.START: START_S}})


@dataclass
class ReplayedTrials:
    """A recorded table in place of a machine, on a clock of its own. See `Trials`."""

    question: Question
    machine: Machine
    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def run(self, folder: TrialFolder, request: TrialRequest, **_: Any) -> Outcome:
        row = self.question.table.by_config[request.config]
        if folder.path.parent.name != "trials":
            self.now += START_S
            return self.question.outcome(request.config)
        compile_s, other_s = self._compile_s(request), max(row.trial_s - max(row.compile_s or 0.0, 0.0), 0.0)
        self.now += compile_s + other_s
        outcome = self.question.outcome(request.config)
        if isinstance(outcome, Failure):
            return outcome
        before = request.compiled_before
        stages = {Stage.COMPILE: compile_s, Stage.RUN: other_s}
        return outcome.model_copy(update={"stage_s": stages, "compiled_from": before and before.trial})

    def _compile_s(self, request: TrialRequest) -> float:
        """What is paid again where the request's folder holds caches, as measured for such configs; else all of it.
        Leaves a cache there."""
        compile_s = max(self.question.table.by_config[request.config].compile_s or 0.0, 0.0)
        cache = Path(request.cache)
        if request.cold:
            shutil.rmtree(cache, ignore_errors=True)
        is_warm = cache.exists()
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "compiled").touch()
        shares = entry_of(self.question.table.framework).warm_shares
        share = next((share for settings, share in shares if request.config.matches(settings)), 1.0)
        return share * compile_s if is_warm else compile_s

    def hold(self, folder: TrialFolder, request: TrialRequest, **_: Any) -> ReplayedProcess:  # noqa: ARG002
        row = self.question.table.by_config[request.config]
        self.now += START_S + self._compile_s(request)
        latency_s = self.question.latency_s(row)
        process = SimulatedProcess(self.machine, latency_s, None, self.machine.draw_bias())
        turn_s = max(request.sampling.turn_s, request.sampling.fewest_in_turn * latency_s) + latency_s

        def pass_time() -> None:
            self.now += turn_s

        return ReplayedProcess(process, pass_time)


def replayed(name: str, table: str, seed: int) -> Run:
    """A study on a recorded table, as `tune` runs it by itself: at most 24 trials, which may stop early."""
    trials = ReplayedTrials(Question(read_table(TABLES / f"{table}.json")), Machine(Noise(), seed))
    manifest = manifest_of(trials.question.table.space, seed)
    workload = manifest.workload.model_copy(update={"framework": trials.question.table.framework})
    listener = Listener(trials.clock)
    with tempfile.TemporaryDirectory() as folder:
        study = FolderStudies(Path(folder)).create(manifest.model_copy(update={"workload": workload}))
        try:
            deadline = Deadline.after(None, clock=trials.clock)
            Tuner(study, Budget(), trials, listener, deadline=deadline).run()
            return listener.run(name, study.num_recorded())
        finally:
            study.close()


def judge(records: Sequence[Run]) -> list[Goal]:
    """By the mean over the runs; how many reach it alone is said beside it."""
    num_within = sum(each.error_share <= GOAL for each in records)
    mean = sum(each.error_share for each in records) / len(records)
    worst = max(records, key=lambda each: each.error_share)
    text = f"from a third of the run on the mean absolute error is at most {GOAL:.0%} of the mean time left"
    found = f"{mean:.0%} on average, {worst.error_share:.0%} at worst ({worst.name}); "
    found += f"{num_within} of {len(records)} studies meet it by themselves"
    return [Goal(text, found, mean <= GOAL)]


def section(records: Sequence[Run]) -> str:
    """A row a run."""
    about = (
        "How long a run will go on, as it says itself after each trial and each block of the confirmation, against "
        "what it took. The error is the mean of the absolute one from a third of the run on, in seconds and as a share "
        "of the mean time left; the last three columns are what was said / what was true at a third, a half and three "
        "quarters of the run. A replayed run is the real tuner on a recorded table: its clock is advanced by the "
        "recorded seconds of trials and compiles, and by the measured share of a compile where caches are found, which "
        "the estimate knows as well. Its constants were chosen on these replays."
    )
    has_real = any("replayed" not in each.name for each in records)
    about += " The other runs are real." if has_real else " No run here is real."
    header = ("study", "trials", "blocks", "whole run", "confirmation", "error", "share", "at 1/3", "at 1/2", "at 3/4")
    rows = [
        [
            each.name, str(each.num_trials), str(each.num_blocks), f"{each.total_s:.0f} s",
            f"{each.total_s - each.search_s:.0f} s", f"{each.error_s:.0f} s", percent(each.error_share),
            *(each.error_at(share) for share in (1 / 3, 1 / 2, 3 / 4)),
        ]
        for each in records
    ]  # fmt: skip
    return f"{about}\n\n{table(header, rows)}"


BENCHMARK = Benchmark(
    name="time_left",
    title="Time left",
    question=__doc__,
    record=Run,
    cases=cases,
    run=run,
    judge=judge,
    section=section,
)

if __name__ == "__main__":
    BENCHMARK.main()
