"""Shape strategies one by one on a stream of shapes, the one that `tune --shapes` picks, and a job that loads it.

Each strategy is a trial like any other, through the product's own runner and worker: a process of its own, empty
caches, one cold pass of the stream, steady passes, outputs checked. Its total is what the product minimises under
traffic: the seconds of so many calls, compilations included. The job is a plain script that loads the exported file.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from autotune.config import Config, Scalar
from autotune.job.stats import Stats
from autotune.measure.measurement import Measurement, Outcome
from autotune.measure.objective import UNDER_TRAFFIC, total_s
from autotune.planning.models import make_workload
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from autotune.trial.runner.runner import Runner
from autotune.tuned.tuned_config import load_tuned
from autotune.workload.traffic import parse_shapes
from autotune.workload.workload import STREAM_CALLS
from benchmarks.cold_trials import cold_request, measurements
from benchmarks.product import Product
from benchmarks.record import REPOSITORY, Conditions, Goal, Report, percent, publish, table

CLOSE = 1.05
"""Times the best total that the pick may take."""
PATIENT = Limits(start=600, build=600, compile=1800, check=1800, run=1800, total=7200)
NUM_TRIALS = 12
SHORT, LONG = int(UNDER_TRAFFIC.partition(":")[2]), 50_000
"""Calls of a job: of one that is over before much is earned back, and of one that goes on."""

EAGER: dict[str, Scalar] = {"execution": "eager"}
COMPILE: dict[str, Scalar] = {"execution": "compile", "backend": "inductor", "mode": "default"}
KNOBS: dict[str, dict[str, Scalar]] = {
    "automatic": {"shapes": "automatic"},
    "static": {"shapes": "static", "recompile_limit": 8},
    "static, limit raised": {"shapes": "static", "recompile_limit": 64},
    "dynamic": {"shapes": "dynamic"},
    "marked": {"shapes": "marked"},
    "bounded": {"shapes": "bounded"},
    "2 buckets": {"shapes": "bucketed", "num_buckets": 2},
    "chunks of the median": {"shapes": "chunked", "chunk_at": 0.5},
    "1 compiled, rest eager": {"shapes": "eager_rare", "num_compiled": 1},
    "4 compiled, rest eager": {"shapes": "eager_rare", "num_compiled": 4},
}
UNTUNED = "untuned"
STRATEGIES = {UNTUNED: EAGER, **{name: {**COMPILE, **knobs} for name, knobs in KNOBS.items()}}
SEQUENCES = tuple(name for name in STRATEGIES if "bucket" not in name and "chunk" not in name)
BATCHES = (
    "untuned",
    "automatic",
    "static",
    "dynamic",
    "marked",
    "bounded",
    "chunks of the median",
    "4 compiled, rest eager",
)


@dataclass(frozen=True)
class Case:
    """A model under traffic, and the strategies that its inputs allow."""

    model: str
    """Name of its function."""
    shapes: str
    strategies: tuple[str, ...]
    arguments: tuple[tuple[str, Scalar], ...] = ()
    tuned_for: int | None = None
    """Calls of the job; None: not tuned."""
    module: str | None = None
    """Where the function is; None: it is bundled."""

    @property
    def asked(self) -> str:
        """As `--model` takes it."""
        if self.module is None:
            return self.model
        return f"{REPOSITORY / self.module.replace('.', '/')}.py:{self.model}"

    @property
    def place(self) -> str:
        """As a job imports it."""
        return f"{self.module or f'autotune.models.torch.{self.model}'}:{self.model}"

    @property
    def name(self) -> str:
        return " ".join([self.model, *(f"{name}={value}" for name, value in self.arguments), self.shapes])


CASES = {
    each.model: each
    for each in (
        Case("bert_small", "seq=16..128", SEQUENCES, tuned_for=SHORT),
        Case(
            "box_decoding",
            "candidates=3000..4000",
            SEQUENCES,
            (("num_classes", 80), ("rounds", 2)),
            tuned_for=LONG,
            module="benchmarks.models.box_decoding_torch",
        ),
        Case("temporal_decision", "batch=1..16", BATCHES, tuned_for=LONG),
    )
}
"""By model: each has a section of its own."""
SMALL = (("dim", 32), ("depth", 1), ("heads", 2))
QUICK = Case("bert_small", "seq=16..24", ("untuned", "automatic", "marked", "2 buckets"), (*SMALL, ("masked", True)))


@dataclass(frozen=True)
class Pick:
    """What `tune` chose. `name` is the strategy's, if it is one of those that are tried one by one."""

    name: str
    config: Config
    verdict: str
    file: Path


@dataclass(frozen=True)
class Seen:
    """What each strategy of a case gave: outcomes, one for each round, and the compilations of a job with it."""

    case: Case
    outcomes: Mapping[str, list[Outcome]]
    in_a_job: Mapping[str, int]

    def measured(self, name: str) -> list[Measurement]:
        return measurements(self.outcomes[name], f"{self.case.name}, {name}")

    def total_s(self, name: str, num_calls: int) -> float:
        return statistics.median(total_s(each, num_calls) for each in self.measured(name))

    def best(self, num_calls: int) -> str:
        """Of the strategies one by one."""
        return min(self.case.strategies, key=lambda name: self.total_s(name, num_calls))

    def compilations(self, name: str) -> int | None:
        """Of the first trial."""
        replay = self.measured(name)[0].replay
        return None if replay is None else replay.num_compilations

    def row(self, name: str) -> list[str]:
        calls = self.measured(name)
        replay = calls[0].replay
        assert replay is not None
        cold_s = statistics.median(sum(each.cold_s) for each in calls)
        steady_s = statistics.median(each.steady_call_s for each in calls)
        said = [self.compilations(name), replay.num_fallbacks, self.in_a_job.get(name)]
        totals = [f"{self.total_s(name, num_calls):.1f}" for num_calls in (SHORT, LONG)]
        numbers = [*totals, f"{cold_s:.2f}", f"{1e3 * steady_s:.2f}"]
        return [name, *numbers, *("" if each is None else str(each) for each in said)]

    def rows(self) -> list[list[str]]:
        return [self.row(name) for name in sorted(self.outcomes, key=lambda name: self.total_s(name, SHORT))]

    def numbers(self) -> dict[str, Any]:
        return {
            name: {
                "config": STRATEGIES.get(name),
                "cold_s": [sum(each.cold_s) for each in self.measured(name)],
                "steady_call_s": [each.steady_call_s for each in self.measured(name)],
                "compilations": self.compilations(name),
                "in_a_job": self.in_a_job.get(name),
            }
            for name in self.outcomes
        }


HEADER = (
    "strategy", f"{SHORT:,} calls s", f"{LONG:,} calls s", "first pass s", "steady ms a call", "compilations",
    "left to eager", "compilations in a job",
)  # fmt: skip


def measure(case: Case, folder: Path, rounds: int) -> tuple[Seen, Pick | None]:
    """All strategies of a case, in rounds, and with them what was picked."""
    pick = None if case.tuned_for is None else pick_of(case, case.tuned_for, folder)
    configs = {name: Config(STRATEGIES[name]) for name in case.strategies}
    if pick is not None:
        configs[pick.name] = pick.config
    traffic = parse_shapes((case.shapes,))
    arguments = {**dict(case.arguments), **traffic.largest}
    workload = make_workload(case.asked, arguments, "torch", "cpu", 0, traffic=traffic)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in configs}
    in_a_job: dict[str, int] = {}
    with Runner("torch", {}, preload=True, log=folder / "log.txt") as runner:
        for number in range(rounds):
            for place, (name, config) in enumerate(configs.items()):
                trial = TrialFolder(folder / f"{place}-{number}")
                request = cold_request(
                    workload, config, trial, folder / "reference.npz", PATIENT, untuned=name == UNTUNED
                )
                outcomes[name].append(runner.run(trial, request))
                if pick is not None and number == 0 and name != UNTUNED:
                    in_a_job[name] = job_with(config, case.place, pick.file, Path(request.cache), folder)
                trial.drop_leftovers()
                print(case.name, name, f"{number + 1}/{rounds}", file=sys.stderr, flush=True)
    return Seen(case, outcomes, in_a_job), pick


def pick_of(case: Case, num_calls: int, folder: Path) -> Pick:
    """`tune` as a user calls it, and its export."""
    path = folder.resolve() / "best.yaml"
    with Product() as product:
        arguments = {name: value for name, value in case.arguments if isinstance(value, int)}
        product.tune(
            case.asked, "torch", study="shapes", trials=NUM_TRIALS, model_arguments=arguments, shapes=case.shapes,
            objective=f"total:{num_calls}",
        )  # fmt: skip
        product.export("shapes", path)
    tuned = load_tuned(path)
    name = UNTUNED if tuned.is_untuned else "picked by tune"
    config = Config(STRATEGIES[UNTUNED]) if tuned.is_untuned else tuned.config
    print(case.name, num_calls, name, config, file=sys.stderr, flush=True)
    return Pick(name, config, tuned.verdict.value, path)


def job_with(config: Config, place: str, exported: Path, cache: Path, folder: Path) -> int:
    """Graphs that a plain script compiles for the stream, with the exported file and this config in it.

    `cache` has the trial's compiled code: it spares time, and no compilation of dynamo's.
    """
    content = yaml.safe_load(exported.read_text())
    content.update(config=dict(config.root), verdict="faster")
    path = folder.resolve() / "job.yaml"
    path.write_text(yaml.safe_dump(content))
    variables = {"PYTHONPATH": str(REPOSITORY), "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve() / "inductor")}
    job = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--job", str(path), place],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if job.returncode:
        raise RuntimeError(f"a job with {config} failed: {job.stderr[-2000:]}")
    return int(job.stdout.splitlines()[-1])


def be_a_job(path: str, place: str) -> int:
    """The lines of a plain script: a model, its stream of calls, and the file that was exported."""
    import torch

    import autotune

    tuned = load_tuned(path)
    assert tuned.shapes is not None
    traffic, (module, _, name) = tuned.shapes.traffic, place.partition(":")
    build = getattr(importlib.import_module(module), name)
    built = build(**{**tuned.workload.arguments, **traffic.largest})
    model, inputs = (built["model"], built["inputs"]) if isinstance(built, dict) else built[:2]
    model = autotune.load(path).apply(model, on_mismatch="raise")
    with torch.no_grad():
        for load in traffic.stream(STREAM_CALLS, tuned.workload.seed):
            call = list(inputs)
            for each in tuned.shapes.inputs:
                size = traffic.loads[load].sizes[each.dimension]
                call[each.leaf] = call[each.leaf].narrow(each.axis, 0, size).contiguous()
            model(*call)
    stats = autotune.stats(model)
    assert isinstance(stats, Stats)
    return stats.num_compiles or 0


def goals_of(seen: Seen, pick: Pick) -> list[Goal]:
    """That the pick is close to the best, and that jobs compile what the trials did."""
    num_calls = seen.case.tuned_for
    assert num_calls is not None
    best = seen.best(num_calls)
    share = seen.total_s(pick.name, num_calls) / seen.total_s(best, num_calls)
    others = [name for name, number in seen.in_a_job.items() if number != seen.compilations(name)]
    return [
        Goal(
            f"what `tune` picks in {NUM_TRIALS} trials for {num_calls:,} calls is at most {percent(CLOSE - 1)} over "
            "the best strategy",
            f"{share:.3f} times the total of the best one, {best}; it picked ({pick.verdict}): {pick.config}",
            share <= CLOSE,
        ),
        Goal(
            "a plain script with `apply` compiles as often as the trial did, whatever the strategy",
            f"so it is with {len(seen.in_a_job) - len(others)} of {len(seen.in_a_job)} strategies"
            + (f", not with {', '.join(others)}" if others else ""),
            not others,
        ),
    ]


def report_of(seen: Seen, pick: Pick | None, rounds: int) -> Report:
    """The section of a case."""
    return Report(
        name=f"shapes_{seen.case.model}",
        title=f"Shape strategies: {seen.case.name}",
        about=(
            f"Total seconds of a job's calls, the first pass of {STREAM_CALLS} calls with all compilations among them. "
            f"Medians of {rounds} process(es) each. `left to eager` counts functions that dynamo gave up at its limit."
        ),
        goals=[] if pick is None else goals_of(seen, pick),
        body=table(HEADER, seen.rows()),
        command=f"shapes.py --case {seen.case.model}",
        results={
            "rounds": rounds,
            "strategies": seen.numbers(),
            "pick": None if pick is None else pick.config.root,
        },
    )


def main() -> None:
    """Measure, and write the section and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each strategy (default: %(default)s)")
    parser.add_argument("--case", choices=tuple(CASES), help="only this one (default: all)")
    parser.add_argument("--quick", action="store_true", help="a small model, few strategies, no study, nothing written")
    parser.add_argument("--job", nargs=2, metavar=("FILE", "PLACE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        print(be_a_job(*given.job))
        return
    cases = [QUICK] if given.quick else [CASES[given.case]] if given.case else list(CASES.values())
    rounds = 1 if given.quick else given.rounds
    os.chdir(Path(__file__).resolve().parent.parent)
    for case in cases:
        conditions = Conditions.now()
        with tempfile.TemporaryDirectory() as temporary:
            seen, pick = measure(case, Path(temporary), rounds)
        publish(report_of(seen, pick, rounds), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
