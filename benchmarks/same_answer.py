"""The same answer twice: two studies of a model that differ in their seed alone must not contradict each other.

The seed shuffles the order of trials and fills weights and inputs. The answers agree if both studies say to run the
same config, or if the two configs, compared with each other, are a tie.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.product import Document, Product, ProductError, export_in
from benchmarks.record import Conditions, Goal, Report, publish, table

MODELS = ("vit", "resnet18", "planner")
SEEDS = (0, 1)


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

    @property
    def same(self) -> bool:
        return self.compared in (None, "tie")

    def cells(self) -> list[str]:
        judged = "the same config" if self.compared is None else self.compared
        return [self.model, *(answer.in_words() for answer in self.answers), judged, "yes" if self.same else "no"]


def ask_twice(product: Product, model: str, trials: int | None, folder: Path) -> Twice:
    """Two studies, their exports in `folder`, and a comparison where the configs differ."""
    first, second = (ask(product, model, seed, trials, folder) for seed in SEEDS)
    twice = Twice(model, (first, second), None if first.config == second.config else compare(product, model, folder))
    print(" | ".join(twice.cells()), flush=True)
    return twice


def ask(product: Product, model: str, seed: int, trials: int | None, folder: Path) -> StudyResult:
    """One study; its export goes to `folder`."""
    study = f"{model}-{seed}"
    document = product.tune(model, "torch", study=study, trials=trials, seed=seed)
    product.export(study, export_in(folder, model, seed))
    return StudyResult.of(document)


def compare(product: Product, model: str, folder: Path) -> str:
    """The product's own verdict on the second export against the first, or why there is none."""
    try:
        document = product.compare(*(export_in(folder, model, seed) for seed in SEEDS))
    except ProductError as error:
        return f"not compared ({error})"
    return document["verdict"] or f"not compared (the {document['failed']} failed)"


def report_of(seen: list[Twice]) -> Report:
    """One goal over all models."""
    num_same = sum(each.same for each in seen)
    header = ["model", *(f"seed {seed}" for seed in SEEDS), "the two against each other", "same answer"]
    return Report(
        name="same_answer",
        title="The same answer twice",
        about=(
            "Each model is tuned twice on the CPU with PyTorch; only `--seed` differs, which shuffles the trials and "
            "fills weights and inputs. Where the two answers differ, `compare` measures one export against the other."
        ),
        goals=[
            Goal(
                "both studies say the same config, or two whose comparison is a tie, for every model",
                f"{num_same} of {len(seen)} models",
                num_same == len(seen),
            )
        ],
        body=table(header, [each.cells() for each in seen]),
        results={"models": [{**asdict(each), "same": each.same} for each in seen]},
    )


def main() -> None:
    """Tune each model twice and write the section."""
    parser = argparse.ArgumentParser(description="Tune models twice with other seeds: is the answer the same?")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="bundled models (default: %(default)s)")
    parser.add_argument("--trials", type=int, help="trials of each study (default: the product's own)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the exported YAML files in this folder")
    parser.add_argument("--quick", action="store_true", help="ResNet-18 alone, with two trials")
    given = parser.parse_args()
    if given.quick:
        given.models, given.trials = ["resnet18"], 2

    conditions = Conditions.now()
    with Product() as product, tempfile.TemporaryDirectory() as folder:
        exports = given.keep or Path(folder)
        seen = [ask_twice(product, model, given.trials, exports) for model in given.models]
    publish(report_of(seen), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
