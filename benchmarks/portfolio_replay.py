"""What a portfolio is worth on a kind of model that it was not made from, and when a search that began with it may end.

Each question is a model whose configs were all recorded. The search of the product runs on it twice: from today's start
(untuned, default, then configs far away), and from a portfolio chosen on all models of other kinds. Each search goes on
to its last config or `MOST_TRIALS`; rules for its end are laid over it afterwards.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna

from autotune.config import Config
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.space.portfolio import Portfolio, PortfolioTable, portfolio_for, recorded
from autotune.space.space import Knob, SearchSpace
from autotune.study.folder import FolderStudies
from autotune.study.sampler.sampler import Sampler
from autotune.workload.workload import Task
from benchmarks.portfolio import (
    DESIGN,
    FLOAT_TOLERANCE,
    HALF_TOLERANCE,
    RECORDS,
    TABLES_OF,
    Readings,
    design,
    is_half,
    readings_of,
    space_for,
    text_of,
)
from benchmarks.simulated import manifest_of, measurement_of
from benchmarks.tables import Question, read_table

MOST_TRIALS = 30
NUM_SEEDS = 6
Start = Literal["untuned and default", "portfolio"]


@dataclass(frozen=True)
class Truth:
    """What each config of a space gives: seconds a call as a trial saw it, as it is, and seconds of its trial."""

    space: SearchSpace
    framework: str
    task: Task
    kind: str
    seen_s: dict[Config, float | None]
    true_s: dict[Config, float]
    trial_s: dict[Config, float]

    @property
    def best_s(self) -> float:
        return min(self.true_s.values())


def whole_table(name: str, framework: str, *, half: bool) -> Truth:
    """A recorded table, without half precision where the tolerance is that of float32."""
    question = Question(read_table(name))
    space = question.table.space
    rows = question.table.rows
    if not half:
        space = _without_half(space)
        rows = tuple(row for row in rows if space.holds(row.config))
    tolerance = HALF_TOLERANCE if half else FLOAT_TOLERANCE
    right = {row.config: row for row in rows if row.works and (row.error or 0.0) <= tolerance}
    return Truth(
        space=space,
        framework=framework,
        task="infer",
        kind=TABLES_OF[framework][name],
        seen_s={row.config: right[row.config].latency_s if row.config in right else None for row in rows},
        true_s={config: question.latency_s(row) for config, row in right.items()},
        trial_s={row.config: row.trial_s for row in rows},
    )


def _without_half(space: SearchSpace) -> SearchSpace:
    def narrowed(knob: Knob) -> Knob:
        return knob.model_copy(update={"values": (None,)}) if knob.name == "precision" else knob

    return space.model_copy(update={"knobs": tuple(narrowed(knob) for knob in space.knobs)})


def designed(one: Readings, framework: str, task: Task, *, half: bool) -> Truth:
    """The configs that were recorded of a model, one figure for each: what a trial sees is the truth."""
    space = space_for(framework, task) if half else _without_half(space_for(framework, task))
    configs = {space.untuned(): (1.0, UNTUNED_TRIAL_S)}
    for settings, config in design(framework, task, space):
        gain = one.gain(settings)
        if gain is not None and (half or not is_half(settings)):
            configs[config] = (1 / gain, statistics.fmean(one.seconds.get(text_of(settings)) or [UNTUNED_TRIAL_S]))
    call_s = {config: seconds for config, (seconds, _) in configs.items()}
    return Truth(
        space=space,
        framework=framework,
        task=task,
        kind=one.kind,
        seen_s=dict(call_s),
        true_s=call_s,
        trial_s={config: seconds for config, (_, seconds) in configs.items()},
    )


UNTUNED_TRIAL_S = 1.5
FEWEST_CONFIGS = 7
"""A model of which fewer were recorded is no question."""


@cache
def truths() -> dict[str, Truth]:
    """Every question, by name."""
    found = {}
    for framework, tables in TABLES_OF.items():
        for name in tables:
            for half in (False, True) if framework == "torch" else (False,):
                found[f"{name}, tolerance {HALF_TOLERANCE if half else FLOAT_TOLERANCE:g}"] = whole_table(
                    name, framework, half=half
                )
    for framework, task in DESIGN:
        for one in readings_of(framework, task, RECORDS):
            truth = designed(one, framework, task, half=False)
            if "(table)" not in one.name and len(truth.true_s) >= FEWEST_CONFIGS:
                found[f"{one.name}, {framework}, designed"] = truth
    return found


def portfolio_without(truth: Truth) -> Portfolio | None:
    """Of the package's models of all other kinds, in the question's space."""
    tables = [_without_kind(one, truth.kind) for one in recorded()]
    return portfolio_for(truth.space, "cpu", truth.task, tables)


def _without_kind(one: PortfolioTable, kind: str) -> PortfolioTable:
    kept = [number for number, other in enumerate(one.kinds) if other != kind]
    entries = tuple(
        entry.model_copy(update={"gains": tuple(entry.gains[number] for number in kept)}) for entry in one.entries
    )
    names = tuple(one.models[number] for number in kept)
    return one.model_copy(
        update={"models": names, "kinds": tuple(one.kinds[number] for number in kept), "entries": entries}
    )


@dataclass(frozen=True)
class Case:
    """A question, from one of the two starts, with seeds 0, 1, 2 ..."""

    question: str
    start: Start
    num_seeds: int

    @property
    def name(self) -> str:
        return f"{self.question}: {self.start}"


@dataclass(frozen=True)
class Step:
    """A trial of a search, and what was expected of the next one after it."""

    regret: float | None
    """By which share its config is slower than the best of the question; None: it failed."""
    seen_s: float | None
    trial_s: float
    expected_gain: float | None
    """None where there is no forecast."""
    num_idle: int


@dataclass(frozen=True)
class Searches:
    """A search for each seed."""

    question: str
    start: Start
    num_configs: int
    is_whole: bool
    """The table of a whole space, and no designed part of one."""
    num_planned: int
    """Configs of the start: two, or those of the portfolio."""
    searches: list[list[Step]]


def run(case: Case) -> Searches:
    """Replay the search with each seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    truth = truths()[case.question]
    portfolio = portfolio_without(truth) if case.start == "portfolio" else None
    return Searches(
        question=case.question,
        start=case.start,
        num_configs=len(truth.seen_s),
        is_whole="(table)" not in case.question and "designed" not in case.question,
        num_planned=2 if portfolio is None else sum(config in truth.seen_s for config in portfolio.configs),
        searches=[_search(truth, portfolio, seed) for seed in range(case.num_seeds)],
    )


def _search(truth: Truth, portfolio: Portfolio | None, seed: int) -> list[Step]:
    """The search of the product; what was not recorded it does not know."""
    with tempfile.TemporaryDirectory(prefix="autotune-replay-") as folder:
        study = FolderStudies(Path(folder)).create(manifest_of(truth.space, seed))
        study.portfolio = portfolio
        sampler = Sampler(study)
        sampler.exclude(lambda config: config not in truth.seen_s)
        steps: list[Step] = []
        while len(steps) < MOST_TRIALS and (config := sampler.suggest()) is not None:
            seen_s = truth.seen_s[config]
            study.tell(study.ask(config, longest_s=60), _outcome(seen_s, truth.trial_s[config]))
            forecast = sampler.forecast()
            steps.append(
                Step(
                    regret=truth.true_s[config] / truth.best_s - 1 if config in truth.true_s else None,
                    seen_s=seen_s,
                    trial_s=truth.trial_s[config],
                    expected_gain=forecast.expected_gain if forecast else None,
                    num_idle=forecast.num_idle if forecast else 0,
                )
            )
        study.close()
        return steps


def _outcome(seen_s: float | None, trial_s: float) -> Outcome:
    if seen_s is None:
        return Failure(reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="recorded as wrong")
    return measurement_of((seen_s,) * 3).model_copy(update={"stage_s": {Stage.COMPILE: trial_s}})


@dataclass(frozen=True)
class Rule:
    """When a search ends: after so many trials, so many of them idle, and with less than this share to be expected."""

    name: str
    fewest: int | None
    """None: one more than the start has."""
    idle: int
    worth: float

    def num_trials(self, searches: Searches, steps: Sequence[Step]) -> int:
        """Trials of the search until the rule ends it, or it ends."""
        fewest = searches.num_planned + 1 if self.fewest is None else self.fewest
        for number, step in enumerate(steps, start=1):
            is_little = step.expected_gain is not None and step.expected_gain < self.worth
            if number >= fewest and is_little and step.num_idle >= self.idle:
                return number
        return len(steps)


def reached(steps: Sequence[Step], goal: float) -> tuple[int, float] | None:
    """Trials and their seconds until a config within `goal` of the best had been tried; None: it never was."""
    spent_s = 0.0
    for number, step in enumerate(steps, start=1):
        spent_s += step.trial_s
        if step.regret is not None and step.regret <= goal:
            return number, spent_s
    return None


def ended(steps: Sequence[Step]) -> tuple[float, float]:
    """Seconds of the trials, and the regret of the config that looked best among them."""
    best = min((step for step in steps if step.seen_s is not None), key=lambda step: step.seen_s or math.inf)
    return sum(step.trial_s for step in steps), best.regret or 0.0
