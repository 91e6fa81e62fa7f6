"""Searches replayed on recorded tables: how many trials until a config within 2 % of the best feasible one was run?

Every config of a table was measured once, so any search can be run on it in no time, and what it found be held against
the exhaustive truth. The searches are the tool's own and what others would use.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna
from optuna.samplers import BaseSampler, BruteForceSampler, NSGAIISampler, RandomSampler, TPESampler

from autotune.config import Config
from autotune.measure.measurement import Measurement, Outcome
from autotune.space.space import SearchSpace
from autotune.study.folder import FolderStudies
from autotune.study.sampler.sampler import Sampler
from benchmarks.evidence import Benchmark, Goal, percent, table
from benchmarks.simulated import manifest_of
from benchmarks.tables import NEAR, Enough, Question, Replay, constrained, recorded_tables

NUM_SEEDS = 20
MOST_TRIALS = 200
"""A search that has not found it by then is counted with so many trials."""
GOAL_TRIALS = 20
OWN, ALWAYS_THE_SAME = "autotune", "loop over modes"
STOCK = frozenset({"TPE (Optuna's default)", "TPE, grouped", "NSGA-II", "BruteForce", "Random (Optuna)"})
"""Optuna's own samplers."""

Search = Callable[[Replay, int], None]
"""Runs configs of the replay's table, with a seed, until the replay raises `Enough` or nothing is left to be run."""


def own(replay: Replay, seed: int, *, stop_early: bool = False) -> None:
    """The tool's own study: SQLite, ask and tell, as `tune` uses them."""
    with tempfile.TemporaryDirectory(prefix="autotune-replay-") as folder:
        manifest = manifest_of(replay.question.table.space, seed)
        manifest = manifest.model_copy(update={"constraints": replay.question.constraints})
        study = FolderStudies(Path(folder)).create(manifest)
        sampler = Sampler(study)
        try:
            while (config := sampler.suggest()) is not None:
                study.tell(study.ask(config, longest_s=60), replay.run(config))
                if stop_early and (forecast := sampler.forecast()) is not None and forecast.is_negligible:
                    break
        except Enough:
            pass
        finally:
            study.close()


def at_random(replay: Replay, seed: int) -> None:
    """Every config once, in a random order, after the untuned model and the default compile."""
    space = replay.question.table.space
    first = _first(space)
    others = [config for config in space.configs() if config not in first]
    random.Random(seed).shuffle(others)
    _run_all(replay, [*first, *others])


def by_modes(replay: Replay, seed: int) -> None:  # noqa: ARG001  There is nothing random about it.
    """The loop that users write: the default compile once with each of the modes that the framework offers."""
    space = replay.question.table.space
    changed = [
        _default_but(space, knob.name, value) for knob in space.knobs if knob.name in _MODES for value in knob.values
    ]
    _run_all(
        replay, [config for config in dict.fromkeys([*_first(space), *changed]) if space.forbidden(config) is None]
    )


_MODES = frozenset({"execution", "backend", "mode", "capture", "jit_level"})


def with_optuna(make_sampler: Callable[[int], BaseSampler]) -> Search:
    """A loop around one of Optuna's samplers, as its manual has it: the space defined by run, failures as penalties.

    It starts with the untuned model and the default compile like the others. Constraints are told as Optuna 5 has them.
    """

    def search(replay: Replay, seed: int) -> None:
        study = optuna.create_study(sampler=make_sampler(seed))
        space = replay.question.table.space
        for config in _first(space):
            study.enqueue_trial(dict(config.root))
        worst_s = 0.0
        try:
            while True:
                trial = study.ask()
                config = space.walk(trial.suggest_categorical)
                outcome = replay.run(config) if space.forbidden(config) is None else None
                for name, violation in _violations(replay, outcome).items():
                    trial.set_constraint(name, violation)
                latency_s = outcome.latency.p50 if isinstance(outcome, Measurement) else worst_s
                worst_s = max(worst_s, latency_s)
                study.tell(trial, latency_s)
        except Enough:
            pass
        except RuntimeError:
            # BruteForceSampler has no other way to say outside `optimize` that nothing is left.
            if not isinstance(study.sampler, BruteForceSampler):
                raise

    return search


def searches() -> dict[str, Search]:
    """Name -> what users could take; the tool's own first."""
    return {
        "autotune": own,
        "random, none twice": at_random,
        "TPE (Optuna's default)": with_optuna(lambda seed: TPESampler(seed=seed)),
        "TPE, grouped": with_optuna(
            lambda seed: TPESampler(seed=seed, multivariate=True, group=True, warn_independent_sampling=False)
        ),
        "NSGA-II": with_optuna(lambda seed: NSGAIISampler(seed=seed)),
        "BruteForce": with_optuna(lambda seed: BruteForceSampler(seed=seed)),
        "Random (Optuna)": with_optuna(lambda seed: RandomSampler(seed=seed)),
        "loop over modes": by_modes,
    }


def _violations(replay: Replay, outcome: Outcome | None) -> dict[str, float]:
    measured = outcome if isinstance(outcome, Measurement) else None
    missed = {
        bound.text: 0.0 if measured is None else bound.violation(measured) for bound in replay.question.constraints
    }
    return {"ok": 1.0 if measured is None else -1.0, **missed}


def _run_all(replay: Replay, configs: Iterable[Config]) -> None:
    try:
        for config in configs:
            replay.run(config)
    except Enough:
        pass


def _first(space: SearchSpace) -> list[Config]:
    return list(dict.fromkeys([space.untuned(), space.default()]))


def _default_but(space: SearchSpace, changed: str, value: object) -> Config:
    defaults = {knob.name: knob.default for knob in space.knobs}
    return space.walk(lambda name, values: next(v for v in values if v == value) if name == changed else defaults[name])


@dataclass(frozen=True)
class Case:
    """A search on a question, with seeds 0, 1, 2 ...: until it has found a good config, or to where it ends."""

    what: Literal["search", "end"]
    question: str
    search: str
    num_seeds: int

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

    def cell(self) -> str:
        """Trials on average, and in how many of the replays the config was found, if not in all."""
        found = "" if self.found == len(self.trials) else f" ({self.found} of {len(self.trials)})"
        return f"{self.mean_trials:.1f}{found}"


@cache
def questions() -> dict[str, Question]:
    """Each table as it is, and with compile time or memory kept at or below its median. Read once for all cases."""
    asked: dict[str, Question] = {}
    for name, recorded in recorded_tables().items():
        asked[name] = Question(recorded)
        for quantity in ("compile", "peak_memory"):
            if (question := constrained(recorded, quantity)) is not None:
                asked[f"{name}, {quantity} at most its median"] = question
    return asked


def runs_of(case: Case, question: Question) -> Runs:
    """Every seed until a config near the best was run, or there are no more trials."""
    replays = [Replay(question, MOST_TRIALS) for _ in range(case.num_seeds)]
    for seed, replay in enumerate(replays):
        searches()[case.search](replay, seed)
    return Runs(
        question=case.question,
        search=case.search,
        num_configs=len(question.table.rows),
        found=sum(replay.is_found for replay in replays),
        trials=[len(replay.rows) if replay.is_found else MOST_TRIALS for replay in replays],
        distinct=[replay.num_distinct for replay in replays],
        programs=[replay.num_programs for replay in replays],
        wall_s=[round(replay.wall_s, 1) for replay in replays],
        regret=[replay.regret for replay in replays],
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
        near = sum(regret <= NEAR for regret in self.regrets)
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
        trials=[len(replay.rows) for replay in replays],
        wall_s=[round(replay.wall_s, 1) for replay in replays],
        regrets=[replay.regret for replay in replays],
    )


Found = Runs | Ends
K = TypeVar("K")


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of each search (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Every search on every question, and the tool's own to its end; for a smoke run two seeds."""
    num_seeds = 2 if given.quick else given.seeds
    found = [
        Case("search", name, label, 1 if label == ALWAYS_THE_SAME else num_seeds)
        for name in questions()
        for label in searches()
    ]
    return found + [Case("end", name, OWN, num_seeds) for name in questions()]


def run(case: Case) -> Found:
    """Replay the case's search with each seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    question = questions()[case.question]
    return runs_of(case, question) if case.what == "search" else ends_of(case, question)


def judge(records: Sequence[Found]) -> list[Goal]:
    """About the largest table without constraints."""
    runs = _those(Runs, records)
    largest = max((one for one in runs if ", " not in one.question), key=lambda one: one.num_configs).question
    of = {one.search: one for one in runs if one.question == largest}
    mine, stock = of[OWN], min((of[name] for name in STOCK & of.keys()), key=lambda one: one.mean_trials)
    num_quick = sum(number <= GOAL_TRIALS for number in mine.trials)
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
    ]


def section(records: Sequence[Found]) -> str:
    """A row for each question, and one of where the tool's own search ends."""
    runs = _those(Runs, records)
    about = (
        "Every config of a table was measured once (`benchmarks/tables/`), so what a search finds is held against the "
        "exhaustive truth. First the compilations until one within 2 % of the best feasible config was run, the "
        f"untuned model and the default compile included, on average; {MOST_TRIALS} where it was not found, with the "
        "replays that found it in brackets; a question that all answer alike has no row. Then where the tool's own "
        "search stops by itself."
    )
    names = list(dict.fromkeys(one.search for one in runs))
    rows = [
        [name, *cells]
        for name in dict.fromkeys(one.question for one in runs)
        if len(set(cells := [one.cell() for one in runs if one.question == name])) > 1
    ]
    ends = ["question", "configs", "trials", "at most", "minutes", "within 2 %", "regret", "at most"]
    stops = [one.cells() for one in _those(Ends, records)]
    return "\n\n".join([about, table(["question", *names], rows), table(ends, stops)])


def _those(kind: type[K], records: Sequence[Found]) -> list[K]:
    return [record for record in records if isinstance(record, kind)]


BENCHMARK = Benchmark(
    "replay", "Searches replayed on recorded tables", __doc__, Found, cases, run, judge, section, options
)

if __name__ == "__main__":
    BENCHMARK.main()
