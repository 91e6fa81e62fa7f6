"""Promised against delivered: does a job get the speed-up that the exported YAML states?

The job is `plain.py`: no tuner around it, its own process, its own way of timing. It runs each model untuned and under
the exported config, in pairs of fresh processes whose order is swapped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from benchmarks.evidence import REPOSITORY, Benchmark, Goal, percent, table
from benchmarks.processes import Pair, PlainScript, Product, Ratio, alternate, export_in, ratio_over_pairs

PLANNER = f"{REPOSITORY}/examples/models/planner.py:planner"
MODELS = {name: name for name in ("vit", "resnet18", "bert_small")} | {
    **{name: f"{REPOSITORY}/examples/models/{name}_torch.py:{name}" for name in ("yolo_tiny", "tanh_matmul")},
    "planner": PLANNER,
}
"""Name -> what `--model` takes."""
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

    def is_kept_by(self, found: Ratio, tolerance: float = TOLERANCE) -> bool:
        """An untouched model keeps its promise of 1.0 by being itself."""
        stated = self.speedup
        return (
            stated is None or stated.low <= found.mean <= stated.high or abs(found.mean / stated.mean - 1) <= tolerance
        )


def as_promised(tolerance: float = TOLERANCE) -> str:
    """The goal of a promise, in words."""
    return f"delivered within {tolerance:.0%} of the promise, or inside the promised interval".replace("%", " %")


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
        return self.promise.is_kept_by(self.found)

    def cells(self) -> list[str]:
        untuned_ms, compiled_ms = (1e3 * statistics.median(side) for side in zip(*self.pairs_s, strict=True))
        measured = [f"{untuned_ms:.2f} ms", f"{compiled_ms:.2f} ms", str(self.found)]
        if self.promise.speedup is None:
            return [self.model, self.promise.verdict, *measured]
        off = percent(self.found.mean / self.promise.speedup.mean - 1)
        return [self.model, str(self.promise.speedup), *measured, off, "yes" if self.kept else "no"]


@dataclass(frozen=True)
class Case:
    """A model, how much to measure, and where its export is or is to be kept (None: nowhere)."""

    name: str
    trials: int
    pairs: int
    sampling_s: float
    exports: Path | None


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="models (default: %(default)s)"
    )
    parser.add_argument("--from", type=Path, dest="exports", metavar="DIR",
                        help="folder of exports: one that is there is used, one that is missing is made")  # fmt: skip
    parser.add_argument("--trials", type=int, default=8, help="trials of each study (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="process pairs of each model (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """A case for each model; for a smoke run two models, two trials, two short pairs."""
    if given.quick:
        return [Case(model, 2, 2, 1.0, given.exports) for model in ("resnet18", "bert_small")]
    return [Case(model, given.trials, given.pairs, 4.0, given.exports) for model in given.models]


def run(case: Case) -> Delivery:
    """Tune and export the model, unless its export is there already, and run the plain script both ways."""
    with Product() as product:
        path = export_in(case.exports or product.folder / "exports", case.name, SEED).resolve()
        if not path.exists():
            product.tune(
                MODELS[case.name], "torch", study=case.name, trials=case.trials, seed=SEED, process_settings=True
            )
            product.export(case.name, path)
        promise = Promise.read(path)
        way = ["--default-compile"] if promise.speedup is None else ["--settings", str(path)]
        with tempfile.TemporaryDirectory() as folder:
            script = PlainScript(MODELS[case.name], Path(folder), seed=SEED, sampling_s=case.sampling_s)
            pairs_s = alternate(case.pairs, script.median_s, lambda: script.median_s(*way))
    return Delivery(case.name, promise, pairs_s)


def judge(records: Sequence[Delivery]) -> list[Goal]:
    """About the models that were promised something."""
    promised = [delivery for delivery in records if delivery.promise.speedup is not None]
    num_kept, num_untouched = sum(delivery.kept for delivery in promised), len(records) - len(promised)
    found = f"{num_kept} of {len(promised)} promises" if promised else "no model was promised anything"
    if num_untouched:
        found += f"; {num_untouched} of {len(records)} models are left untouched, which promises 1.0 and cannot fail"
    return [
        Goal(
            as_promised(),
            found,
            bool(promised) and num_kept == len(promised),
        )
    ]


def section(records: Sequence[Delivery]) -> str:
    """Models with a promise, and models that were left alone, in a table each."""
    promised = [delivery for delivery in records if delivery.promise.speedup is not None]
    untouched = [delivery for delivery in records if delivery.promise.speedup is None]
    about = (
        "Each model is tuned on the CPU with PyTorch and exported; then `benchmarks/plain.py`, which shares no "
        f"code with the tool but the model's definition, runs it both ways in {len(records[0].pairs_s)} pairs of fresh "
        "processes. Delivered is the geometric mean of the pairs' ratios, with its 95 % interval."
    )
    return "\n\n".join([about, *_promised_table(promised), *_untouched_table(untouched)])


def _promised_table(promised: list[Delivery]) -> list[str]:
    header = ["model", "promised", "untuned", "tuned", "delivered", "off by", "kept"]
    return [table(header, [delivery.cells() for delivery in promised])] if promised else []


def _untouched_table(untouched: list[Delivery]) -> list[str]:
    if not untouched:
        return []
    heading = "Left untouched, so the delivered speed-up is 1.0; what compiling by default would have given instead:"
    header = ["model", "verdict", "untuned", "compiled by default", "speed-up"]
    return [heading, table(header, [delivery.cells() for delivery in untouched])]


BENCHMARK = Benchmark("delivered", "Promised and delivered", __doc__, Delivery, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
