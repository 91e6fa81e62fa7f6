"""Shape strategies one by one on a stream of shapes, the one that `tune --shapes` picks, and a job that loads it.

Each strategy is a trial like any other, through the product's own runner and worker: a process of its own, empty
caches, one cold pass of the stream, steady passes, outputs checked. Its total is what the product minimises under
traffic: the seconds of 1000 calls, compilations included. The job is a plain script that loads the exported file.
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
from autotune.objective import UNDER_TRAFFIC, Objective
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
TOTAL = Objective.parse(UNDER_TRAFFIC)

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
STRATEGIES = {"untuned": EAGER, **{name: {**COMPILE, **knobs} for name, knobs in KNOBS.items()}}
SEQUENCES = tuple(name for name in STRATEGIES if "bucket" not in name and "chunk" not in name)
PADDED = ("untuned", "automatic", "marked", *(name for name in STRATEGIES if "bucket" in name))


@dataclass(frozen=True)
class Case:
    """A bundled model under traffic, and the strategies that its inputs allow."""

    model: str
    shapes: str
    strategies: tuple[str, ...]
    arguments: tuple[tuple[str, Scalar], ...] = ()
    is_tuned: bool = False

    @property
    def name(self) -> str:
        return " ".join([self.model, *(f"{name}={value}" for name, value in self.arguments), self.shapes])


CASES = (
    Case("bert_small", "seq=16..128", SEQUENCES, is_tuned=True),
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

    def total_s(self, name: str) -> float:
        return statistics.median(map(TOTAL.value, self.measured(name)))

    @property
    def best(self) -> str:
        """Of the strategies one by one."""
        return min(self.case.strategies, key=self.total_s)

    def rows(self) -> list[list[str]]:
        rows = []
        for name in sorted(self.outcomes, key=self.total_s):
            first, calls = self.measured(name)[0], self.measured(name)
            assert first.replay is not None
            cold_s = statistics.median(sum(each.cold_s) for each in calls)
            steady_s = statistics.median(each.steady_call_s for each in calls)
            said = [first.replay.num_compilations, first.replay.num_fallbacks]
            numbers = [f"{self.total_s(name):.2f}", f"{cold_s:.2f}", f"{1e3 * steady_s:.2f}"]
            rows.append([name, *numbers, *("?" if each is None else str(each) for each in said)])
        return rows

    def numbers(self) -> dict[str, Any]:
        return {
            name: {
                "config": STRATEGIES.get(name),
                "total_s": [TOTAL.value(each) for each in self.measured(name)],
                "cold_s": [sum(each.cold_s) for each in self.measured(name)],
                "steady_call_s": [each.steady_call_s for each in self.measured(name)],
                "compilations": [each.replay and each.replay.num_compilations for each in self.measured(name)],
            }
            for name in self.outcomes
        }


HEADER = ("strategy", "1000 calls s", "first pass s", "steady ms a call", "compilations", "left to eager")


@dataclass(frozen=True)
class Pick:
    """What `tune` chose for a case, and a plain job with it."""

    config: Config
    job: dict[str, Any]


def measure(case: Case, folder: Path, rounds: int) -> tuple[Seen, Pick | None]:
    """All strategies of a case, in rounds, and with them the pick."""
    pick = pick_of(case, folder) if case.is_tuned else None
    configs = {name: Config(STRATEGIES[name]) for name in case.strategies}
    if pick is not None:
        configs[PICKED] = pick.config
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
                    untuned=name == "untuned",
                    tolerance=1e-3,
                    reference=str(folder / "reference.npz"),
                    cache=str(trial.path / "cache"),
                    cold=True,
                    limits=PATIENT,
                )
                outcomes[name].append(runner.run(trial, request))
                trial.drop_leftovers()
    return Seen(case, outcomes), pick


PICKED = "picked by tune"


def pick_of(case: Case, folder: Path) -> Pick:
    """`tune` as a user calls it, its export, and a job in a process of its own that loads it."""
    path = folder.resolve() / "best.yaml"
    with Product() as product:
        arguments = {name: value for name, value in case.arguments if isinstance(value, int)}
        product.tune(case.model, "torch", study="shapes", model_arguments=arguments, shapes=case.shapes)
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
    config = tuned.untuned if tuned.is_untuned else tuned.config
    return Pick(config, json.loads(job.stdout.splitlines()[-1]))


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


def report_of(seen: list[Seen], picks: list[Pick | None], rounds: int) -> Report:
    """The goal is about cases that were tuned."""
    goals = []
    for each, pick in zip(seen, picks, strict=True):
        if pick is not None:
            share = each.total_s(PICKED) / each.total_s(each.best)
            in_trial = each.measured(PICKED)[0].replay
            assert in_trial is not None
            expected, there = in_trial.num_compilations, pick.job["compilations"]
            goals += [
                Goal(
                    f"what `tune` picks for {each.case.name} is at most {percent(CLOSE - 1)} over the best",
                    f"{share:.3f} times the total of the best one, {each.best}; it picked {pick.config}",
                    share <= CLOSE,
                ),
                Goal(
                    "a plain script with `apply` compiles as often as the trial did",
                    f"{there} compilations there, {expected} in the trial",
                    there == expected,
                ),
            ]
    parts = [f"**{each.case.name}**; the best of them is {each.best}.\n\n{table(HEADER, each.rows())}" for each in seen]
    return Report(
        name="shapes",
        title="Shape strategies on a stream of shapes",
        about=(
            f"Total seconds of 1000 calls, the first pass of {STREAM_CALLS} calls with all compilations among them. "
            f"Medians of {rounds} process(es) each. `left to eager` counts functions that dynamo gave up at its limit."
        ),
        goals=goals,
        body="\n\n".join(parts),
        results={
            "rounds": rounds,
            "cases": {
                each.case.name: {
                    "strategies": each.numbers(),
                    "pick": None if pick is None else {"config": pick.config.root, "job": pick.job},
                }
                for each, pick in zip(seen, picks, strict=True)
            },
        },
    )


def main() -> None:
    """Measure, and write the section and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each strategy (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a small model, few strategies, no study, nothing written")
    parser.add_argument("--job", metavar="FILE", help="be the job that loads FILE, and say what was compiled")
    given = parser.parse_args()
    if given.job is not None:
        print(json.dumps(be_a_job(given.job)))
        return
    cases, rounds = (QUICK, 1) if given.quick else (CASES, given.rounds)
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
