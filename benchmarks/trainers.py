"""Do trainers get what a study of their training step promised, and do they learn the same?

    make zoo                                          once: timm is one of its libraries
    taskset -c 0,1 python benchmarks/trainers.py

Models with the dropout that they are shipped with are tuned by `tune --task train --own-loop` and exported. Then
`trainers_job.py` trains 200 steps under Hugging Face's Trainer, accelerate and Lightning, untuned and with the file, in
pairs of fresh processes, each pair with a seed of its own.
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
from benchmarks.evidence import Benchmark, Goal, percent, table
from benchmarks.processes import Job, Pair, Product, ProductError, ratio_over_pairs
from benchmarks.zoo_models import LIBRARIES

JOB = Path(__file__).with_name("trainers_job.py")
TOLERANCE = 0.05
LAST = 40
"""Steps whose mean loss is what a run has learnt."""
SPREADS = 3.0
"""The means of tuned and untuned runs may differ by so many standard errors over the seeds."""


@dataclass(frozen=True)
class Case:
    """A model, and the trainer that trains it."""

    name: str
    trainer: str
    model: str
    arguments: dict[str, Scalar]
    budget: str
    pairs: int
    steps: int


@dataclass(frozen=True)
class Trained:
    """What was promised and what the runs gave: pairs of untuned and tuned, seconds a step and last losses."""

    model: str
    trainer: str
    promise: Promise | None
    """None: `refusal` says why."""
    refusal: str | None = None
    steps_s: list[Pair] = field(default_factory=list)
    losses: list[Pair] = field(default_factory=list)
    first_loss: float = 0.0
    warnings: list[str] = field(default_factory=list)

    @property
    def is_kept(self) -> bool | None:
        """None: nothing was promised."""
        if self.promise is None or self.promise.speedup is None:
            return None
        return self.promise.is_kept_by(ratio_over_pairs(self.steps_s), TOLERANCE)

    @property
    def learns_the_same(self) -> bool | None:
        """Within the spread over the seeds; None: nothing was trained, or both ways are the untuned one."""
        if self.is_kept is None or len(self.losses) < 2:
            return None
        untuned, tuned = zip(*self.losses, strict=True)
        variance = (statistics.variance(untuned) + statistics.variance(tuned)) / len(self.losses)
        return bool(abs(statistics.fmean(untuned) - statistics.fmean(tuned)) <= SPREADS * variance**0.5)


BERT = {"head": "classification", "seq": 64, "batch": 8}
CASES = (
    ("BERT", "trainer", "hf:bert", BERT),
    ("GPT-2", "accelerate", "hf:gpt2", {"head": "causal", "seq": 64, "batch": 8}),
    ("ViT of timm", "lightning", "timm:vit_tiny_patch16_224", {"depth": 4, "drop_rate": 0.1, "attn_drop_rate": 0.1}),
    ("MobileNetV3 of timm", "lightning", "timm:mobilenetv3_small_100", {"drop_rate": 0.2, "image_size": 96}),
    ("Qwen3", "trainer", "hf:qwen3", {"head": "causal", "seq": 64, "batch": 8, "attention_dropout": 0.1}),
)


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    names = [name for name, *_ in CASES]
    parser.add_argument("--model", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--budget", default="5m", help="of each study (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="process pairs of each model (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """All; for a smoke run one, and few steps."""
    chosen: Any = CASES[:1] if given.quick else [case for case in CASES if case[0] in given.model]
    steps, pairs = (40, 2) if given.quick else (200, given.pairs)
    return [
        Case(name, trainer, model, arguments, given.budget, pairs, steps) for name, trainer, model, arguments in chosen
    ]


def run(case: Case) -> Trained:
    """Tune, export, and train both ways."""
    with Product(LIBRARIES / "timm") as product, tempfile.TemporaryDirectory() as folder:
        try:
            path = product.exported(
                case.model, "torch", study="trained", task="train", budget=case.budget,
                model_arguments=case.arguments, flags=["--own-loop"],
            )  # fmt: skip
        except ProductError as error:
            return Trained(case.name, case.trainer, None, refusal=str(error))
        job = Job(JOB, Path(folder), LIBRARIES / "timm")

        def trained(seed: int, *way: str) -> dict[str, Any]:
            words = (case.trainer, case.model, *way, "--seed", str(seed), "--steps", str(case.steps))
            return job.seen(*words, arguments=case.arguments)

        seen = [(trained(seed), trained(seed, "--settings", str(path))) for seed in range(case.pairs)]
        return Trained(
            case.name,
            case.trainer,
            Promise.read(path),
            steps_s=[(untuned["step_s"], tuned["step_s"]) for untuned, tuned in seen],
            losses=[(_last(untuned), _last(tuned)) for untuned, tuned in seen],
            first_loss=statistics.fmean(untuned["losses"][0] for untuned, _ in seen),
            warnings=sorted({message for _, tuned in seen for message in tuned["warnings"]}),
        )


def _last(seen: dict[str, Any]) -> float:
    return statistics.fmean(seen["losses"][-LAST:])


def judge(records: Sequence[Trained]) -> list[Goal]:
    """The promises, and the losses."""
    promised = [record for record in records if record.is_kept is not None]
    trained = [record for record in records if record.learns_the_same is not None]
    kept = sum(record.is_kept is True for record in promised)
    same = sum(record.learns_the_same is True for record in trained)
    silent = sum(not record.warnings for record in trained)
    return [
        Goal(
            f"a step as fast as promised, within {percent(TOLERANCE)} or inside the promised interval",
            f"{kept} of {len(promised)} promises" if promised else "no model was promised anything",
            bool(promised) and kept == len(promised),
        ),
        Goal(
            f"the mean of the last {LAST} losses within {SPREADS:g} standard errors over the seeds, and no warning",
            f"{same} of {len(trained)} models, {silent} without a warning",
            bool(trained) and same == silent == len(trained) == len(records),
        ),
    ]


def section(records: Sequence[Trained]) -> str:
    """A row a model."""
    about = (
        "Each model is tuned on the CPU by `tune --task train --own-loop`, with its dropout on, and exported. Then "
        "`benchmarks/trainers_job.py` trains it by a library's own trainer, untuned and with the file in one line "
        "(docs/training.md), in pairs of fresh processes. *Loss*: mean of the first step's, and of the last "
        f"{LAST} steps' untuned and tuned."
    )
    header = ["model", "trainer", "promised", "untuned", "tuned", "delivered", "kept", "loss", "the same"]
    return f"{about}\n\n{table(header, [_cells(record) for record in records])}"


def _cells(record: Trained) -> list[str]:
    if record.promise is None:
        return [record.model, record.trainer, record.refusal or "", *[""] * 6]
    untuned_ms, tuned_ms = (1e3 * statistics.median(side) for side in zip(*record.steps_s, strict=True))
    untuned, tuned = map(statistics.fmean, zip(*record.losses, strict=True))
    words = {True: "yes", False: "no", None: ""}
    return [
        record.model,
        record.trainer,
        str(record.promise.speedup or record.promise.verdict),
        f"{untuned_ms:.1f} ms",
        f"{tuned_ms:.1f} ms",
        str(ratio_over_pairs(record.steps_s)),
        words[record.is_kept],
        f"{record.first_loss:.3f} to {untuned:.3f} and {tuned:.3f}",
        words[record.learns_the_same] + ("" if not record.warnings else f"; {'; '.join(record.warnings)}"),
    ]


BENCHMARK = Benchmark("trainers", "Trainers", __doc__, Trained, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
