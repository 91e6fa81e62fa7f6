"""Tokens a second of models that generate text: untuned, in the two ways that are written by hand, and tuned.

    taskset -c 0,1 python benchmarks/generation.py

Models are tuned by `tune --task generate` and exported. Then `generation_job.py` generates in each way, in fresh
processes that take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.config import Scalar
from benchmarks.delivered import Promise
from benchmarks.evidence import Benchmark, Goal, by_commit, commit, is_of_this_code, percent, table
from benchmarks.generation_job import WAYS
from benchmarks.processes import Job, Product, ProductError

JOB = Path(__file__).with_name("generation_job.py")
TOLERANCE = 0.05


@dataclass(frozen=True)
class Case:
    """A model that generates."""

    name: str
    arguments: dict[str, Scalar]
    budget: str
    rounds: int
    passes: int


@dataclass(frozen=True)
class Generated:
    """What each way gave in each round: tokens a second, graphs compiled in steady passes, the same tokens."""

    model: str
    promise: Promise | None
    """None: `refusal` says why."""
    refusal: str | None = None
    rates: dict[str, list[float]] = field(default_factory=dict)
    recompiles: dict[str, int] = field(default_factory=dict)
    are_equal: dict[str, bool] = field(default_factory=dict)
    """Its tokens are those of the untuned model."""
    commit: str = ""
    """Empty where nothing was measured."""

    def rate(self, way: str) -> float:
        return statistics.median(self.rates[way])

    @property
    def share(self) -> float:
        """Tokens a second of the export by those of the best other way."""
        return self.rate("tuned") / max(self.rate(way) for way in WAYS if way != "tuned")


SIZES: dict[str, Scalar] = {"hidden_size": 256, "num_hidden_layers": 4}
MODELS: dict[str, dict[str, Scalar]] = {"llama": SIZES, "gpt2": SIZES, "qwen3": SIZES, "t5": {"hidden_size": 256}}


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS), help="default: all")
    parser.add_argument("--budget", default="15m", help="of each study (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """All models; for a smoke run one, small and short."""
    if given.quick:
        small: dict[str, Scalar] = {"hidden_size": 64, "num_hidden_layers": 2, "prompts": "8,24", "new_tokens": 8}
        return [Case("llama", small, "4m", 1, 2)]
    return [Case(name, MODELS[name], given.budget, given.rounds, 10) for name in given.model]


def run(case: Case) -> Generated:
    """Tune, export, and generate in all ways."""
    with Product() as product, tempfile.TemporaryDirectory() as folder:
        try:
            path = product.exported(
                f"hf:{case.name}", "torch", study="text", task="generate", budget=case.budget,
                model_arguments=case.arguments,
            )  # fmt: skip
        except ProductError as error:
            return Generated(case.name, None, refusal=str(error))
        job, words = Job(JOB, Path(folder)), ("--settings", str(path), "--passes", str(case.passes))
        seen: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(case.rounds):
            for way in WAYS:
                seen[way].append(job.seen(f"hf:{case.name}", way, *words, arguments=case.arguments))
        tokens = seen["untuned"][0]["tokens"]
        return Generated(
            case.name,
            Promise.read(path),
            rates={way: [each["tokens_per_second"] for each in seen[way]] for way in WAYS},
            recompiles={way: max(each["recompiles"] for each in seen[way]) for way in WAYS},
            are_equal={way: all(each["tokens"] == tokens for each in seen[way]) for way in WAYS},
            commit=commit(),
        )


def holds(record: Generated) -> bool:
    """A record of this very code."""
    return is_of_this_code(record.commit)


def judge(records: Sequence[Generated]) -> list[Goal]:
    """As fast as the best other way, and right."""
    made = [record for record in records if record.rates]
    fast = sum(record.share >= 1 - TOLERANCE for record in made)
    sound = sum(record.recompiles["tuned"] == 0 and record.are_equal["tuned"] for record in made)
    return [
        Goal(
            f"as many tokens a second as the best way by hand, within {percent(TOLERANCE)}",
            f"{fast} of {len(made)} models",
            bool(made) and fast == len(made) == len(records),
        ),
        Goal(
            "0 graphs compiled in steady passes, and the untuned model's tokens",
            f"{sound} of {len(made)} models",
            bool(made) and sound == len(made) == len(records),
        ),
    ]


def section(records: Sequence[Generated]) -> str:
    """A row a model."""
    about = (
        "Models with random weights continue prompts of 16, 64 and 200 tokens by 64 tokens each. Tokens a second of "
        "fresh processes, the median over them; in brackets graphs that were compiled in steady passes, if any. "
        "*forward*: `torch.compile(model.forward)`; *transformers*: Hugging Face's static cache with its own compiling."
    )
    rows = table(["model", *WAYS, "by the best other"], [_cells(record) for record in records])
    return "\n\n".join(filter(None, [about, rows, by_commit(record.commit for record in records)]))


def _cells(record: Generated) -> list[str]:
    if not record.rates:
        return [record.model, record.refusal or "", *[""] * len(WAYS)]
    rates = [
        f"{record.rate(way):.4g}" + (f" [{record.recompiles[way]}]" if record.recompiles[way] else "") for way in WAYS
    ]
    return [record.model, *rates, f"{record.share:.2f}x"]


BENCHMARK = Benchmark(
    "generation", "Generated text", __doc__, Generated, cases, run, judge, section, options, holds=holds
)

if __name__ == "__main__":
    BENCHMARK.main()
