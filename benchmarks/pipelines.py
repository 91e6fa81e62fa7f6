"""Pipelines that draw pictures: does a job get the speed-up that the export states, and the same pictures?

    taskset -c 0,1 python benchmarks/pipelines.py

A tiny Stable Diffusion and a tiny DiT with random weights are tuned and exported. Then `pipelines_job.py` draws with
each, as it is and with the file applied, in pairs of fresh processes whose order is swapped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.delivered import Promise, as_promised
from benchmarks.evidence import REPOSITORY, Benchmark, Goal, table
from benchmarks.processes import Job, Pair, Product, ProductError, Ratio, alternate, ratio_over_pairs

JOB = Path(__file__).with_name("pipelines_job.py")
PIPELINES = {"Stable Diffusion": "stable_diffusion", "DiT": "dit"}
"""Name -> its function in tests/stand_ins/pipelines.py."""
TOLERANCE = 0.05
"""Of the promise."""
ALIKE = 1e-3
"""Of a picture, by its largest number: what studies hold float32 to."""


@dataclass(frozen=True)
class Case:
    """A pipeline, and how much to measure."""

    name: str
    budget: str
    pairs: int
    sampling_s: float


@dataclass(frozen=True)
class Drawn:
    """What a job got of a pipeline."""

    pipeline: str
    promise: Promise | None
    """None: `refusal` says why."""
    refusal: str | None = None
    pairs_s: list[Pair] = field(default_factory=list)
    """Seconds a call, untuned and tuned."""
    difference: float = 0.0
    """Of the tuned pictures from the untuned ones, by their largest number."""

    @property
    def found(self) -> Ratio:
        return ratio_over_pairs(self.pairs_s)

    @property
    def is_kept(self) -> bool:
        return self.promise is not None and self.promise.is_kept_by(self.found, TOLERANCE)

    def cells(self) -> list[str]:
        if self.promise is None:
            return [self.pipeline, self.refusal or "", *[""] * 4]
        untuned_ms, tuned_ms = (f"{1e3 * statistics.median(side):.2f} ms" for side in zip(*self.pairs_s, strict=True))
        promised = self.promise.verdict if self.promise.speedup is None else str(self.promise.speedup)
        return [self.pipeline, promised, untuned_ms, tuned_ms, str(self.found), f"{self.difference:.1e}"]


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--pipeline", nargs="+", choices=list(PIPELINES), default=list(PIPELINES), help="default: all")
    parser.add_argument("--budget", default="2m", help="of each study (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of processes (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Both; for a smoke run one, for a short time."""
    if given.quick:
        return [Case("DiT", "90s", 2, 1.0)]
    return [Case(name, given.budget, given.pairs, 3.0) for name in given.pipeline]


def run(case: Case) -> Drawn:
    """Tune, export, and draw both ways."""
    pipeline = f"{REPOSITORY}/tests/stand_ins/pipelines.py:{PIPELINES[case.name]}"
    with Product() as product, tempfile.TemporaryDirectory() as folder:
        try:
            path = product.exported(pipeline, "torch", study="pictures", budget=case.budget)
        except ProductError as error:
            return Drawn(case.name, None, refusal=str(error))
        job = Job(JOB, Path(folder))
        pictures: list[Any] = []
        """Of each process; the first is an untuned one."""

        def median_s(*way: str) -> float:
            seen = job.seen(pipeline, *way, "--sampling-s", str(case.sampling_s))
            pictures.append(np.asarray(seen["pictures"]))
            return float(seen["median_s"])

        pairs_s = alternate(case.pairs, median_s, partial(median_s, "--settings", str(path)))
        difference = max(np.abs(each - pictures[0]).max() for each in pictures) / np.abs(pictures[0]).max()
        return Drawn(case.name, Promise.read(path), pairs_s=pairs_s, difference=float(difference))


def judge(records: Sequence[Drawn]) -> list[Goal]:
    """About all pipelines: a study that ends without an export is a miss."""
    made = [record for record in records if record.promise is not None]
    promised = [record for record in made if record.promise is not None and record.promise.speedup is not None]
    kept, alike = sum(record.is_kept for record in promised), sum(record.difference <= ALIKE for record in made)
    return [
        Goal(
            as_promised(TOLERANCE),
            f"{kept} of {len(promised)} promises, from {len(records)} pipelines",
            bool(promised) and kept == len(promised) == len(records),
        ),
        Goal(
            f"the untuned pictures, within {ALIKE:g} of their largest number",
            f"{alike} of {len(records)} pipelines",
            bool(made) and alike == len(records),
        ),
    ]


def section(records: Sequence[Drawn]) -> str:
    """A row a pipeline."""
    about = (
        "Two tiny pipelines of diffusers with random weights, two pictures and three steps a call, are tuned and "
        "exported; then a job draws with each both ways, in pairs of fresh processes. Delivered is the geometric "
        "mean of the pairs' ratios, with its 95 % interval; the last column is the largest difference of the pictures."
    )
    header = ["pipeline", "promised", "untuned", "tuned", "delivered", "pictures differ by"]
    return f"{about}\n\n{table(header, [record.cells() for record in records])}"


BENCHMARK = Benchmark("pipelines", "Pipelines", __doc__, Drawn, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
