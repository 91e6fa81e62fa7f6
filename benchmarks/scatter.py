"""How far do processes of one model differ, why, and how narrow is the answer all the same?

    taskset -c 0,1 python benchmarks/scatter.py                              ten studies of each of ten models
    taskset -c 0,1 python benchmarks/scatter.py --studies 1 --model unet

Each study is the plain command line with a budget, in fresh processes. A record is kept as soon as it is there, so that
a run goes on where it was stopped, and holds the blocks: other statistics can be tried on them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import zoo_models
from benchmarks.evidence import REPOSITORY, Benchmark, Goal, by_commit, commit, is_of_this_code, table
from benchmarks.processes import Document, Product, ProductError, Ratio
from benchmarks.zoo import ANSWERS
from benchmarks.zoo_models import ZooModel

_ELEMENTWISE = f"{REPOSITORY}/benchmarks/models/elementwise_torch.py:elementwise"
_OF_THE_ZOO = ("unet", "bert", "gpt2", "segformer", "whisper", "wav2vec2", "vae_decoder")
MODELS = (
    ZooModel("elementwise", "elementwise operations", "torch", _ELEMENTWISE),
    *(model for model in zoo_models.MODELS if model.name in _OF_THE_ZOO),
    ZooModel("resnet18", "convolution", "torch", "resnet18"),
    ZooModel("vit", "attention", "torch", "vit"),
)


@dataclass(frozen=True)
class Row:
    """A block, by trial."""

    values: dict[str, float]
    """Seconds a call."""
    control: float | None
    page_faults: dict[str, float]
    """A call."""


@dataclass(frozen=True)
class Scattered:
    """What the study says of the config whose processes differ most."""

    factor: float
    """The slowest process over the fastest."""
    cause: str | None
    share: float
    """Of the scatter, that the cause explains; 0 without a cause."""


@dataclass(frozen=True)
class Record:
    """One study."""

    model: str
    budget: str
    commit: str
    seconds: float
    """Of the whole command."""
    verdict: str | None = None
    """None: `refusal` says why."""
    refusal: str | None = None
    speedup: Ratio | None = None
    """The interval is the study's own, of 98 %."""
    scatter: Scattered | None = None
    """None: no config's processes differ visibly."""
    trials_s: dict[str, float] = field(default_factory=dict)
    """Seconds a call in each trial of the search."""
    rows: list[Row] = field(default_factory=list)

    @property
    def width(self) -> float | None:
        """The interval's upper end over its lower one."""
        return self.speedup.high / self.speedup.low if self.speedup else None

    @property
    def is_decided(self) -> bool:
        return self.verdict in ANSWERS


@dataclass(frozen=True)
class Case:
    """A study of a model; they have numbers, which are their seeds."""

    of: ZooModel
    number: int
    budget: str

    @property
    def name(self) -> str:
        return f"{self.of.name} {self.budget} {self.number}"


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    names = [model.name for model in MODELS]
    parser.add_argument("--model", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    parser.add_argument("--studies", type=int, default=10, help="of each model (default: %(default)s)")
    parser.add_argument("--budget", default="120s", help="of a study (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """The first study of each model, then the second: whoever stops the run has some of all."""
    numbers, budget = (range(1), "20s") if given.quick else (range(given.studies), given.budget)
    names = ["bert"] if given.quick else given.model
    return [Case(model, number, budget) for number in numbers for model in MODELS if model.name in names]


def run(case: Case) -> Record:
    """Tune the model."""
    model, start = case.of, time.perf_counter()
    if not model.is_installed:
        return Record(model.name, case.budget, commit(), 0.0, refusal=f"{model.library} is not installed")
    with Product(model.path) as product:
        try:
            document = product.tune(
                model.model, model.framework, study="scatter", model_arguments=model.arguments, budget=case.budget,
                seed=case.number,
            )  # fmt: skip
        except ProductError as error:
            return Record(model.name, case.budget, commit(), time.perf_counter() - start, refusal=str(error))
    return record_of(case, time.perf_counter() - start, document)


def record_of(case: Case, seconds: float, document: Document) -> Record:
    """What the study's document says."""
    speedup, scatter = document["speedup"], document["scatter"]
    return Record(
        model=case.of.name,
        budget=case.budget,
        commit=commit(),
        seconds=seconds,
        verdict=document["verdict"],
        refusal=None if document["baseline"] else "the untuned model was not measured",
        speedup=speedup and Ratio(speedup["median"], speedup["low"], speedup["high"]),
        scatter=scatter
        and Scattered(scatter["high_s"] / scatter["low_s"], scatter["cause"], share_of(scatter["cause"], scatter)),
        trials_s={
            str(trial["number"]): trial["latency_s"]["p50"]
            for trial in document["trials"]
            if trial["state"] == "measured"
        },
        rows=[
            Row(
                row["values"],
                row["control"],
                {trial: state["page_faults"] for trial, state in (row["states"] or {}).items() if state},
            )
            for row in document["blocks"]
        ],
    )


def share_of(cause: str | None, scatter: Document) -> float:
    """A cause that two processes show has no share of its own: it comes to half of their difference or more."""
    if cause is None:
        return 0.0
    return 0.5 if scatter["share"] is None else float(scatter["share"])


def holds(record: Record) -> bool:
    """A record of this very code, of a model that could be had."""
    return is_of_this_code(record.commit) and record.verdict is not None


def judge(_: Sequence[Record]) -> list[Goal]:
    """None are set: two commits are compared."""
    return []


def section(records: Sequence[Record]) -> str:
    """A row a model, and one for all."""
    budgets = ", ".join(dict.fromkeys(record.budget for record in records))
    about = (
        f"Studies of {len(MODELS)} models in fresh processes, each the plain command line with `--budget` ({budgets}). "
        "*Decided*: the verdict is `faster`, `tie` or `keep_untuned`. *Width*: the upper end of the verdict's interval "
        "over its lower end. *Processes differ*: studies in which processes of one config differ by a tenth or more, "
        "and the median of the slowest over the fastest. *Explained*: the share of that scatter for which the study "
        "names the cause, on average."
    )
    header = ["model", "studies", "decided", "verdicts", "width, median", "widest", "processes differ", "causes",
              "explained", "end, median"]  # fmt: skip
    by_model = [
        _cells(model.name, mine)
        for model in MODELS
        if (mine := [record for record in records if record.model == model.name])
    ]
    refused = [f"* {record.model}: {record.refusal}" for record in records if record.refusal]
    body = table(header, [*by_model, _cells("all", records)])
    commits = by_commit(record.commit for record in records)
    return "\n\n".join(filter(None, [about, body, "\n".join(dict.fromkeys(refused)), commits]))


def _cells(name: str, records: Sequence[Record]) -> list[str]:
    seen = [record.scatter for record in records if record.scatter is not None]
    widths = [record.width for record in records if record.width is not None]
    differ = f" ({_middle([each.factor for each in seen], '{:.2f}x')})" if seen else ""
    return [
        name,
        str(len(records)),
        f"{sum(record.is_decided for record in records)} of {len(records)}",
        _counted(record.verdict or "refused" for record in records),
        _middle(widths, "{:.2f}"),
        _middle(widths, "{:.2f}", max),
        f"{len(seen)} of {len(records)}{differ}",
        _counted((each.cause or "unexplained").replace("_", " ") for each in seen) or "-",
        f"{statistics.mean(each.share for each in seen):.0%}".replace("%", " %") if seen else "-",
        _middle([record.seconds for record in records], "{:.0f} s"),
    ]


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))


def _middle(figures: Sequence[float], form: str, of: Callable[[Sequence[float]], float] = statistics.median) -> str:
    return form.format(of(figures)) if figures else "-"


BENCHMARK = Benchmark(
    "scatter", "Processes that differ", __doc__, Record, cases, run, judge, section, options, holds=holds
)

if __name__ == "__main__":
    BENCHMARK.main()
