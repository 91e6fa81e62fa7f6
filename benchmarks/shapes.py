"""Shape strategies one by one on a stream of shapes, the one that `tune --shapes` picks, and a job that loads it.

Each strategy is a trial like any other, through the product's own runner and worker: a process of its own, empty
caches, one cold pass of the stream, steady passes, outputs checked. Its total is what the product minimises under
traffic: the seconds of so many calls, compilations included. The job is a plain script that loads the exported file.
"""

from __future__ import annotations

import argparse
import json
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

from autotune.config import Config, Scalar
from autotune.measurement import Failure, Measurement, Outcome
from autotune.objective import UNDER_TRAFFIC, total_s
from autotune.plan import make_workload
from autotune.runner import Runner
from autotune.traffic import parse_shapes
from autotune.trial import Limits, TrialFolder, TrialRequest
from autotune.tuned import load_tuned
from autotune.workload import STREAM_CALLS
from benchmarks.product import Product
from benchmarks.record import REPOSITORY, Conditions, Goal, Report, percent, publish, table

CLOSE = 1.05
"""Times the best total that the pick may take."""
PATIENT = Limits(start=600, build=600, compile=1800, check=1800, run=1800, total=7200)
NUM_TRIALS = 16
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
    "4 buckets": {"shapes": "bucketed", "num_buckets": 4},
    "8 buckets": {"shapes": "bucketed", "num_buckets": 8},
    "chunks of the median": {"shapes": "chunked", "chunk_at": 0.5},
    "chunks of 90 %": {"shapes": "chunked", "chunk_at": 0.9},
    "1 compiled, rest eager": {"shapes": "eager_rare", "num_compiled": 1},
    "4 compiled, rest eager": {"shapes": "eager_rare", "num_compiled": 4},
}
UNTUNED = "untuned"
STRATEGIES = {UNTUNED: EAGER, **{name: {**COMPILE, **knobs} for name, knobs in KNOBS.items()}}
SEQUENCES = tuple(name for name in STRATEGIES if "bucket" not in name and "chunk" not in name)
PADDED = ("untuned", "automatic", "marked", *(name for name in STRATEGIES if "bucket" in name))


@dataclass(frozen=True)
class Case:
    """A bundled model under traffic, and the strategies that its inputs allow."""

    model: str
    shapes: str
    strategies: tuple[str, ...]
    arguments: tuple[tuple[str, Scalar], ...] = ()
    tuned_for: tuple[int, ...] = ()
    """Numbers of calls: a study for each."""

    @property
    def name(self) -> str:
        return " ".join([self.model, *(f"{name}={value}" for name, value in self.arguments), self.shapes])


CASES = (
    Case("bert_small", "seq=16..128", SEQUENCES, tuned_for=(SHORT, LONG)),
    Case("bert_small", "seq=16..128", PADDED, (("masked", True),)),
    Case("vit", "batch=1..8", tuple(STRATEGIES), (("depth", 2),)),
)
SMALL = (("dim", 32), ("depth", 1), ("heads", 2))
QUICK = (Case("bert_small", "seq=16..24", ("untuned", "automatic", "marked", "2 buckets"), (*SMALL, ("masked", True))),)


@dataclass(frozen=True)
class Seen:
    """Outcomes of each strategy of a case, one for each round."""

    case: Case
    outcomes: Mapping[str, list[Outcome]]

    def measured(self, name: str) -> list[Measurement]:
        """Raises RuntimeError where a trial failed: there is nothing to compare then."""
        for each in self.outcomes[name]:
            if isinstance(each, Failure):
                raise RuntimeError(f"{self.case.name}, {name}: {each.reason}: {each.error}; see {each.evidence}")
        return [each for each in self.outcomes[name] if isinstance(each, Measurement)]

    def total_s(self, name: str, num_calls: int) -> float:
        return statistics.median(total_s(each, num_calls) for each in self.measured(name))

    def best(self, num_calls: int) -> str:
        """Of the strategies one by one."""
        return min(self.case.strategies, key=lambda name: self.total_s(name, num_calls))

    def rows(self) -> list[list[str]]:
        rows = []
        for name in sorted(self.outcomes, key=lambda name: self.total_s(name, SHORT)):
            first, calls = self.measured(name)[0], self.measured(name)
            assert first.replay is not None
            cold_s = statistics.median(sum(each.cold_s) for each in calls)
            steady_s = statistics.median(each.steady_call_s for each in calls)
            said = [first.replay.num_compilations, first.replay.num_fallbacks]
            totals = [f"{self.total_s(name, num_calls):.1f}" for num_calls in (SHORT, LONG)]
            numbers = [*totals, f"{cold_s:.2f}", f"{1e3 * steady_s:.2f}"]
            rows.append([name, *numbers, *("?" if each is None else str(each) for each in said)])
        return rows

    def numbers(self) -> dict[str, Any]:
        return {
            name: {
                "config": STRATEGIES.get(name),
                "cold_s": [sum(each.cold_s) for each in self.measured(name)],
                "steady_call_s": [each.steady_call_s for each in self.measured(name)],
                "compilations": [each.replay and each.replay.num_compilations for each in self.measured(name)],
            }
            for name in self.outcomes
        }


HEADER = (
    "strategy", f"{SHORT:,} calls s", f"{LONG:,} calls s", "first pass s", "steady ms a call", "compilations",
    "left to eager",
)  # fmt: skip


@dataclass(frozen=True)
class Pick:
    """What `tune` chose for a case and so many calls, and a plain job with it. `name` is the strategy's, if it is one
    of those that are tried one by one."""

    num_calls: int
    name: str
    config: Config
    job: dict[str, Any]


def measure(case: Case, folder: Path, rounds: int) -> tuple[Seen, list[Pick]]:
    """All strategies of a case, in rounds, and with them what was picked."""
    picks = [pick_of(case, num_calls, folder) for num_calls in case.tuned_for]
    configs = {name: Config(STRATEGIES[name]) for name in case.strategies}
    configs.update({pick.name: pick.config for pick in picks})
    traffic = parse_shapes((case.shapes,))
    arguments = {**dict(case.arguments), **traffic.largest}
    workload = make_workload(case.model, arguments, "torch", "cpu", 0, traffic=traffic)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in configs}
    with Runner("torch", {}, preload=True, log=folder / "log.txt") as runner:
        for number in range(rounds):
            for place, (name, config) in enumerate(configs.items()):
                trial = TrialFolder(folder / f"{place}-{number}")
                request = TrialRequest(
                    number=0,
                    workload=workload,
                    config=config,
                    untuned=name == UNTUNED,
                    tolerance=1e-3,
                    reference=str(folder / "reference.npz"),
                    cache=str(trial.path / "cache"),
                    cold=True,
                    limits=PATIENT,
                )
                outcomes[name].append(runner.run(trial, request))
                trial.drop_leftovers()
                print(case.name, name, f"{number + 1}/{rounds}", file=sys.stderr, flush=True)
    return Seen(case, outcomes), picks


def pick_of(case: Case, num_calls: int, folder: Path) -> Pick:
    """`tune` as a user calls it, its export, and a job in a process of its own that loads it."""
    path = folder.resolve() / f"best-{num_calls}.yaml"
    with Product() as product:
        arguments = {name: value for name, value in case.arguments if isinstance(value, int)}
        product.tune(
            case.model, "torch", study="shapes", trials=NUM_TRIALS, model_arguments=arguments, shapes=case.shapes,
            objective=f"total:{num_calls}",
        )  # fmt: skip
        product.export("shapes", path)
    tuned = load_tuned(path)
    job = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--job", str(path)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    name = UNTUNED if tuned.is_untuned else f"picked for {num_calls:,} calls"
    config = Config(STRATEGIES[UNTUNED]) if tuned.is_untuned else tuned.config
    print(case.name, num_calls, name, config, file=sys.stderr, flush=True)
    return Pick(num_calls, name, config, json.loads(job.stdout.splitlines()[-1]))


def be_a_job(path: str) -> dict[str, Any]:
    """The lines of a plain script: a model, its stream of calls, and the file that was exported."""
    import torch

    import autotune
    from autotune.models.torch.bert_small import bert_small

    tuned = load_tuned(path)
    assert tuned.shapes is not None
    traffic = tuned.shapes.traffic
    built = bert_small(**{**tuned.workload.arguments, **traffic.largest})  # type: ignore[arg-type]
    model = autotune.load(path).apply(built["model"], on_mismatch="raise")
    with torch.no_grad():
        for load in traffic.stream(STREAM_CALLS, tuned.workload.seed):
            model(*(each[:, : traffic.loads[load].sizes["seq"]].contiguous() for each in built["inputs"]))
    stats = autotune.stats(model)
    assert stats is not None
    return {"state": stats.state, "compilations": stats.num_compiles or 0}


def goals_of(seen: Seen, pick: Pick) -> list[Goal]:
    """That the pick is close to the best, and that a job compiles what the trial did."""
    best = seen.best(pick.num_calls)
    share = seen.total_s(pick.name, pick.num_calls) / seen.total_s(best, pick.num_calls)
    in_trial = seen.measured(pick.name)[0].replay
    assert in_trial is not None
    expected, there = in_trial.num_compilations, pick.job["compilations"]
    calls = f"{pick.num_calls:,} calls"
    return [
        Goal(
            f"what `tune` picks in {NUM_TRIALS} trials for {seen.case.name}, {calls}, is at most "
            f"{percent(CLOSE - 1)} over the best strategy",
            f"{share:.3f} times the total of the best one, {best}; it picked: {pick.config}",
            share <= CLOSE,
        ),
        Goal(
            f"a plain script with that file compiles as often as the trial did ({calls})",
            f"{there} compilations there, {expected} in the trial",
            there == expected,
        ),
    ]


def report_of(seen: list[Seen], picks: list[list[Pick]], rounds: int) -> Report:
    """The goals are about cases that were tuned."""
    parts = [f"**{each.case.name}**\n\n{table(HEADER, each.rows())}" for each in seen]
    return Report(
        name="shapes",
        title="Shape strategies on a stream of shapes",
        about=(
            f"Total seconds of a job's calls, the first pass of {STREAM_CALLS} calls with all compilations among them. "
            f"Medians of {rounds} process(es) each. `left to eager` counts functions that dynamo gave up at its limit."
        ),
        goals=[
            goal for each, chosen in zip(seen, picks, strict=True) for pick in chosen for goal in goals_of(each, pick)
        ],
        body="\n\n".join(parts),
        results={
            "rounds": rounds,
            "cases": {
                each.case.name: {
                    "strategies": each.numbers(),
                    "picks": [{"num_calls": p.num_calls, "config": p.config.root, "job": p.job} for p in chosen],
                }
                for each, chosen in zip(seen, picks, strict=True)
            },
        },
    )


def main() -> None:
    """Measure, and write the section and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each strategy (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only so many of them (default: all)")
    parser.add_argument("--quick", action="store_true", help="a small model, few strategies, no study, nothing written")
    parser.add_argument("--job", metavar="FILE", help="be the job that loads FILE, and say what was compiled")
    given = parser.parse_args()
    if given.job is not None:
        print(json.dumps(be_a_job(given.job)))
        return
    cases, rounds = (QUICK, 1) if given.quick else (CASES[: given.cases], given.rounds)
    os.chdir(Path(__file__).resolve().parent.parent)
    conditions = Conditions.now()
    with tempfile.TemporaryDirectory() as temporary:
        pairs = []
        for number, case in enumerate(cases):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            pairs.append(measure(case, folder, rounds))
    seen, picks = [each for each, _ in pairs], [pick for _, pick in pairs]
    publish(report_of(seen, picks, rounds), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
