"""The same answer twice: two studies of a model that differ in their seed alone must not contradict each other.

The seed shuffles the order of trials and fills weights and inputs. The answers agree if both studies say to run the
same config, or if the two configs, compared with each other, are a tie.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.frame import Benchmark
from benchmarks.product import Document, Product, ProductError, export_in
from benchmarks.record import Goal, table

MODELS = ("vit", "resnet18", "planner")
SEEDS = (0, 1)
ABOUT = (
    "Each model is tuned twice on the CPU with PyTorch; only `--seed` differs, which shuffles the trials and "
    "fills weights and inputs. Where the two answers differ, `compare` measures one export against the other."
)


@dataclass(frozen=True)
class Case:
    """A model that is tuned twice. `keep`: where its exports stay; None: nowhere."""

    name: str
    trials: int | None
    keep: Path | None


@dataclass(frozen=True)
class StudyResult:
    """What one study said to do."""

    verdict: str
    config: dict[str, Any]
    speedup: float | None

    @classmethod
    def of(cls, document: Document) -> StudyResult:
        speedup = document["speedup"]
        return cls(document["verdict"], document["best"]["config"], None if speedup is None else speedup["median"])

    def in_words(self) -> str:
        if self.verdict != "faster":
            return f"`{self.verdict}`: as it is"
        settings = " ".join(f"{name}={value}" for name, value in self.config.items() if name != "execution")
        return f"`faster`, {self.speedup:.3f}x: {settings}"


@dataclass(frozen=True)
class Twice:
    """Two answers about one model. `compared`: the product's verdict on the two configs, None where they are one."""

    model: str
    answers: tuple[StudyResult, StudyResult]
    compared: str | None
    compared_at: str | None = None
    """The commit, where the exports were kept and compared later."""

    @property
    def same(self) -> bool:
        return self.compared in (None, "tie")

    def cells(self) -> list[str]:
        judged = "the same config" if self.compared is None else self.compared
        if self.compared_at is not None:
            judged += f" (at commit {self.compared_at})"
        return [self.model, *(answer.in_words() for answer in self.answers), judged, "yes" if self.same else "no"]


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="bundled models (default: %(default)s)")
    parser.add_argument("--trials", type=int, help="trials of each study (default: the product's own)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the exported YAML files in this folder")


def cases(given: argparse.Namespace) -> list[Case]:
    """A case for each model; for a smoke run ResNet-18 alone, with two trials."""
    if given.quick:
        return [Case("resnet18", 2, given.keep)]
    return [Case(model, given.trials, given.keep) for model in given.models]


def run(case: Case) -> Twice:
    """Two studies, their exports, and a comparison where the configs differ."""
    with Product() as product:
        folder = case.keep or product.folder / "exports"
        first, second = (ask(product, case.name, seed, case.trials, folder) for seed in SEEDS)
        differ = first.config != second.config
        return Twice(case.name, (first, second), compare(product, case.name, folder) if differ else None)


def ask(product: Product, model: str, seed: int, trials: int | None, folder: Path) -> StudyResult:
    """One study; its export goes to `folder`."""
    study = f"{model}-{seed}"
    document = product.tune(model, "torch", study=study, trials=trials, seed=seed, process_settings=True)
    product.export(study, export_in(folder, model, seed))
    return StudyResult.of(document)


def compare(product: Product, model: str, folder: Path) -> str:
    """The product's own verdict on the second export against the first, or why there is none."""
    try:
        document = product.compare(*(export_in(folder, model, seed) for seed in SEEDS))
    except ProductError as error:
        return f"not compared ({error})"
    return document["verdict"] or f"not compared (the {document['failed']} failed)"


def judge(records: Sequence[Twice]) -> list[Goal]:
    """One goal over all models."""
    num_same = sum(each.same for each in records)
    return [
        Goal(
            "both studies say the same config, or two whose comparison is a tie, for every model",
            f"{num_same} of {len(records)} models",
            num_same == len(records),
        )
    ]


def section(records: Sequence[Twice]) -> str:
    """One row for each model."""
    header = ["model", *(f"seed {seed}" for seed in SEEDS), "the two against each other", "same answer"]
    return f"{ABOUT}\n\n{table(header, [each.cells() for each in records])}"


BENCHMARK = Benchmark("same_answer", "The same answer twice", __doc__, Twice, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
