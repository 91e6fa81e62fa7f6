"""Time left: how far what a run says of its own rest is from what it then takes, confirmation included.

Studies of real compilers, run for this. After each trial and each block of the confirmation the run says how long it
will go on; what it knew by then (`RemainingWork`) is kept, so that `--report-only` judges the estimator of today by the
recorded runs. Between two estimates the last one counts down, as it does on a screen.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import autotune
from autotune.errors import InputError
from autotune.tuning.events import Event, TimeLeftEstimated
from autotune.tuning.remaining_work import RemainingWork
from benchmarks.frame import Benchmark
from benchmarks.record import REPOSITORY, RESULTS, Goal, percent, read, table

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
    """A study to run; or one that is kept, which is not run again."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    kept: Run | None = None


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
)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    names = [each.name for each in CASES]
    parser.add_argument("--case", action="append", choices=names, help="run these alone and keep the other records")


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """All studies; or those that are asked for, beside the kept ones."""
    if given.quick:
        yield Case("smoke run", {**CASES[0].arguments, "trials": 3})
        return
    kept = _kept() if given.case else {}
    for case in CASES:
        if given.case is None or case.name in given.case:
            yield case
        elif case.name in kept:
            yield Case(case.name, kept=kept[case.name])


def _kept() -> dict[str, Run]:
    try:
        records = read(RESULTS / f"{BENCHMARK.name}.json").records
    except InputError:
        return {}
    from pydantic import TypeAdapter

    return {name: TypeAdapter(Run).validate_python(each) for name, each in records.items()}


def run(case: Case) -> Run:
    """Run the study and keep what it says of its rest."""
    return case.kept or recorded(case.name, case.arguments)


def recorded(name: str, arguments: dict[str, Any]) -> Run:
    """A study from its start to its verdict."""
    estimates: list[Estimate] = []
    ended: list[float] = []
    begun = time.monotonic()

    def note(event: Event) -> None:
        now = time.monotonic() - begun
        if isinstance(event, TimeLeftEstimated):
            estimates.append(Estimate(now, event.work))
        elif isinstance(event, autotune.events.TrialEnded):
            ended.append(now)

    with tempfile.TemporaryDirectory() as folder:
        result = autotune.tune(**arguments, device="cpu", studies_dir=folder, progress=False, callbacks=note)
        num_trials = len(result.trials())
    num_blocks = len(estimates[-1].work.block_s) if estimates else 0
    return Run(name, time.monotonic() - begun, ended[-1], num_trials, num_blocks, tuple(estimates))


def judge(records: Sequence[Run]) -> list[Goal]:
    """By the mean over the runs."""
    mean = sum(each.error_share for each in records) / len(records)
    worst = max(records, key=lambda each: each.error_share)
    text = f"from a third of the run on the mean absolute error is at most {GOAL:.0%} of the mean time left"
    return [Goal(text, f"{mean:.0%} on average, {worst.error_share:.0%} at worst ({worst.name})", mean <= GOAL)]


def section(records: Sequence[Run]) -> str:
    """A row a run."""
    about = (
        "How long a run will go on, as it says itself after each trial and each block of the confirmation, against "
        "what it took. The error is the mean of the absolute one from a third of the run on, in seconds and as a share "
        "of the mean time left; the last three columns are what was said / what was true at a third, a half and three "
        "quarters of the run. The runs were recorded on a machine that others used as well, which makes trials longer "
        "and shorter at random: an idle machine is easier to foretell."
    )
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
    options=options,
)

if __name__ == "__main__":
    BENCHMARK.main()
