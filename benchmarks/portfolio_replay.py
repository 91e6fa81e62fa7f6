"""What a portfolio is worth on a kind of model that it was not made from, and when a search that began with it may end.

Each question is a model whose configs were all recorded. The search of the product runs on it twice: from today's start
(untuned, default, then configs far away), and from a portfolio chosen on all models of other kinds. Each search goes on
to its last config or `MOST_TRIALS`; rules for its end are laid over it afterwards.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna

from autotune.config import Config
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.space.portfolio import Portfolio, PortfolioTable, portfolio_for, recorded
from autotune.space.space import Knob, SearchSpace
from autotune.study.early_stop import StopRule
from autotune.study.folder import FolderStudies
from autotune.study.sampler.sampler import Sampler
from autotune.workload.workload import Task
from benchmarks.evidence import Benchmark, Goal, percent, table
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
NUM_SEEDS = 2
"""With a portfolio little is left to chance."""
GOALS = (0.05, 0.02)
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
        for one in readings_of(framework, task, RECORDS["cpu"]):
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
class Arrival:
    """Trials and their seconds until a config within a share of the best was tried; all of them where none was."""

    trials: int
    seconds: float
    is_there: bool


@dataclass(frozen=True)
class End:
    """Where a rule ends a search: after so many trials and seconds, with the config that looks best so much slower than
    the best."""

    trials: int
    seconds: float
    regret: float


@dataclass(frozen=True)
class Found:
    """What became of the searches, one for each seed."""

    question: str
    start: Start
    num_configs: int
    num_planned: int
    """Configs of the start: two, or those of the portfolio."""
    arrivals: dict[str, list[Arrival]]
    """By the share."""
    ends: dict[str, list[End]]
    """By the rule."""

    @property
    def is_whole(self) -> bool:
        """The table of a whole space, and no designed part of one."""
        return "designed" not in self.question


def run(case: Case) -> Found:
    """Replay the search with each seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    truth = truths()[case.question]
    portfolio = portfolio_without(truth) if case.start == "portfolio" else None
    num_planned = 2 if portfolio is None else sum(config in truth.seen_s for config in portfolio.configs)
    searches = [_search(truth, portfolio, seed) for seed in range(case.num_seeds)]
    return Found(
        question=case.question,
        start=case.start,
        num_configs=len(truth.seen_s),
        num_planned=num_planned,
        arrivals={f"{goal:g}": [arrival(steps, goal) for steps in searches] for goal in GOALS},
        ends={name: [end(steps, rule(num_planned)) for steps in searches] for name, rule in RULES.items()},
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


def arrival(steps: Sequence[Step], goal: float) -> Arrival:
    """When the search had tried a config within this share of the best."""
    spent_s = 0.0
    for number, step in enumerate(steps, start=1):
        spent_s += step.trial_s
        if step.regret is not None and step.regret <= goal:
            return Arrival(number, round(spent_s, 1), is_there=True)
    return Arrival(len(steps), round(spent_s, 1), is_there=False)


def end(steps: Sequence[Step], rule: StopRule) -> End:
    """Where this rule ends the search, if it does not end by itself before."""
    tried = list(steps)
    for number, step in enumerate(steps, start=1):
        is_little = step.expected_gain is not None and step.expected_gain < rule.worth_a_trial
        if is_little and number >= rule.fewest_trials and step.num_idle >= rule.fewest_idle:
            tried = tried[:number]
            break
    best = min((step for step in tried if step.seen_s is not None), key=lambda step: step.seen_s or math.inf)
    return End(len(tried), round(sum(step.trial_s for step in tried), 1), best.regret or 0.0)


RULES: dict[str, Callable[[int], StopRule]] = {
    "without a portfolio": lambda _: StopRule(),
    "after one": lambda num_planned: StopRule.after(num_planned, is_thorough=False),
    "after one, thorough": lambda num_planned: StopRule.after(num_planned, is_thorough=True),
}


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of each search (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Every question from both starts; for a smoke run the first two."""
    names = list(truths())[:2] if given.quick else list(truths())
    return [Case(name, start, given.seeds) for name in names for start in get_args(Start)]


def judge(records: Sequence[Found]) -> list[Goal]:
    """About all questions together."""
    near = {start: _seconds_to(records, start, "0.05") for start in get_args(Start)}
    today, ours = (
        _ends(records, start, rule)
        for start, rule in (("untuned and default", "without a portfolio"), ("portfolio", "after one"))
    )
    slower = statistics.fmean(one.regret for one in ours) - statistics.fmean(one.regret for one in today)
    return [
        Goal(
            "within 5 % of the best in half the seconds of trials, on kinds of models that it was not made from",
            f"{near['portfolio']:.0f} s against {near['untuned and default']:.0f} s, added up over the questions",
            near["portfolio"] <= near["untuned and default"] / 2,
        ),
        Goal(
            "the search ends sooner, and with a config that is on average at most 0.5 % slower",
            f"{sum(one.seconds for one in ours):.0f} s against {sum(one.seconds for one in today):.0f} s, "
            f"and {percent(slower)} slower",
            slower <= 0.005 and sum(one.seconds for one in ours) < sum(one.seconds for one in today),
        ),
    ]


def _seconds_to(records: Sequence[Found], start: str, goal: str) -> float:
    return sum(
        statistics.fmean(one.seconds for one in found.arrivals[goal]) for found in records if found.start == start
    )


def _ends(records: Sequence[Found], start: str, rule: str) -> list[End]:
    return [one for found in records if found.start == start for one in found.ends[rule]]


def section(records: Sequence[Found]) -> str:
    """When the searches arrived, and where they ended."""
    about = (
        "Each model is left out together with all others of its kind, the portfolio is chosen on the rest, and the "
        "product's search runs on the recorded figures from both starts. *Designed* models have the configs that were "
        "recorded for the portfolio, one to three processes each, so that what is found is the best of a dozen; the "
        "other tables hold whole spaces. Single processes scatter by some per cent, so a difference of 2 % between two "
        "configs of one model says little, and what is said over all models says more. Seconds are those of the trials "
        "when they were recorded."
    )
    return "\n\n".join(
        [about, _arrivals(records), "Where rules end these searches, means over the questions:", _rules(records)]
    )


def _arrivals(records: Sequence[Found]) -> str:
    header = [
        "model",
        "configs",
        "portfolio",
        "to 5 %: configs, seconds",
        "from a portfolio",
        "to 2 %",
        "from a portfolio",
    ]
    rows = []
    by_name = {(found.question, found.start): found for found in records}
    for name in dict.fromkeys(found.question for found in records):
        today, ours = (by_name[name, start] for start in get_args(Start))
        told = [_told(found.arrivals[f"{goal:g}"]) for goal in GOALS for found in (today, ours)]
        rows.append([name, str(ours.num_configs), str(ours.num_planned), *told])
    return table(header, rows)


def _told(arrivals: Sequence[Arrival]) -> str:
    trials, seconds = (statistics.fmean(getattr(one, what) for one in arrivals) for what in ("trials", "seconds"))
    return f"{trials:.3g}, {seconds:.0f} s" + ("" if all(one.is_there for one in arrivals) else ", never")


def _rules(records: Sequence[Found]) -> str:
    header = ["questions", "start", "rule", "trials", "seconds", "regret", "at most"]
    rows = []
    for whole in (True, False):
        those = [found for found in records if found.is_whole is whole]
        for start, rule in _SHOWN:
            ends = _ends(those, start, rule)
            if ends:
                means = [statistics.fmean(getattr(one, what) for one in ends) for what in ("trials", "seconds")]
                regrets = [one.regret for one in ends]
                rows.append(
                    [
                        "whole tables" if whole else "designed", start, rule, f"{means[0]:.1f}", f"{means[1]:.0f}",
                        percent(statistics.fmean(regrets)), percent(max(regrets)),
                    ]
                )  # fmt: skip
    return table(header, rows)


_SHOWN = (
    ("untuned and default", "without a portfolio"),
    ("portfolio", "without a portfolio"),
    ("portfolio", "after one"),
    ("portfolio", "after one, thorough"),
)

BENCHMARK = Benchmark(
    "portfolio_replay", "Searches that begin with a portfolio", __doc__, Found, cases, run, judge, section, options
)

if __name__ == "__main__":
    BENCHMARK.main()
