"""Training steps: the verdict of `tune --task train`, what a plain script gets of it, and PyNative against graphs.

For ViT and ResNet-18 in both frameworks. The plain script is `plain_training.py`: its own processes, its own way of
timing, the exported config applied by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.delivered import TOLERANCE, Promise
from benchmarks.frame import Benchmark
from benchmarks.intervals import Pair, Ratio, ratio_over_pairs
from benchmarks.pairs import alternate
from benchmarks.product import Product
from benchmarks.record import Goal, percent, table

PLAIN = Path(__file__).with_name("plain_training.py")
SIZES: dict[str, dict[str, int]] = {"vit": {"image": 64, "depth": 3}, "resnet18": {"image": 64, "width": 32}}
"""Smaller than the models' own: a step of MindSpore's PyNative would take seconds."""
FRAMEWORKS = ("torch", "mindspore")

WAYS: dict[str, dict[str, Any]] = {
    "PyNative": {"execution": "pynative"},
    "PyNative, blocking launches": {"execution": "pynative", "launch_blocking": True},
    "jit, whole step": {"execution": "jit", "scope": "step"},
    "jit, whole step, without its pipeline": {"execution": "jit", "scope": "step", "step_pipeline": False},
    "jit, gradients": {"execution": "jit", "scope": "gradients", "step_pipeline": False},
    "graph mode": {"execution": "graph"},
}
"""MindSpore's ways of running one and the same step. The first is what the others are held against; all are capped at
AVX2, or on a processor with AVX-512 they would all wait for oneDNN's reference convolutions."""
CLAIM = 3.0
"""A graph trains so many times as fast as PyNative, it is said of an Ascend 910."""


@dataclass(frozen=True)
class Case:
    """A model in a framework, and how much to measure. `way` None: tuned; else one of MindSpore's ways."""

    framework: str
    model: str
    way: str | None
    trials: int
    pairs: int
    sampling_s: float

    @property
    def name(self) -> str:
        return f"{self.framework}, {self.model}, {self.way or 'tuned'}"


@dataclass(frozen=True)
class PlainSteps:
    """`plain_training.py` for one model in one framework, each time in a new process."""

    framework: str
    model: str
    folder: Path
    sampling_s: float

    def median_s(self, settings: str | None = None) -> float:
        """Median seconds a step, under an exported YAML or a config in JSON. Raises CalledProcessError."""
        output = self.folder / "seen.json"
        sizes = [f"--size={name}={number}" for name, number in SIZES[self.model].items()]
        told = [] if settings is None else ["--settings", settings]
        subprocess.run(
            [
                sys.executable, str(PLAIN), self.framework, self.model, *sizes, *told, "--output", str(output),
                "--sampling-s", str(self.sampling_s), "--warmup-s", str(self.sampling_s / 2),
            ],
            cwd=self.folder,
            env={**os.environ, "GLOG_v": "3", "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")},
            stdout=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
        return float(json.loads(output.read_text())["median_s"])


@dataclass(frozen=True)
class Delivery:
    """Pairs of a model: seconds a step untuned and as exported."""

    framework: str
    model: str
    config: str
    promise: Promise
    pairs_s: list[Pair]

    @property
    def found(self) -> Ratio | None:
        return ratio_over_pairs(self.pairs_s) if self.pairs_s else None

    @property
    def kept(self) -> bool:
        return self.found is None or self.promise.is_kept_by(self.found)

    def cells(self) -> list[str]:
        name = [self.framework, self.model]
        if self.promise.speedup is None or self.found is None:
            return [*name, self.promise.verdict, "-", "-", "-", "-", "yes", self.config]
        untuned_ms, tuned_ms = (1e3 * statistics.median(side) for side in zip(*self.pairs_s, strict=True))
        measured = [f"{untuned_ms:.1f} ms", f"{tuned_ms:.1f} ms", str(self.found)]
        off = percent(self.found.mean / self.promise.speedup.mean - 1)
        return [*name, str(self.promise.speedup), *measured, off, "yes" if self.kept else "no", self.config]


@dataclass(frozen=True)
class Way:
    """One of MindSpore's ways against PyNative."""

    model: str
    name: str
    pairs_s: list[Pair]

    @property
    def found(self) -> Ratio:
        """How many times as fast as PyNative."""
        return ratio_over_pairs(self.pairs_s)

    def cells(self) -> list[str]:
        pynative_ms, way_ms = (1e3 * statistics.median(side) for side in zip(*self.pairs_s, strict=True))
        return [self.model, self.name, f"{pynative_ms:.1f} ms", f"{way_ms:.1f} ms", str(self.found)]


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES), help="(default: all)")
    parser.add_argument("--frameworks", nargs="+", default=list(FRAMEWORKS), choices=FRAMEWORKS, help="(default: both)")
    parser.add_argument("--trials", type=int, default=8, help="trials of each study (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="process pairs of each comparison (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Every model tuned, then MindSpore's ways; for a smoke run the ViT, three trials, two short pairs."""
    models = ["vit"] if given.quick else given.models
    trials, pairs, sampling_s = (3, 2, 1.0) if given.quick else (given.trials, given.pairs, 4.0)
    asked: list[tuple[str, str, str | None]] = [
        (framework, model, None) for framework in given.frameworks for model in models
    ]
    if "mindspore" in given.frameworks:
        asked += [("mindspore", model, way) for model in models for way in list(WAYS)[1:]]
    return [Case(framework, model, way, trials, pairs, sampling_s) for framework, model, way in asked]


def run(case: Case) -> Delivery | Way:
    """One comparison, in pairs of fresh processes."""
    return deliver(case) if case.way is None else way_of(case, case.way)


def deliver(case: Case) -> Delivery:
    """Tune and export the step, and run the plain script both ways."""
    with Product() as product:
        study, path = f"{case.model}-train-{case.framework}", product.folder / "best.yaml"
        document = product.tune(
            case.model, case.framework, study=study, task="train", trials=case.trials,
            model_arguments=SIZES[case.model], process_settings=True,
        )  # fmt: skip
        product.export(study, path)
        promise = Promise.read(path)
        pairs_s: list[Pair] = []
        if promise.speedup is not None:
            with tempfile.TemporaryDirectory() as folder:
                script = PlainSteps(case.framework, case.model, Path(folder), case.sampling_s)
                pairs_s = alternate(case.pairs, script.median_s, lambda: script.median_s(str(path.resolve())))
    config = (document.get("best") or {}).get("config", {})
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
    return Delivery(case.framework, case.model, words, promise, pairs_s)


def way_of(case: Case, way: str) -> Way:
    """One way of running the step in MindSpore against PyNative."""
    base, other = (json.dumps({**WAYS[name], "onednn_isa": "AVX2"}) for name in ("PyNative", way))
    with tempfile.TemporaryDirectory() as folder:
        script = PlainSteps("mindspore", case.model, Path(folder), case.sampling_s)
        pairs_s = alternate(case.pairs, partial(script.median_s, base), partial(script.median_s, other))
    return Way(case.model, way, pairs_s)


def judge(records: Sequence[Delivery | Way]) -> list[Goal]:
    """About the promises, and about MindSpore's graph mode."""
    promised = [each for each in records if isinstance(each, Delivery) and each.promise.speedup is not None]
    graphs = [each for each in records if isinstance(each, Way) and each.name == "graph mode"]
    return [*_promise_goal(promised), *_graph_goal(graphs)]


def section(records: Sequence[Delivery | Way]) -> str:
    """A table of what was tuned, and one of MindSpore's ways."""
    delivered = [each for each in records if isinstance(each, Delivery)]
    ways = [each for each in records if isinstance(each, Way)]
    num_pairs = max(len(each.pairs_s) for each in records)
    about = (
        "`tune --task train` (forward, loss, backward and Adam's step, batches of 4) on the CPU, and the exported "
        f"config applied by hand in `benchmarks/plain_training.py`, in {num_pairs} pairs of fresh processes. "
        "Below: MindSpore's ways of running one step, each against PyNative."
    )
    header = ["framework", "model", "promised", "untuned", "tuned", "delivered", "off by", "kept", "config"]
    return "\n\n".join([about, table(header, [each.cells() for each in delivered]), *_ways_table(ways)])


def _promise_goal(promised: list[Delivery]) -> list[Goal]:
    text = f"delivered within {TOLERANCE:.0%} of the promise, or inside the promised interval".replace("%", " %")
    num_kept = sum(each.kept for each in promised)
    found = f"{num_kept} of {len(promised)} promises" if promised else "no step was promised anything"
    return [Goal(text, found, bool(promised) and num_kept == len(promised))]


def _graph_goal(graphs: list[Way]) -> list[Goal]:
    text = f"a graph trains {CLAIM:.0f} times as fast as PyNative (said of an Ascend 910; measured on this CPU)"
    found = ", ".join(f"{each.model} {each.found}" for each in graphs)
    return [Goal(text, found, all(each.found.mean >= CLAIM for each in graphs))] if graphs else []


def _ways_table(ways: list[Way]) -> list[str]:
    header = ["model", "way", "PyNative", "this way", "times as fast"]
    return [table(header, [each.cells() for each in ways])] if ways else []


BENCHMARK = Benchmark("training", "Training steps", __doc__, Delivery | Way, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
