"""What each feature of the product spared a study, from the study's own records and one measurement."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config import Config
from autotune.planning.models import make_workload
from autotune.study.budget import Budget
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.runner.runner import Runner
from benchmarks import overhead
from benchmarks.product import Document

SAMPLER = "computed: the loop's trials until it found, at our cost each"


@dataclass(frozen=True)
class Saving:
    """What the study would have taken longer without a feature. `how`: measured, or computed from which records."""

    feature: str
    seconds: float
    how: str

    def cells(self) -> list[str]:
        return [self.feature, f"{self.seconds:.0f} s", self.how]


def savings_of(document: Document, fork_s: float, more_trials: int) -> list[Saving]:
    """What each feature spared the study. `fork_s`: seconds that a forked start saves a trial, as measured.

    `more_trials`: so many more than the study another sampler needed.
    """
    trials = document["trials"]
    outcomes = [each["outcome"] for each in trials if each["outcome"] and each["outcome"]["kind"] == "measurement"]
    return [
        Saving("trials are forked", fork_s * len(trials), "measured for one trial, times the trials of the study"),
        Saving("a program that is known compiles from a cache", _cached_s(outcomes), "computed: its cold compile time"),
        Saving("blocks keep their caches", _warm_s(document), "computed: the winner's cold less warm compile"),
        Saving("the sampler", _sampler_s(trials, more_trials), SAMPLER),
    ]


def fork_saving_s(model: str, repeats: int) -> float:
    """Wall seconds by which a forked trial of the untuned model is shorter than one with a Python of its own."""
    quick = Budget.model_validate({"sampling": {"max_warmup_s": 0.1, "max_sampling_s": 0.1, "min_samples": 3}})
    with tempfile.TemporaryDirectory() as name:
        folder = TrialFolder(Path(name) / "trial")
        request = TrialRequest(
            number=0,
            workload=make_workload(model, {}, "torch", "cpu", seed=0),
            config=Config({"execution": "eager"}),
            untuned=True,
            tolerance=None,
            reference=str(Path(name) / "reference.npz"),
            cache=str(Path(name) / "cache"),
            cold=True,
            sampling=quick.sampling,
        )
        with Runner("torch", {}, preload=True, log=Path(name) / "log") as runner:
            runner.run(folder, request)  # Imports the framework into the fork server.
            taken: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(repeats):
                for fresh in (True, False):
                    start = time.perf_counter()
                    runner.run(folder, request, fresh=fresh)
                    taken[fresh].append(time.perf_counter() - start)
    return statistics.median(taken[True]) - statistics.median(taken[False])


def _cached_s(outcomes: Sequence[Document]) -> float:
    """A trial that compiled from another's cache keeps the cold figure and tells how long it really took."""
    cached = [each for each in outcomes if each.get("compiled_from") is not None]
    return float(sum(max(each["compile_s"] - each["first_call_s"], 0.0) for each in cached))


def _warm_s(document: Document) -> float:
    """Every block but the first starts a warm process of the winner in place of a cold one."""
    confirmation, best = document["confirmation"], document["best"]
    if not confirmation or confirmation["compile_warm_s"] is None or best is None:
        return 0.0
    outcome = next(each["outcome"] for each in document["trials"] if each["number"] == confirmation["candidate"])
    saved_s = float(outcome["compile_s"] - confirmation["compile_warm_s"])
    return (len(confirmation["blocks"]) - 1) * max(saved_s, 0.0)


def _sampler_s(trials: Sequence[Document], more_trials: int) -> float:
    """Each as long as one of ours."""
    taken_s = [overhead.wall_s_of(each) for each in trials if each["ended"]]
    return max(more_trials, 0) * statistics.mean(taken_s) if taken_s else 0.0
