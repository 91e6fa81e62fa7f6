"""Shape strategies one by one on a stream of shapes, the one that `tune --shapes` picks, and a job that loads it.

Each strategy is a trial like any other, through the product's own runner and worker: a process of its own, empty
caches, one cold pass of the stream, steady passes, outputs checked. Its total is what the product minimises under
traffic: the seconds of so many calls, compilations included. The job is a plain script that loads the exported file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from autotune.config import Config, Scalar
from autotune.measure.measurement import Measurement
from autotune.planning.models import make_workload
from autotune.planning.shapes import UNDER_TRAFFIC, with_shapes
from autotune.trial.request import Limits
from autotune.tuned.tuned_config import load_tuned
from autotune.workload.traffic import parse_shapes
from autotune.workload.workload import STREAM_CALLS
from benchmarks.cold_trials import UNTUNED, in_rounds
from benchmarks.evidence import REPOSITORY, Benchmark, Goal, percent, table
from benchmarks.processes import Product

JOB = Path(__file__).with_name("shapes_job.py")
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
    "1 compiled, rest eager": {"shapes": "eager_rare", "num_compiled": 1},
    "4 compiled, rest eager": {"shapes": "eager_rare", "num_compiled": 4},
}
STRATEGIES = {UNTUNED: EAGER, **{name: {**COMPILE, **knobs} for name, knobs in KNOBS.items()}}


@dataclass(frozen=True)
class Case:
    """A model under traffic, and the strategies that are tried on it."""

    model: str
    """Name of its function."""
    shapes: str
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    arguments: tuple[tuple[str, Scalar], ...] = ()
    tuned_for: int | None = None
    """Calls of the job; None: not tuned."""
    module: str | None = None
    """Where the function is; None: it is bundled."""
    rounds: int = 2
    """Processes of each strategy."""

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
    case.model: case
    for case in (
        Case("bert_small", "seq=16..128", tuned_for=SHORT),
        Case(
            "box_decoding",
            "candidates=3000..4000",
            arguments=(("num_classes", 80), ("rounds", 2)),
            tuned_for=LONG,
            module="benchmarks.models.box_decoding_torch",
        ),
    )
}
"""By model: each has a section of its own."""
SMALL = (("dim", 32), ("depth", 1), ("heads", 2))
QUICK = Case("bert_small", "seq=16..24", ("untuned", "automatic", "marked"), (*SMALL, ("masked", True)))


@dataclass(frozen=True)
class Pick:
    """What `tune` chose. `name` is the strategy's, if it is one of those that are tried one by one."""

    name: str
    config: Config
    verdict: str | None


@dataclass(frozen=True)
class Strategy:
    """What one strategy gave: a figure for each round, and the compilations of its first trial and of a job with it."""

    name: str
    cold_s: list[float]
    """Of the first pass of the stream."""
    steady_call_s: list[float]
    compilations: int | None
    fallbacks: int | None
    in_a_job: int | None

    @classmethod
    def of(cls, name: str, measured: Sequence[Measurement], in_a_job: int | None) -> Strategy:
        replay = measured[0].replay
        return cls(
            name=name,
            cold_s=[sum(found.cold_s) for found in measured],
            steady_call_s=[found.steady_call_s for found in measured],
            compilations=None if replay is None else replay.num_compilations,
            fallbacks=None if replay is None else replay.num_fallbacks,
            in_a_job=in_a_job,
        )

    def total_s(self, num_calls: int) -> float:
        """What the product minimises: seconds of so many calls, compilations included."""
        rounds = zip(self.cold_s, self.steady_call_s, strict=True)
        return statistics.median(cold_s + (num_calls - STREAM_CALLS) * steady_s for cold_s, steady_s in rounds)

    def cells(self) -> list[str]:
        totals = [f"{self.total_s(num_calls):.1f}" for num_calls in (SHORT, LONG)]
        steady_ms = 1e3 * statistics.median(self.steady_call_s)
        said = (self.compilations, self.fallbacks, self.in_a_job)
        counts = ["" if number is None else str(number) for number in said]
        return [self.name, *totals, f"{statistics.median(self.cold_s):.2f}", f"{steady_ms:.2f}", *counts]


@dataclass(frozen=True)
class Seen:
    """All strategies of a case, and with them what was picked for a job of so many calls."""

    case: str
    strategies: list[Strategy]
    tuned_for: int | None
    pick: Pick | None

    @property
    def by_name(self) -> dict[str, Strategy]:
        return {strategy.name: strategy for strategy in self.strategies}

    def best(self, num_calls: int) -> Strategy:
        """Of the strategies one by one."""
        return min((s for s in self.strategies if s.name in STRATEGIES), key=lambda s: s.total_s(num_calls))


HEADER = (
    "strategy", f"{SHORT:,} calls s", f"{LONG:,} calls s", "first pass s", "steady ms a call", "compilations",
    "left to eager", "compilations in a job",
)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--rounds", type=int, default=2, help="processes of each strategy (default: %(default)s)")
    parser.add_argument("--case", choices=tuple(CASES), help="only this one (default: all)")


def cases(given: argparse.Namespace, model: str) -> list[Case]:
    """The one of this section; for a smoke run a small model, few strategies, no study."""
    return [replace(QUICK, rounds=1) if given.quick else replace(CASES[model], rounds=given.rounds)]


def run(case: Case) -> Seen:
    """All strategies, in rounds, and with them what was picked."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        exported = folder / "best.yaml"
        pick = None if case.tuned_for is None else pick_of(case, case.tuned_for, exported)
        configs = {name: Config(STRATEGIES[name]) for name in case.strategies}
        if pick is not None:
            configs[pick.name] = pick.config
        measured: dict[str, list[Measurement]] = {name: [] for name in configs}
        in_a_job: dict[str, int] = {}
        traffic = parse_shapes((case.shapes,))
        workload = with_shapes(make_workload(case.asked, dict(case.arguments), "torch", "cpu", 0), traffic, ())
        for name, found, compile_cache in in_rounds(workload, configs, case.rounds, folder, PATIENT):
            measured[name].append(found)
            if pick is not None and name != UNTUNED and name not in in_a_job:
                in_a_job[name] = job_with(configs[name], case.place, exported, compile_cache, folder)
            print(case.name, name, f"{len(measured[name])}/{case.rounds}", file=sys.stderr, flush=True)
    strategies = [Strategy.of(name, found, in_a_job.get(name)) for name, found in measured.items()]
    return Seen(case.name, strategies, case.tuned_for, pick)


def pick_of(case: Case, num_calls: int, path: Path) -> Pick:
    """`tune` as a user calls it, and its export at `path`."""
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
    return Pick(name, config, tuned.verdict.value)


def job_with(config: Config, place: str, exported: Path, cache: Path, folder: Path) -> int:
    """Graphs that a plain script compiles for the stream, with the exported file and this config in it.

    `cache` has the trial's compiled code: it spares time, and no compilation of dynamo's.
    """
    content = yaml.safe_load(exported.read_text())
    content.update(config=dict(config.root), verdict="faster")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(content))
    variables = {"PYTHONPATH": str(REPOSITORY), "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve() / "inductor")}
    job = subprocess.run(
        [sys.executable, str(JOB), str(path), place],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if job.returncode:
        raise RuntimeError(f"a job with {config} failed: {job.stderr[-2000:]}")
    return int(job.stdout.splitlines()[-1])


def judge(records: Sequence[Seen]) -> list[Goal]:
    """That the pick is close to the best, and that jobs compile what the trials did."""
    (seen,) = records
    if seen.pick is None or seen.tuned_for is None:
        return []
    best, picked = seen.best(seen.tuned_for), seen.by_name[seen.pick.name]
    share = picked.total_s(seen.tuned_for) / best.total_s(seen.tuned_for)
    verdict = f" ({seen.pick.verdict})" if seen.pick.verdict else ""
    in_jobs = [strategy for strategy in seen.strategies if strategy.in_a_job is not None]
    others = [strategy.name for strategy in in_jobs if strategy.in_a_job != strategy.compilations]
    return [
        Goal(
            f"what `tune` picks in {NUM_TRIALS} trials for {seen.tuned_for:,} calls is at most {percent(CLOSE - 1)} "
            "over the best strategy",
            f"{share:.3f} times the total of the best one, {best.name}; it picked{verdict}: {seen.pick.config}",
            share <= CLOSE,
        ),
        Goal(
            "a plain script with `apply` compiles as often as the trial did, whatever the strategy",
            f"so it is with {len(in_jobs) - len(others)} of {len(in_jobs)} strategies"
            + (f", not with {', '.join(others)}" if others else ""),
            not others,
        ),
    ]


def section(records: Sequence[Seen]) -> str:
    """A row for each strategy, the quickest for a short job first."""
    (seen,) = records
    about = (
        f"Total seconds of a job's calls, the first pass of {STREAM_CALLS} calls with all compilations among them. "
        f"Medians of {len(seen.strategies[0].cold_s)} process(es) each. `left to eager` counts functions that dynamo "
        "gave up at its limit."
    )
    ordered = sorted(seen.strategies, key=lambda strategy: strategy.total_s(SHORT))
    return f"{about}\n\n{table(HEADER, [strategy.cells() for strategy in ordered])}"


def benchmark_of(model: str) -> Benchmark[Case, Seen]:
    """Each model has a section of its own."""
    title = f"Shape strategies: {CASES[model].name}"
    return Benchmark(f"shapes_{model}", title, __doc__, Seen, partial(cases, model=model), run, judge, section, options)


BENCHMARKS = [benchmark_of(model) for model in CASES]


def main() -> None:
    """All sections one after the other, or one of them."""
    given = BENCHMARKS[0].parser().parse_args()
    for model, benchmark in zip(CASES, BENCHMARKS, strict=True):
        if given.case in (None, model):
            benchmark.execute(given, f"shapes.py --case {model}")
        if given.quick:
            break


if __name__ == "__main__":
    main()
