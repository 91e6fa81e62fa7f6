"""Promised against delivered: does a job get the speed-up that the exported YAML states?

The job is `plain.py`: no tuner around it, its own process, its own way of timing. It runs each model untuned and under
the exported config, in pairs of fresh processes whose order is swapped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from benchmarks.intervals import Pair, Ratio, ratio_over_pairs
from benchmarks.pairs import PlainScript, alternate
from benchmarks.product import Product, export_in
from benchmarks.record import Conditions, Goal, Report, percent, publish, table

MODELS = ("vit", "resnet18", "bert_small", "planner", "yolo_tiny", "tanh_matmul")
SEED = 0
TOLERANCE = 0.03


@dataclass(frozen=True)
class Promise:
    """What an export says: the verdict, and the speed-up where there is one to be had."""

    verdict: str
    speedup: Ratio | None
    """None: the model stays untouched, which promises nothing."""

    @classmethod
    def read(cls, path: Path) -> Promise:
        exported: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        if exported["verdict"] != "faster":
            return cls(exported["verdict"], None)
        stated = exported["evidence"]["speedup"]
        return cls(exported["verdict"], Ratio(stated["median"], stated["low"], stated["high"]))


@dataclass(frozen=True)
class Delivery:
    """Pairs of a model: seconds a call untuned, and compiled as exported (by default where nothing was exported)."""

    model: str
    promise: Promise
    pairs_s: list[Pair]

    @property
    def found(self) -> Ratio:
        return ratio_over_pairs(self.pairs_s)

    @property
    def kept(self) -> bool:
        """An untouched model keeps its promise of 1.0 by being itself."""
        promised, found = self.promise.speedup, self.found.mean
        if promised is None:
            return True
        return promised.low <= found <= promised.high or abs(found / promised.mean - 1) <= TOLERANCE

    def cells(self) -> list[str]:
        untuned_ms, compiled_ms = (1e3 * statistics.median(side) for side in zip(*self.pairs_s, strict=True))
        measured = [f"{untuned_ms:.2f} ms", f"{compiled_ms:.2f} ms", str(self.found)]
        if self.promise.speedup is None:
            return [self.model, self.promise.verdict, *measured]
        off = percent(self.found.mean / self.promise.speedup.mean - 1)
        return [self.model, str(self.promise.speedup), *measured, off, "yes" if self.kept else "no"]


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    trials: int
    pairs: int
    sampling_s: float


def deliver(product: Product, model: str, exports: Path, effort: Effort) -> Delivery:
    """Tune and export the model, unless its export is there already, and run the plain script both ways."""
    path = export_in(exports, model, SEED).resolve()
    if not path.exists():
        product.tune(model, "torch", study=model, trials=effort.trials, seed=SEED)
        product.export(model, path)
    promise = Promise.read(path)
    way = ["--default-compile"] if promise.speedup is None else ["--settings", str(path)]
    with tempfile.TemporaryDirectory() as folder:
        script = PlainScript(model, Path(folder), seed=SEED, sampling_s=effort.sampling_s)
        pairs_s = alternate(effort.pairs, script.median_s, lambda: script.median_s(*way))
    delivery = Delivery(model, promise, pairs_s)
    print(" | ".join(delivery.cells()), flush=True)
    return delivery


def report_of(seen: list[Delivery], effort: Effort) -> Report:
    """Models with a promise, and models that were left alone, in a table each."""
    promised = [each for each in seen if each.promise.speedup is not None]
    untouched = [each for each in seen if each.promise.speedup is None]
    num_kept = sum(each.kept for each in promised)
    found = f"{num_kept} of {len(promised)} promises" if promised else "no model was promised anything"
    if untouched:
        found += f"; {len(untouched)} of {len(seen)} models are left untouched, which promises 1.0 and cannot fail"
    return Report(
        name="delivered",
        title="Promised and delivered",
        about=(
            f"Each model is tuned on the CPU with PyTorch and exported; then `benchmarks/plain.py`, which shares no "
            f"code with the tool but the model's definition, runs it both ways in {effort.pairs} pairs of fresh "
            "processes. Delivered is the geometric mean of the pairs' ratios, with its 95 % interval."
        ),
        goals=[
            Goal(
                f"delivered within {TOLERANCE:.0%} of the promise, or inside the promised interval".replace("%", " %"),
                found,
                bool(promised) and num_kept == len(promised),
            )
        ],
        body="\n\n".join([*_promised_table(promised), *_untouched_table(untouched)]),
        results={
            "models": [{**asdict(each), "delivered": asdict(each.found), "kept": each.kept} for each in seen],
            "effort": asdict(effort),
        },
    )


def main() -> None:
    """Tune, export and run each model, and write the section."""
    parser = argparse.ArgumentParser(description="Does a plain script get the speed-up that the export promises?")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="bundled models (default: %(default)s)")
    parser.add_argument("--from", type=Path, dest="exports", metavar="DIR",
                        help="folder of exports: one that is there is used, one that is missing is made")  # fmt: skip
    parser.add_argument("--trials", type=int, default=8, help="trials of each study (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="process pairs of each model (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two models, two trials, two short pairs")
    given = parser.parse_args()
    effort = Effort(given.trials, given.pairs, sampling_s=4.0)
    if given.quick:
        given.models, effort = ["resnet18", "bert_small"], Effort(trials=2, pairs=2, sampling_s=1.0)

    conditions = Conditions.now()
    with Product() as product:
        exports = given.exports or product.folder / "exports"
        seen = [deliver(product, model, exports, effort) for model in given.models]
    publish(report_of(seen, effort), conditions, write=not given.quick)


def _promised_table(promised: list[Delivery]) -> list[str]:
    header = ["model", "promised", "untuned", "tuned", "delivered", "off by", "kept"]
    return [table(header, [each.cells() for each in promised])] if promised else []


def _untouched_table(untouched: list[Delivery]) -> list[str]:
    if not untouched:
        return []
    heading = (
        "Left untouched: the export changes nothing, so the delivered speed-up is 1.0 by itself. What compiling by "
        "default would have given instead (a figure below 1 is what was avoided):"
    )
    header = ["model", "verdict", "untuned", "compiled by default", "speed-up"]
    return [heading, table(header, [each.cells() for each in untouched])]


if __name__ == "__main__":
    main()
