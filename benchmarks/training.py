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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.delivered import TOLERANCE, Promise
from benchmarks.intervals import Pair, Ratio, ratio_over_pairs
from benchmarks.pairs import alternate
from benchmarks.product import Product
from benchmarks.record import Conditions, Goal, Report, percent, publish, table

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
class Effort:
    """How much to measure."""

    trials: int
    pairs: int
    sampling_s: float


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
        """An untouched step keeps its promise of 1.0 by being itself."""
        promised, found = self.promise.speedup, self.found
        if promised is None or found is None:
            return True
        return promised.low <= found.mean <= promised.high or abs(found.mean / promised.mean - 1) <= TOLERANCE

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


def deliver(product: Product, framework: str, model: str, effort: Effort) -> Delivery:
    """Tune and export the step, and run the plain script both ways."""
    study = f"{model}-train-{framework}"
    path = product.folder / f"{study}.yaml"
    document = product.tune(
        model, framework, study=study, task="train", trials=effort.trials, model_arguments=SIZES[model]
    )
    product.export(study, path)
    promise = Promise.read(path)
    config = " ".join(
        f"{name}={json.dumps(value)}" for name, value in (document.get("best") or {}).get("config", {}).items()
    )
    pairs_s: list[Pair] = []
    if promise.speedup is not None:
        with tempfile.TemporaryDirectory() as folder:
            script = PlainSteps(framework, model, Path(folder), effort.sampling_s)
            pairs_s = alternate(effort.pairs, script.median_s, lambda: script.median_s(str(path.resolve())))
    delivery = Delivery(framework, model, config, promise, pairs_s)
    print(" | ".join(delivery.cells()), flush=True)
    return delivery


def ways_of(model: str, effort: Effort) -> list[Way]:
    """Every way of running the step in MindSpore against PyNative."""
    base, *others = (json.dumps({**config, "onednn_isa": "AVX2"}) for config in WAYS.values())
    seen = []
    for name, config in zip(list(WAYS)[1:], others, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            script = PlainSteps("mindspore", model, Path(folder), effort.sampling_s)
            pairs_s = alternate(effort.pairs, partial(script.median_s, base), partial(script.median_s, config))
        seen.append(Way(model, name, pairs_s))
        print(" | ".join(seen[-1].cells()), flush=True)
    return seen


def report_of(seen: list[Delivery], ways: list[Way], effort: Effort) -> Report:
    """The two tables and their goals."""
    promised = [each for each in seen if each.promise.speedup is not None]
    header = ["framework", "model", "promised", "untuned", "tuned", "delivered", "off by", "kept", "config"]
    return Report(
        name="training",
        title="Training steps",
        about=(
            "`tune --task train` (forward, loss, backward and Adam's step, batches of 4) on the CPU, and the exported "
            f"config applied by hand in `benchmarks/plain_training.py`, in {effort.pairs} pairs of fresh processes. "
            "Below: MindSpore's ways of running one step, each against PyNative."
        ),
        goals=[*_promise_goal(promised), *_graph_goal([each for each in ways if each.name == "graph mode"])],
        body="\n\n".join([table(header, [each.cells() for each in seen]), *_ways_table(ways)]),
        results={
            "steps": [{**asdict(each), "delivered": each.found and asdict(each.found)} for each in seen],
            "ways": [{**asdict(each), "times": asdict(each.found)} for each in ways],
            "effort": asdict(effort),
        },
    )


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


def main() -> None:
    """Tune, export and run each step, then MindSpore's ways, and write the section."""
    parser = argparse.ArgumentParser(
        description="Training steps: verdicts, delivered figures, PyNative against graphs."
    )
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES), help="(default: all)")
    parser.add_argument("--frameworks", nargs="+", default=list(FRAMEWORKS), choices=FRAMEWORKS, help="(default: both)")
    parser.add_argument("--trials", type=int, default=8, help="trials of each study (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="process pairs of each comparison (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="the ViT, three trials, two short pairs; nothing is written"
    )
    given = parser.parse_args()
    effort = Effort(given.trials, given.pairs, sampling_s=4.0)
    if given.quick:
        given.models, effort = ["vit"], Effort(trials=3, pairs=2, sampling_s=1.0)

    conditions = Conditions.now()
    with Product() as product:
        seen = [deliver(product, framework, model, effort) for framework in given.frameworks for model in given.models]
    ways = [way for model in given.models for way in ways_of(model, effort)] if "mindspore" in given.frameworks else []
    publish(report_of(seen, ways, effort), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
