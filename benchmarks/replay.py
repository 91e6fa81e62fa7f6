"""Searches replayed on recorded tables: how many trials until a config within 2 % of the best feasible one was run?

Every config of a table was measured once, so any search can be run on it in no time, and what it found be held against
the exhaustive truth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna

from benchmarks import fronts
from benchmarks.frame import Benchmark
from benchmarks.record import Goal, percent, table
from benchmarks.replayed import NEAR, Question, Replay, constrained
from benchmarks.searches import own, searches
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
class Case:
    """A search on a question, with seeds 0, 1, 2 ...; `what` says what is asked about it."""

    what: Literal["search", "end", "bar", "front"]
    question: str
    search: str
    num_seeds: int
    tables: Path

    @property
    def name(self) -> str:
        return f"{self.what}: {self.question}: {self.search}"


@dataclass(frozen=True)
class Runs:
    """All replays of one search on one question, a figure for each."""

    question: str
    search: str
    num_configs: int
    """Of the table."""
    found: int
    trials: list[int]
    """Until it was found; as many as there are at most where it was not."""
    distinct: list[int]
    programs: list[int]
    wall_s: list[float]
    regret: list[float]

    @property
    def mean_trials(self) -> float:
        return statistics.fmean(self.trials)

    def cells(self) -> list[str]:
        return [
            self.search,
            f"{self.found} of {len(self.trials)}",
            f"{self.mean_trials:.1f}",
            str(max(self.trials)),
            f"{statistics.fmean(self.distinct):.1f}",
            f"{statistics.fmean(self.programs):.1f}",
            f"{statistics.fmean(self.wall_s) / 60:.1f}",
            percent(statistics.fmean(self.regret)),
        ]


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


@cache
def tables_in(folder: Path) -> dict[str, Table]:
    """Read once for all cases."""
    return recorded_tables(folder)


@cache
def questions_in(folder: Path) -> dict[str, Question]:
    """The same, with what is asked about them."""
    return questions(tables_in(folder))


def runs_of(case: Case, question: Question) -> Runs:
    """Every seed until a config near the best was run, or there are no more trials."""
    replays = [Replay(question, MOST_TRIALS) for _ in range(case.num_seeds)]
    for seed, replay in enumerate(replays):
        searches()[case.search](replay, seed)
    return Runs(
        question=case.question,
        search=case.search,
        num_configs=len(question.table.rows),
        found=sum(each.is_found for each in replays),
        trials=[len(each.rows) if each.is_found else MOST_TRIALS for each in replays],
        distinct=[each.num_distinct for each in replays],
        programs=[each.num_programs for each in replays],
        wall_s=[round(each.wall_s, 1) for each in replays],
        regret=[each.regret for each in replays],
    )


@dataclass(frozen=True)
class Ends:
    """Where the tool's own search stops by itself, over the seeds."""

    question: str
    num_configs: int
    trials: Sequence[int]
    wall_s: Sequence[float]
    regrets: Sequence[float]

    def cells(self) -> list[str]:
        near = sum(each <= NEAR for each in self.regrets)
        return [
            self.question,
            str(self.num_configs),
            f"{statistics.fmean(self.trials):.1f}",
            str(max(self.trials)),
            f"{statistics.fmean(self.wall_s) / 60:.1f}",
            f"{near} of {len(self.regrets)}",
            percent(statistics.fmean(self.regrets)),
            percent(max(self.regrets)),
        ]


def ends_of(case: Case, question: Question) -> Ends:
    """Replays of the whole search, with no goal but its own."""
    replays = [Replay(question, len(question.table.rows), goal=-1.0) for _ in range(case.num_seeds)]
    for seed, replay in enumerate(replays):
        own(replay, seed, stop_early=True)
    return Ends(
        question=case.question,
        num_configs=len(question.table.rows),
        trials=[len(each.rows) for each in replays],
        wall_s=[round(each.wall_s, 1) for each in replays],
        regrets=[each.regret for each in replays],
    )


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


def bar_of(case: Case, question: Question) -> Bar:
    """The tool's own search against the bar."""
    replays = [Replay(question, MOST_TRIALS, goal=BAR_REGRET) for _ in range(case.num_seeds)]
    for seed, replay in enumerate(replays):
        own(replay, seed)
    return Bar(case.question, len(question.table.rows), [len(each.rows) for each in replays])


Record = Runs | Ends | Bar | fronts.Front
K = TypeVar("K")


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of each search (default: %(default)s)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the recorded tables")
    parser.add_argument("--without-slow", action="store_true", help=f"leave out {SLOW}, which takes an hour")


def cases(given: argparse.Namespace) -> list[Case]:
    """Every search on every question, the slow one without constraints only; for a smoke run two seeds, no slow one."""
    num_seeds, without_slow = (2, True) if given.quick else (given.seeds, given.without_slow)
    asked, tables = questions_in(given.tables), tables_in(given.tables)
    found = [
        Case("search", name, label, min(num_seeds, NUM_SEEDS_OF.get(label, num_seeds)), given.tables)
        for name, question in asked.items()
        for label in searches()
        if label != SLOW or not (question.constraints or without_slow)
    ]
    found += [Case("end", name, OWN, num_seeds, given.tables) for name in asked]
    found += [Case("bar", name, OWN, num_seeds, given.tables) for name in tables]
    return found + [
        Case("front", name, label, num_seeds, given.tables)
        for name, each in tables.items()
        for label in fronts.samplers(each.space)
    ]


def run(case: Case) -> Record:
    """Replay the case's search with each seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    question = questions_in(case.tables)[case.question]
    if case.what == "search":
        return runs_of(case, question)
    if case.what == "end":
        return ends_of(case, question)
    if case.what == "bar":
        return bar_of(case, question)
    return fronts.replay_front(case.question, question.table, case.search, case.num_seeds)


def judge(records: Sequence[Record]) -> list[Goal]:
    """About the largest table without constraints, and the bar on all tables."""
    runs, bars = _those(Runs, records), _those(Bar, records)
    largest = max((each for each in runs if ", " not in each.question), key=lambda each: each.num_configs).question
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


def section(records: Sequence[Record]) -> str:
    """A table for each question, and one for each of the other parts."""
    runs = _those(Runs, records)
    asked = dict.fromkeys(each.question for each in runs)
    left_out = "" if any(each.search == SLOW for each in runs) else f" {SLOW} was left out of this run."
    about = (
        "Every config of a table was measured once (`benchmarks/tables/`), so what a search finds can be held "
        "against the exhaustive truth. *Trials*: compilations until one within 2 % of the best feasible config was "
        "run, the untuned model and the default compile included, with which every search starts; "
        f"{MOST_TRIALS} where it was not found. *Distinct*: had configs that came again not been compiled again. "
        "*Programs*: different compiled programs among them. *Minutes*: what the trials took when the table was "
        "recorded. Configs that gave the same program are repeats of one measurement; the median of these is the "
        "truth, a search sees the single figure." + left_out
    )
    parts = [f"**{name}**\n\n{table(_HEADER, [r.cells() for r in runs if r.question == name])}" for name in asked]
    ends = ["question", "configs", "trials", "at most", "minutes", "within 2 %", "regret", "at most"]
    bars = ["table", "configs", "trials", "of the space"]
    both = ["table", "search", *(f"after {n} configs" for n in fronts.AFTER)]
    parts += [
        f"{heading}:\n\n{table(header, [each.cells() for each in those])}"
        for heading, header, those in (
            ("The tool's own search to where it stops by itself", ends, _those(Ends, records)),
            ("Until more than 95 % of the best throughput", bars, _those(Bar, records)),
            ("Latency and peak memory at once, share of the area under the true front", both,
             _those(fronts.Front, records)),
        )
    ]  # fmt: skip
    return "\n\n".join([about, *parts])


def _those(kind: type[K], records: Sequence[Record]) -> list[K]:
    return [each for each in records if isinstance(each, kind)]


BENCHMARK = Benchmark(
    "replay", "Searches replayed on recorded tables", __doc__, Record, cases, run, judge, section, options
)

if __name__ == "__main__":
    BENCHMARK.main()
