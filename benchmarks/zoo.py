"""Real models under a short budget: does `tune` answer, how soon, and does a job get what was promised?

    make zoo                                                          once: the libraries that the models are from
    taskset -c 0,1 python benchmarks/zoo.py                           all models, with 60 s, 120 s and no budget
    taskset -c 0,1 python benchmarks/zoo.py --model bert --budget 60s

The models are those of `zoo_models.py`, and each is tuned by the command line that a user would type. A record is kept
as soon as it is there; what was measured at this commit is not measured again.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.delivered import Promise, as_promised
from benchmarks.evidence import Benchmark, Goal, by_commit, commit, is_of_this_code, table
from benchmarks.processes import Document, Job, Pair, Product, ProductError, Ratio, alternate, ratio_over_pairs
from benchmarks.zoo_models import MODELS, ZooModel

JOB = Path(__file__).with_name("zoo_job.py")
TIMES = ("--warmup-s", "1", "--sampling-s", "2")
BUDGETS = {"60s": 60.0, "120s": 120.0, "none": None}
"""What `--budget` takes -> seconds; None: the flag is left out."""
ANSWERED = {"60s": 18, "120s": 22}
"""How many models are to have an answer."""
ANSWERS = ("faster", "tie", "keep_untuned")
WORTH_PROVING = 1.3
"""A gain of which none is to be missed with the longest budget above."""
QUICK = ("bert", "mlp")
OVERRUN = 0.05
"""Share of the budget by which a run may end later."""


@dataclass(frozen=True)
class AnswerStep:
    """A config that was proven while the study ran."""

    after_s: float
    speedup: float
    num_blocks: int


@dataclass(frozen=True)
class Study:
    """What a run of `tune` found."""

    verdict: str | None
    why: str | None
    """What kept it from a comparison."""
    untuned_s: float
    speedup: Ratio | None
    searched: float | None
    """Untuned over the fastest trial, by the search's own timings; None: no other config was measured."""
    num_trials: int
    num_blocks: int
    answers: list[AnswerStep] = field(default_factory=list)

    @classmethod
    def of(cls, document: Document) -> Study:
        confirmation, baseline = document["confirmation"] or {}, document["baseline"]
        speedup, untuned_s = document["speedup"], baseline["latency_s"]["p50"]
        others_s = [
            statistics.median(trial["outcome"]["samples"]["latency_s"])
            for trial in document["trials"]
            if trial["state"] == "measured" and trial["number"] != baseline["trial"]
        ]
        return cls(
            verdict=document["verdict"],
            why=confirmation.get("why") or confirmation.get("note"),
            untuned_s=untuned_s,
            speedup=speedup and Ratio(speedup["median"], speedup["low"], speedup["high"]),
            searched=untuned_s / min(others_s) if others_s else None,
            num_trials=sum(trial["outcome"] is not None for trial in document["trials"]),
            num_blocks=len(confirmation.get("blocks", ())),
            answers=[
                AnswerStep(step["after_s"], step["speedup"]["median"], step["num_blocks"])
                for step in document.get("answers") or ()
            ],
        )


@dataclass(frozen=True)
class Record:
    """One model with one budget."""

    model: str
    budget: str
    commit: str
    seconds: float = 0.0
    """Of the whole command."""
    study: Study | None = None
    """None: `refusal` says why, or the library is missing."""
    refusal: str | None = None
    is_missing: bool = False
    pairs_s: list[Pair] = field(default_factory=list)
    """Seconds a call of the plain job, untuned and tuned; empty unless the verdict is `faster`."""
    job_failure: str | None = None

    @property
    def is_answered(self) -> bool:
        return self.study is not None and self.study.verdict in ANSWERS

    @property
    def proven(self) -> float | None:
        """The proven speed-up; None: no config was found to be faster."""
        study = self.study
        return study.speedup.mean if study and study.speedup and study.verdict == "faster" else None

    @property
    def first_proof_s(self) -> float | None:
        """Seconds to the first proof; the end where the study tells of none before it."""
        if self.study is None or self.proven is None:
            return None
        return self.study.answers[0].after_s if self.study.answers else self.seconds

    @property
    def is_late(self) -> bool:
        """It ended after its budget."""
        budget_s = BUDGETS[self.budget]
        return budget_s is not None and self.seconds > (1 + OVERRUN) * budget_s

    @property
    def delivered(self) -> Ratio | None:
        return ratio_over_pairs(self.pairs_s) if len(self.pairs_s) > 1 else None

    @property
    def is_kept(self) -> bool | None:
        """Whether the job got what was promised; None: nothing was promised, or no job was run."""
        if self.proven is None or not (self.pairs_s or self.job_failure):
            return None
        assert self.study is not None
        return self.delivered is not None and Promise("faster", self.study.speedup).is_kept_by(self.delivered)


@dataclass(frozen=True)
class Case:
    """A model with a budget, and how many pairs of jobs follow."""

    of: ZooModel
    budget: str
    pairs: int

    @property
    def name(self) -> str:
        return f"{self.of.name} {self.budget}"


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    names = [model.name for model in MODELS]
    parser.add_argument("--model", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    parser.add_argument("--budget", nargs="+", choices=BUDGETS, default=list(BUDGETS), help="default: all of them")
    parser.add_argument(
        "--pairs", type=int, default=3, help="process pairs of each job; 0: none (default: %(default)s)"
    )


def cases(given: argparse.Namespace) -> list[Case]:
    """By budget, the shortest first; for a smoke run two models with the shortest."""
    budgets, names = (("60s",), QUICK) if given.quick else (given.budget, given.model)
    pairs = min(given.pairs, 2) if given.quick else given.pairs
    return [
        Case(model, budget, pairs)
        for budget in BUDGETS
        for model in MODELS
        if budget in budgets and model.name in names
    ]


def run(case: Case) -> Record:
    """Tune the model; where that found something, run the plain job both ways."""
    model, now = case.of, commit()
    if not model.is_installed:
        return Record(model.name, case.budget, now, is_missing=True)
    with Product(model.path) as product:
        start = time.perf_counter()
        try:
            document = product.tune(
                model.model, model.framework, study="zoo", task=model.task, model_arguments=model.arguments,
                budget=None if BUDGETS[case.budget] is None else case.budget,
            )  # fmt: skip
        except ProductError as error:
            return Record(model.name, case.budget, now, time.perf_counter() - start, refusal=str(error))
        seconds = time.perf_counter() - start
        if document["baseline"] is None:
            return Record(model.name, case.budget, now, seconds, refusal=_failure(document))
        study = Study.of(document)
        pairs_s, failure = _jobs(product, case) if case.pairs and study.verdict == "faster" else ([], None)
    return Record(model.name, case.budget, now, seconds, study, pairs_s=pairs_s, job_failure=failure)


def _failure(document: Document) -> str:
    """Why there is no untuned model to compare with."""
    outcomes: list[dict[str, Any]] = [trial["outcome"] or {} for trial in document["trials"]]
    return next((str(told["error"]) for told in outcomes if told.get("error")), "the untuned model was not measured")


def _jobs(product: Product, case: Case) -> tuple[list[Pair], str | None]:
    """Pairs of jobs, untuned and with the study's file; or why one failed."""
    exported = (product.folder / "best.yaml").resolve()
    try:
        product.export("zoo", exported)
        with tempfile.TemporaryDirectory() as folder:
            job, model = Job(JOB, Path(folder), case.of.path), case.of

            def median_s(*way: str) -> float:
                words = (model.model, "--framework", model.framework, "--task", model.task, *way, *TIMES)
                return float(job.seen(*words, arguments=model.arguments)["median_s"])

            return alternate(case.pairs, median_s, lambda: median_s("--settings", str(exported))), None
    except ProductError as error:
        return [], str(error)
    except subprocess.CalledProcessError as error:
        return [], " ".join(error.stderr.splitlines()[-1:])


def holds(record: Record) -> bool:
    """A record of this very code, of a model that could be had."""
    return is_of_this_code(record.commit) and not record.is_missing


def judge(records: Sequence[Record]) -> list[Goal]:
    """Answers by budget, gains that were missed, ends, and promises."""
    goals = [_answered(records, budget) for budget in ANSWERED if any(r.budget == budget for r in records)]
    longest = [record for record in records if record.budget == "120s" and not record.is_missing]
    gains = [record for record in longest if _gain_of(record, records) >= WORTH_PROVING]
    if longest:
        unproven = [record.model for record in gains if record.proven is None]
        found = f"{len(gains) - len(unproven)} of {len(gains)}{_named(unproven)}"
        goals.append(Goal(f"with 120 s every gain of {WORTH_PROVING}x and more is proven", found, not unproven))
    limited = [record for record in records if BUDGETS[record.budget] and not record.is_missing]
    late = [record for record in limited if record.is_late]
    if limited:
        words = [f"{record.model} {record.seconds:.0f} of {record.budget[:-1]} s" for record in late]
        goals.append(
            Goal(
                "a run ends within its budget", f"{len(limited) - len(late)} of {len(limited)}{_named(words)}", not late
            )
        )
    judged = [record for record in records if record.is_kept is not None]
    if judged:
        broken = [f"{record.model} {record.budget}" for record in judged if not record.is_kept]
        found = f"{len(judged) - len(broken)} of {len(judged)} promises{_named(broken)}"
        goals.append(Goal(as_promised(), found, not broken))
    return goals


def _answered(records: Sequence[Record], budget: str) -> Goal:
    """Models that are missing, or were not run, count as unanswered; one that less time answered does not."""
    in_time = list(BUDGETS)[: list(BUDGETS).index(budget)]
    mine = {record.model: record for record in records if record.budget in in_time and record.is_answered}
    mine |= {record.model: record for record in records if record.budget == budget}
    num_answered = sum(record.is_answered for record in mine.values())
    without = [model for model, record in mine.items() if not record.is_answered and not record.is_missing]
    missing = [model for model, record in mine.items() if record.is_missing]
    sooner = sum(record.budget != budget for record in mine.values())
    found = f"{num_answered} of {len(mine)}{_named(without)}"
    found += f"; {sooner} of them with less time" if sooner else ""
    found += f"; not installed: {', '.join(missing)}" if missing else ""
    found += f"; {len(MODELS) - len(mine)} were not run" if len(mine) < len(MODELS) else ""
    goal = f"with {budget[:-1]} s at least {ANSWERED[budget]} of {len(MODELS)} models are answered"
    return Goal(goal, found, num_answered >= ANSWERED[budget])


def _named(names: Sequence[str]) -> str:
    return f" (not {', '.join(names)})" if names else ""


def _gain_of(record: Record, records: Sequence[Record]) -> float:
    """The largest that is known: proven in any run of the model, or seen in this one's search."""
    proven = [other.proven or 1.0 for other in records if other.model == record.model]
    searched = record.study.searched if record.study else None
    return max(*proven, searched or 1.0, 1.0)


def section(records: Sequence[Record]) -> str:
    """Budgets in a table, models in another, and what was refused."""
    about = (
        f"{len(MODELS)} models that nobody here wrote, small and with random weights, each tuned by the plain command "
        "line. *Answered*: the verdict is `faster`, `tie` or `keep_untuned`. A gain is told with the time of its first "
        "proof. *Delivered*: a plain job with the exported file (`benchmarks/zoo_job.py`) against the untuned model, "
        "in pairs of fresh processes, budget by budget. In brackets what the search alone saw, which proves nothing."
    )
    budgets = [budget for budget in BUDGETS if any(record.budget == budget for record in records)]
    by_budget = table(
        ["budget", "answered", "verdicts", "first proof, median", "end, median", "latest end", "promises kept"],
        [_budget_cells(budget, [r for r in records if r.budget == budget]) for budget in budgets],
    )
    named = {(record.model, record.budget): record for record in records}
    by_model = table(
        ["model", "untuned", *(_title(budget) for budget in budgets), "delivered"],
        [
            _model_cells(model, [named.get((model.name, budget)) for budget in budgets])
            for model in MODELS
            if any((model.name, budget) in named for budget in budgets)
        ],
    )
    commits = by_commit(record.commit for record in records)
    return "\n\n".join(filter(None, [about, by_budget, by_model, *_refusals(records), commits]))


def _title(budget: str) -> str:
    return "no budget" if BUDGETS[budget] is None else f"{budget[:-1]} s"


def _budget_cells(budget: str, records: list[Record]) -> list[str]:
    ran = [record for record in records if not record.is_missing]
    verdicts = Counter(record.study.verdict or "none" if record.study else "refused" for record in ran)
    proofs_s = [record.first_proof_s for record in ran if record.first_proof_s is not None]
    ends_s = [record.seconds for record in ran]
    judged = [record for record in ran if record.is_kept is not None]
    return [
        _title(budget),
        f"{sum(record.is_answered for record in ran)} of {len(records)}",
        ", ".join(f"{count} `{verdict}`" for verdict, count in sorted(verdicts.items())),
        f"{statistics.median(proofs_s):.0f} s" if proofs_s else "-",
        f"{statistics.median(ends_s):.0f} s" if ends_s else "-",
        f"{max(ends_s):.0f} s" if ends_s else "-",
        f"{sum(bool(record.is_kept) for record in judged)} of {len(judged)}",
    ]


def _model_cells(model: ZooModel, records: list[Record | None]) -> list[str]:
    untuned_s = [record.study.untuned_s for record in records if record and record.study]
    delivered = [f"{record.delivered.mean:.2f}" if record and record.delivered else "-" for record in records]
    return [
        f"{model.name} ({model.library}, {model.about})",
        f"{1e3 * statistics.median(untuned_s):.2f} ms" if untuned_s else "-",
        *(_answer_cell(record) for record in records),
        ", ".join(delivered),
    ]


def _answer_cell(record: Record | None) -> str:
    if record is None:
        return "not run"
    study = record.study
    if study is None:
        return "not installed" if record.is_missing else f"refused, {record.seconds:.0f} s"
    if record.proven is not None:
        return f"{record.proven:.2f} after {record.first_proof_s:.0f} s"
    seen = f" ({study.searched:.2f})" if study.searched and study.searched > 1 else ""
    return f"`{study.verdict}`{seen}"


def _refusals(records: Sequence[Record]) -> list[str]:
    """What the tool said where there was no answer, and of jobs that failed."""
    told = [(record, words) for record in records for words in (record.refusal, record.job_failure) if words]
    return ["\n".join(f"* {record.model}, {_title(record.budget)}: {words}" for record, words in told)] if told else []


BENCHMARK = Benchmark("zoo", "A zoo of real models", __doc__, Record, cases, run, judge, section, options, holds=holds)

if __name__ == "__main__":
    BENCHMARK.main()
