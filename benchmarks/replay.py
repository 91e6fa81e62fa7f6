"""Searches replayed on recorded tables: how many trials until a config within 2 % of the best feasible one was run?

Every config of a table was measured once, so any search can be run on it in no time, and what it found be held against
the exhaustive truth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna

from benchmarks import fronts
from benchmarks.record import Conditions, Goal, Report, percent, publish, table
from benchmarks.replayed import NEAR, Question, Replay, constrained
from benchmarks.searches import Search, own, searches
from benchmarks.table import TABLES, Table, recorded_tables

NUM_SEEDS = 20
MOST_TRIALS = 200
"""A search that has not found it by then is counted with so many trials."""
GOAL_TRIALS = 20
BAR_REGRET, BAR_SHARE = 1 / 0.95 - 1, 0.10
"""What is published of NVIDIA Model Analyzer's quick search: over 95 % of the best in under 10 % of the space."""
OWN, SLOW = "autotune", "GP (Optuna)"
NUM_SEEDS_OF = {SLOW: 3, "loop over modes": 1}
"""One takes seconds for each question, the other is always the same."""
STOCK = frozenset({"TPE (Optuna's default)", "TPE, grouped", "NSGA-II", "BruteForce", "Random (Optuna)", SLOW})
"""Optuna's own samplers."""


@dataclass(frozen=True)
class Runs:
    """All replays of one search on one question."""

    question: str
    search: str
    replays: Sequence[Replay]

    @property
    def num_found(self) -> int:
        return sum(each.is_found for each in self.replays)

    @property
    def trials(self) -> list[int]:
        """Until it was found; as many as there are at most where it was not."""
        return [len(each.rows) if each.is_found else MOST_TRIALS for each in self.replays]

    @property
    def mean_trials(self) -> float:
        return statistics.fmean(self.trials)

    def mean(self, figure: str) -> float:
        """Of a figure of the replays."""
        return statistics.fmean(float(getattr(each, figure)) for each in self.replays)

    def cells(self) -> list[str]:
        return [
            self.search,
            f"{self.num_found} of {len(self.replays)}",
            f"{self.mean_trials:.1f}",
            str(max(self.trials)),
            f"{self.mean('num_distinct'):.1f}",
            f"{self.mean('num_programs'):.1f}",
            f"{self.mean('wall_s') / 60:.1f}",
            percent(self.mean("regret")),
        ]

    def as_data(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "search": self.search,
            "found": self.num_found,
            "trials": self.trials,
            "distinct": [each.num_distinct for each in self.replays],
            "programs": [each.num_programs for each in self.replays],
            "wall_s": [round(each.wall_s, 1) for each in self.replays],
            "regret": [each.regret for each in self.replays],
        }


_HEADER = ["search", "found", "trials", "at most", "distinct", "programs", "minutes", "regret at the end"]


def questions(tables: Mapping[str, Table]) -> dict[str, Question]:
    """Each table as it is, and with compile time or memory kept at or below its median."""
    asked: dict[str, Question] = {}
    for name, each in tables.items():
        asked[name] = Question(each)
        for quantity in ("compile", "peak_memory"):
            if (question := constrained(each, quantity)) is not None:
                asked[f"{name}, {quantity} at most its median"] = question
    return asked


def run(name: str, question: Question, label: str, search: Search, num_seeds: int) -> Runs:
    """The search with seeds 0, 1, 2 ..."""
    replays = []
    for seed in range(num_seeds):
        replay = Replay(question, MOST_TRIALS)
        search(replay, seed)
        replays.append(replay)
    runs = Runs(name, label, replays)
    print(f"{name}: {' | '.join(runs.cells())}", flush=True)
    return runs


def all_runs(asked: Mapping[str, Question], num_seeds: int, *, with_slow: bool) -> Iterator[Runs]:
    """Every search on every question; the slow one without constraints only."""
    for name, question in asked.items():
        for label, search in searches().items():
            if label == SLOW and (question.constraints or not with_slow):
                continue
            yield run(name, question, label, search, min(num_seeds, NUM_SEEDS_OF.get(label, num_seeds)))


@dataclass(frozen=True)
class Ends:
    """Where the tool's own search stops by itself, over the seeds."""

    question: str
    num_configs: int
    trials: Sequence[int]
    regrets: Sequence[float]

    def cells(self) -> list[str]:
        near = sum(each <= NEAR for each in self.regrets)
        return [
            self.question,
            str(self.num_configs),
            f"{statistics.fmean(self.trials):.1f}",
            str(max(self.trials)),
            f"{near} of {len(self.regrets)}",
            percent(statistics.fmean(self.regrets)),
            percent(max(self.regrets)),
        ]


def ends(name: str, question: Question, num_seeds: int) -> Ends:
    """Replays of the whole search, with no goal but its own."""
    replays = []
    for seed in range(num_seeds):
        replay = Replay(question, len(question.table.rows), goal=-1.0)
        own(replay, seed, stop_early=True)
        replays.append(replay)
    found = Ends(name, len(question.table.rows), [len(r.rows) for r in replays], [r.regret for r in replays])
    print(f"{name}, to its own end: {' | '.join(found.cells())}", flush=True)
    return found


@dataclass(frozen=True)
class Bar:
    """Trials until more than 95 % of the best throughput is reached, and their share of the space."""

    question: str
    num_configs: int
    trials: Sequence[int]

    @property
    def share(self) -> float:
        return statistics.fmean(self.trials) / self.num_configs

    def cells(self) -> list[str]:
        return [self.question, str(self.num_configs), f"{statistics.fmean(self.trials):.1f}", percent(self.share)]


def bar(name: str, question: Question, num_seeds: int) -> Bar:
    """The tool's own search against the bar."""
    trials = []
    for seed in range(num_seeds):
        replay = Replay(question, MOST_TRIALS, goal=BAR_REGRET)
        own(replay, seed)
        trials.append(len(replay.rows))
    return Bar(name, len(question.table.rows), trials)


def goals_of(largest: str, runs: Sequence[Runs], bars: Sequence[Bar]) -> list[Goal]:
    """About the largest table without constraints, and the bar on all tables."""
    of = {each.search: each for each in runs if each.question == largest}
    mine, stock = of[OWN], min((of[name] for name in STOCK & of.keys()), key=lambda each: each.mean_trials)
    num_quick = sum(each <= GOAL_TRIALS for each in mine.trials)
    num_passed = sum(each.share < BAR_SHARE for each in bars)
    return [
        Goal(
            f"within 2 % of the best in at most {GOAL_TRIALS} compilations on the largest table ({largest}), any seed",
            f"{num_quick} of {len(mine.trials)} seeds, {max(mine.trials)} compilations at most",
            num_quick == len(mine.trials),
        ),
        Goal(
            "at most half of what the best of Optuna's own samplers needs there",
            f"{mine.mean_trials:.1f} against {stock.mean_trials:.1f} ({stock.search}) on average",
            mine.mean_trials <= stock.mean_trials / 2,
        ),
        Goal(
            "more than 95 % of the best throughput in less than 10 % of the space, on average over the seeds",
            f"{num_passed} of {len(bars)} tables",
            num_passed == len(bars),
        ),
    ]


def _left_out(runs: Sequence[Runs]) -> str:
    return "" if any(each.search == SLOW for each in runs) else f" {SLOW} was left out of this run."


def report_of(
    tables: Mapping[str, Table],
    runs: Sequence[Runs],
    stops: Sequence[Ends],
    bars: Sequence[Bar],
    both: Sequence[fronts.Front],
) -> Report:
    """All of it."""
    largest = max(tables, key=lambda name: len(tables[name].rows))
    asked = dict.fromkeys(each.question for each in runs)
    parts = [f"**{name}**\n\n{table(_HEADER, [r.cells() for r in runs if r.question == name])}" for name in asked]
    parts += [
        "The tool's own search to where it stops by itself:\n\n"
        + table(
            ["question", "configs", "trials", "at most", "within 2 %", "regret", "at most"],
            [each.cells() for each in stops],
        ),
        "Until more than 95 % of the best throughput:\n\n"
        + table(["table", "configs", "trials", "of the space"], [each.cells() for each in bars]),
        "Latency and peak memory at once, share of the area under the true front:\n\n"
        + table(["table", "search", *(f"after {n} configs" for n in fronts.AFTER)], [each.cells() for each in both]),
    ]
    return Report(
        name="replay",
        title="Searches replayed on recorded tables",
        about=(
            "Every config of a table was measured once (`benchmarks/tables/`), so what a search finds can be held "
            "against the exhaustive truth. *Trials*: compilations until one within 2 % of the best feasible config was "
            "run, the untuned model and the default compile included, with which every search starts; "
            f"{MOST_TRIALS} where it was not found. *Distinct*: had configs that came again not been compiled again. "
            "*Programs*: different compiled programs among them. *Minutes*: what the trials took when the table was "
            "recorded. Configs that gave the same program are repeats of one measurement; the median of these is the "
            "truth, a search sees the single figure." + _left_out(runs)
        ),
        goals=goals_of(largest, runs, bars),
        body="\n\n".join(parts),
        results={
            "tables": {
                name: {"configs": len(each.rows), "programs": each.num_programs} for name, each in tables.items()
            },
            "runs": [each.as_data() for each in runs],
            "ends": [vars(each) for each in stops],
            "bars": [vars(each) for each in bars],
            "fronts": [vars(each) for each in both],
        },
    )


def main() -> None:
    """Replay every search on every table, and write the section."""
    parser = argparse.ArgumentParser(description="How many trials until a config within 2 % of the best was run?")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of each search (default: %(default)s)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the recorded tables")
    parser.add_argument("--without-slow", action="store_true", help=f"leave out {SLOW}, which takes an hour")
    parser.add_argument("--quick", action="store_true", help="two seeds of each search, without the slow one")
    given = parser.parse_args()
    num_seeds = 2 if given.quick else given.seeds

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    conditions = Conditions.now()
    tables = recorded_tables(given.tables)
    asked = questions(tables)
    runs = list(all_runs(asked, num_seeds, with_slow=not (given.quick or given.without_slow)))
    stops = [ends(name, question, num_seeds) for name, question in asked.items()]
    bars = [bar(name, asked[name], num_seeds) for name in tables]
    both = [
        fronts.replay_front(name, each, label, num_seeds)
        for name, each in tables.items()
        for label in fronts.samplers(each.space)
    ]
    publish(report_of(tables, runs, stops, bars, both), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
