"""The same answer in how many minutes: the product's `tune` with its default settings, and the plain Optuna loop.

The loop is watched by somebody who knows the truth: it is done with the trial that first is within 2 % of the best
config that either of the two has found, although the loop itself cannot know that. The product is done with its
verdict, confirmation included. The two winners are held against each other side by side in the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna
import yaml

from autotune.config import Config
from autotune.planning.models import make_workload
from autotune.study.budget import Budget
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.runner.runner import Runner
from benchmarks import overhead, plain_loop
from benchmarks.product import Document, Product
from benchmarks.record import Conditions, Goal, Report, percent, publish, table

WITHIN = 0.02
GOAL_SHARE = 1 / 3


@dataclass(frozen=True)
class LoopTrial:
    """A trial of the plain loop; `latency_s` None: pruned. `ended_s` counts from the loop's start."""

    config: dict[str, Any]
    latency_s: float | None
    ended_s: float


@dataclass(frozen=True)
class Saving:
    """What the study would have taken longer without a feature. `how`: measured, or computed from which records."""

    feature: str
    seconds: float
    how: str

    def cells(self) -> list[str]:
        return [self.feature, f"{self.seconds:.0f} s", self.how]


@dataclass(frozen=True)
class Race:
    """Both searches. `tool_over_loop`: seconds a call of the loop's winner over the tool's, side by side."""

    document: Document
    tool_s: float
    """Wall seconds of `tune`, to its verdict."""
    loop: list[LoopTrial]
    loop_s: float
    tool_over_loop: float

    @property
    def loop_best(self) -> LoopTrial:
        return min((each for each in self.loop if each.latency_s is not None), key=lambda each: each.latency_s or 0.0)

    @property
    def target_s(self) -> float:
        """Seconds a call that are within 2 % of the best known config, as the loop measures."""
        return (1 + WITHIN) * (self.loop_best.latency_s or 0.0) / max(self.tool_over_loop, 1.0)

    @property
    def loop_found(self) -> int | None:
        """Number of the loop's first trial that is so fast; None: it found none in its time."""
        fast = (n for n, each in enumerate(self.loop) if each.latency_s is not None and each.latency_s <= self.target_s)
        return next(fast, None)

    @property
    def loop_found_s(self) -> float | None:
        return None if self.loop_found is None else self.loop[self.loop_found].ended_s

    @property
    def tool_found(self) -> bool:
        """The tool's answer is within 2 % of the best known."""
        return self.tool_over_loop >= 1 / (1 + WITHIN)

    @property
    def tool_found_trial(self) -> int | None:
        """Position of the trial whose config is the answer, among those of the study."""
        best = self.document["best"]
        numbers = [each["number"] for each in self.document["trials"]]
        return None if best is None else numbers.index(best["trial"])

    @property
    def tool_found_s(self) -> float | None:
        """Seconds from the beginning of the tool's first trial to the end of the one whose config is the answer: what
        compares with the loop's own, which proves nothing."""
        if self.tool_found_trial is None:
            return None
        first, found = self.document["trials"][0], self.document["trials"][self.tool_found_trial]
        began, ended = datetime.fromisoformat(first["started"]), datetime.fromisoformat(found["ended"])
        return (ended - began).total_seconds()

    @property
    def share(self) -> float | None:
        """The tool's time over the loop's; an upper bound where the loop found nothing. None: the tool did not."""
        loop_s = self.loop_s if self.loop_found_s is None else self.loop_found_s
        return self.tool_s / loop_s if self.tool_found else None


def read_loop(folder: Path, began: datetime) -> list[LoopTrial]:
    """The finished trials of a loop that was started at `began` (local time, as Optuna's), in their order."""
    study = optuna.load_study(study_name=plain_loop.STUDY, storage=f"sqlite:///{folder}/loop.db")
    return [
        LoopTrial(each.user_attrs["config"], each.value, ended_s=(each.datetime_complete - began).total_seconds())
        for each in study.get_trials(deepcopy=False)
        if each.datetime_complete is not None
    ]


def config_of(loop_config: Mapping[str, Any]) -> dict[str, Any]:
    """The loop's config in the product's words: compiled by inductor, and inactive settings left out."""
    config = {name: value for name, value in loop_config.items() if value is not None}
    return {**config, "backend": "inductor"} if config["execution"] == "compile" else config


def savings_of(race: Race, fork_s: float) -> list[Saving]:
    """What each feature spared the study. `fork_s`: seconds that a forked start saves a trial, as measured."""
    trials = race.document["trials"]
    outcomes = [each["outcome"] for each in trials if each["outcome"] and each["outcome"]["kind"] == "measurement"]
    return [
        Saving("trials are forked", fork_s * len(trials), "measured for one trial, times the trials of the study"),
        Saving("a program that is known compiles from a cache", _cached_s(outcomes), "computed: its cold compile time"),
        Saving("blocks keep their caches", _warm_s(race.document), "computed: the winner's cold less warm compile"),
        Saving("the sampler", _sampler_s(race, trials), "computed: the loop's trials until it found, at our cost each"),
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


def race(product: Product, model: str, minutes: float, *, trials: int | None, budget: Path | None) -> Race:
    """Tune, run the loop, and hold their winners against each other."""
    start = time.perf_counter()
    document = product.tune(model, "torch", study="race", trials=trials, budget=budget)
    tool_s = time.perf_counter() - start
    print(f"autotune: {document['verdict']} after {tool_s:.0f} s: {document['best']}", flush=True)
    folder = product.folder / "loop"
    began, start = datetime.now(), time.perf_counter()
    subprocess.run(
        [sys.executable, plain_loop.__file__, model, "--minutes", str(minutes), "--folder", str(folder)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    loop_s = time.perf_counter() - start
    found = Race(document, tool_s, read_loop(folder, began), loop_s, tool_over_loop=1.0)
    print(f"plain loop: {len(found.loop)} trials in {loop_s:.0f} s: {found.loop_best}", flush=True)
    return replace(found, tool_over_loop=_winners(product, found))


def report_of(model: str, found: Race, savings: Sequence[Saving]) -> Report:
    """Both times, where the tool's went, and what each feature contributed."""
    return Report(
        name="wall_time",
        title="The same answer, in how long",
        about=(
            f"`tune --model {model}` on the CPU with PyTorch and default settings, to its verdict, and "
            "`benchmarks/plain_loop.py`: Optuna's default sampler over the same knobs, a process for each trial, as a "
            "good engineer writes it by hand. The loop counts until the trial that is within 2 % of the best config "
            "that either has found; the loop itself does not know that it may stop there, and proves nothing. *Found "
            "after* is the same for both; *done after* is the tool's verdict, confirmed, and the end of the loop's "
            "time. The two winners were compared side by side. One run of each: a search has luck."
        ),
        goals=[_goal(found)],
        body="\n\n".join([_summary(found), _stages(model, found), _contributions(savings)]),
        results={
            "model": model,
            **{name: value for name, value in vars(found).items() if name not in ("document", "loop")},
            "loop": [asdict(each) for each in found.loop],
            "tool": {name: found.document[name] for name in ("verdict", "best", "speedup")},
            "savings": [asdict(each) for each in savings],
        },
    )


def main() -> None:
    """Race, ablate, and write the section."""
    parser = argparse.ArgumentParser(description="Wall time to the same answer: the product and a plain Optuna loop.")
    parser.add_argument("--model", default="vit", help="a bundled model (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15.0, help="of the plain loop (default: %(default)s)")
    parser.add_argument("--trials", type=int, help="trials of the product's study (default: as the product does)")
    parser.add_argument("--quick", action="store_true", help="two trials, a short confirmation, one minute of the loop")
    given = parser.parse_args()
    conditions = Conditions.now()
    with Product() as product:
        budget = None
        if given.quick:
            given.minutes, given.trials, budget = 1.0, 2, product.folder / "quick.yaml"
            budget.write_text("confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}\n")
        found = race(product, given.model, given.minutes, trials=given.trials, budget=budget)
    savings = savings_of(found, fork_saving_s(given.model, repeats=3))
    publish(report_of(given.model, found, savings), conditions, write=not given.quick)


def _winners(product: Product, found: Race) -> float:
    """The loop's winner against the tool's, side by side: times as fast is the tool's."""
    exported = product.folder / "tool.yaml"
    product.export("race", exported)
    content = yaml.safe_load(exported.read_text(encoding="utf-8"))
    content["config"] = config_of(found.loop_best.config)
    loops = product.folder / "loop.yaml"
    loops.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return float(product.compare(loops, exported)["speedup"]["median"])


def _goal(found: Race) -> Goal:
    text = f"the product needs at most a third of the plain loop's time to within {WITHIN:.0%} of the best known"
    share = found.share
    if share is None:
        loss = percent(1 / found.tool_over_loop - 1)
        return Goal(text.replace("%", " %"), f"its answer is {loss} slower than the loop's best", met=False)
    words = f"{percent(share)}: {found.tool_s:.0f} s, against {_loop_words(found)}"
    return Goal(text.replace("%", " %"), words, met=share <= GOAL_SHARE)


def _loop_words(found: Race) -> str:
    if found.loop_found_s is None:
        return f"a loop that had not found one after {found.loop_s:.0f} s, so the true share is smaller"
    return f"{found.loop_found_s:.0f} s (trial {found.loop_found} of {len(found.loop)})"


def _summary(found: Race) -> str:
    configs = [json.dumps(each.config, sort_keys=True) for each in found.loop]
    pruned = sum(each.latency_s is None for each in found.loop)
    best, trials = found.document["best"], found.document["trials"]
    tool = [
        "autotune", _seconds(found.tool_found_s), f"{found.tool_s:.0f} s, confirmed", str(len(trials)),
        str(found.tool_found_trial),
        str(sum(each["state"] == "failed" for each in trials)), "0", _words(best["config"]),
    ]  # fmt: skip
    loop = [
        "plain loop", _seconds(found.loop_found_s), f"{found.loop_s:.0f} s", str(len(found.loop)),
        str(found.loop_found), str(pruned),
        str(len(configs) - len(set(configs))), _words(found.loop_best.config),
    ]  # fmt: skip
    header = ["", "found after", "done after", "trials", "found in trial", "failed", "repeats", "best"]
    side = f"Side by side, the loop's winner takes {found.tool_over_loop:.3f} times as long a call as the tool's."
    return f"{table(header, [tool, loop])}\n\n{side}"


def _seconds(seconds: float | None) -> str:
    return "not found" if seconds is None else f"{seconds:.0f} s"


def _stages(model: str, found: Race) -> str:
    shares = overhead.shares_of(model, found.document["trials"])
    trial_s = shares.wall_s / max(shares.num_trials, 1)
    gaps = [later.ended_s - earlier.ended_s for earlier, later in pairwise(found.loop)]
    others = f"{found.tool_s - shares.wall_s:.0f} s went to noise floor, sentinels, confirmation and the command itself"
    stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in shares.stage_s.items())
    loop = f"; a trial of the loop took {statistics.mean(gaps):.1f} s" if gaps else ""
    trial = f"A trial took {trial_s:.1f} s{loop}."
    return f"Of the tool's time {shares.wall_s:.0f} s are its trials ({stages}); {others}. {trial}"


def _contributions(savings: Sequence[Saving]) -> str:
    heading = "What the study would have taken longer without:"
    return f"{heading}\n\n{table(['feature', 'saved', 'how known'], [each.cells() for each in savings])}"


def _words(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items() if value is not None)


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


def _sampler_s(found: Race, trials: Sequence[Document]) -> float:
    """Trials that the loop needed more, each as long as one of ours; all of the loop's where it found nothing."""
    position = found.tool_found_trial
    if not trials or position is None:
        return 0.0
    loop_needed = len(found.loop) if found.loop_found is None else found.loop_found
    mean_s = statistics.mean(overhead.wall_s_of(each) for each in trials if each["ended"])
    return max(loop_needed - position, 0) * mean_s


if __name__ == "__main__":
    main()
