"""What does it cost the search that eight workers ask before the others' answers are there?

The tool's own search on the recorded tables, with simulated workers: a trial takes as long as it took when the table
was recorded, and a worker that is free asks at once, so that the sampler sees the others' trials as running.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna

from autotune.study.folder import FolderStudies
from autotune.study.study import AskedTrial, Study
from autotune.tuning.jobs import num_at_once
from benchmarks.frame import Benchmark
from benchmarks.record import Goal, table
from benchmarks.replay import MOST_TRIALS, tables_in
from benchmarks.replayed import Enough, Question, Replay
from benchmarks.simulated import manifest_of
from benchmarks.table import TABLES

WORKERS = (1, 8)
NUM_SEEDS = 10
MOST_GROWTH = 1.5


@dataclass(frozen=True)
class Case:
    """A table, and how many workers search it."""

    table: str
    num_workers: int
    num_seeds: int
    tables: Path

    @property
    def name(self) -> str:
        return f"{self.table}, {self.num_workers} workers"


@dataclass(frozen=True)
class Batches:
    """The searches of one table, a figure for each seed."""

    table: str
    num_configs: int
    num_workers: int
    compilations: list[int]
    """That ended until a config within 2 % of the best one was measured, its own included."""
    begun: list[int]
    """The same, with those that were running then."""
    search_s: list[float]
    """By the simulated clock."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.compilations)


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of each search (default: %(default)s)")
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the recorded tables")


def cases(given: argparse.Namespace) -> list[Case]:
    """Each table with each number of workers."""
    num_seeds = 1 if given.quick else given.seeds
    return [Case(name, each, num_seeds, given.tables) for name in tables_in(given.tables) for each in WORKERS]


def run(case: Case) -> Batches:
    """Every seed until a config near the best was measured."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    question = Question(tables_in(case.tables)[case.table])
    searches = [_search(question, seed, case.num_workers) for seed in range(case.num_seeds)]
    compilations, begun, search_s = map(list, zip(*searches, strict=True))
    return Batches(case.table, len(question.table.rows), case.num_workers, compilations, begun, search_s)


def _search(question: Question, seed: int, num_workers: int) -> tuple[int, int, float]:
    """Compilations, those begun, and seconds."""
    replay = Replay(question, MOST_TRIALS)
    with tempfile.TemporaryDirectory(prefix="autotune-batches-") as folder:
        study = FolderStudies(Path(folder)).create(manifest_of(question.table.space, seed))
        try:
            return _run(replay, study, num_workers)
        finally:
            study.close()


def _run(replay: Replay, study: Study, num_workers: int) -> tuple[int, int, float]:
    by_config = replay.question.table.by_config
    running: list[tuple[float, int, AskedTrial]] = []
    now = 0.0
    while True:
        # As `tune` does it: the untuned model runs alone, since it leaves the reference.
        while len(running) < (num_at_once(num_workers, study.num_recorded()) if replay.rows else 1):
            asked = study.ask(longest_s=60)
            if asked is None:
                break
            heapq.heappush(running, (now + by_config[asked.config].trial_s, asked.number, asked))
        if not running:
            return len(replay.rows), len(replay.rows), now
        now, _, asked = heapq.heappop(running)
        try:
            study.tell(asked, replay.run(asked.config))
        except Enough:
            return len(replay.rows), len(replay.rows) + len(running), now


def growths(records: Sequence[Batches]) -> dict[str, float]:
    """Table -> compilations of most workers as a multiple of those of one."""
    alone = {each.table: each.mean for each in records if each.num_workers == WORKERS[0]}
    return {each.table: each.mean / alone[each.table] for each in records if each.num_workers == WORKERS[-1]}


def judge(records: Sequence[Batches]) -> list[Goal]:
    """On every table, and over all of them."""
    grown = growths(records)
    passed = sum(each <= MOST_GROWTH for each in grown.values())
    sums = [sum(each.mean for each in records if each.num_workers == number) for number in (WORKERS[0], WORKERS[-1])]
    what = f"compilations to within 2 % of the best with {WORKERS[-1]} workers: at most {MOST_GROWTH:g} times one's"
    return [
        Goal(f"{what}, on each table", f"{passed} of {len(grown)} tables", passed == len(grown)),
        Goal(f"{what}, over all tables", f"{sums[1] / sums[0]:.2f} times", sums[1] <= MOST_GROWTH * sums[0]),
    ]


def section(records: Sequence[Batches]) -> str:
    """A row for each table and number of workers."""
    about = (
        "The tool's own search on the recorded tables (`benchmarks/tables/`), with simulated workers: a trial takes as "
        "long as when the table was recorded. A worker that is free asks at once, but no more of them run at a time "
        "than there are trials on record (three from the start). *Compilations*: until a config within 2 % of the "
        "best one was measured; *begun*: with those that were still running then. *Minutes*: by the simulated clock, "
        "every worker a machine of its own."
    )
    header = ["table", "configs", "workers", "compilations", "at most", "begun", "minutes"]
    rows = [
        [
            each.table, str(each.num_configs), str(each.num_workers), f"{each.mean:.1f}", str(max(each.compilations)),
            f"{statistics.fmean(each.begun):.1f}", f"{statistics.fmean(each.search_s) / 60:.1f}",
        ]
        for each in records
    ]  # fmt: skip
    return f"{about}\n\n{table(header, rows)}"


BENCHMARK = Benchmark("batches", "The search with eight workers", __doc__, Batches, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
