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
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna
import yaml

from benchmarks import overhead, plain_loop
from benchmarks.frame import Benchmark
from benchmarks.product import Document, Product
from benchmarks.record import Goal, percent, table
from benchmarks.savings import Saving, fork_saving_s, savings_of

WITHIN = 0.02
GOAL_SHARE = 1 / 3


@dataclass(frozen=True)
class Case:
    """A model, the loop's time, and the trials of the product's study (None: as the product does)."""

    name: str
    minutes: float
    trials: int | None = None
    is_quick: bool = False


@dataclass(frozen=True)
class LoopTrial:
    """A trial of the plain loop; `latency_s` None: pruned. `ended_s` counts from the loop's start."""

    config: dict[str, Any]
    latency_s: float | None
    ended_s: float


@dataclass(frozen=True)
class Tool:
    """What the product's study came to. `found_trial`: position of the trial whose config is the answer."""

    verdict: str | None
    config: dict[str, Any] | None
    num_trials: int
    num_failed: int
    found_trial: int | None
    found_s: float | None
    """From the beginning of the first trial to the end of that one: what compares with the loop's own time, which
    proves nothing."""
    shares: overhead.Shares

    @classmethod
    def of(cls, model: str, document: Document) -> Tool:
        """From what `tune --json` prints."""
        best, trials = document["best"], document["trials"]
        found_trial, found_s = None, None
        if best is not None:
            found_trial = [each["number"] for each in trials].index(best["trial"])
            began, ended = trials[0]["started"], trials[found_trial]["ended"]
            found_s = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
        return cls(
            verdict=document["verdict"],
            config=None if best is None else best["config"],
            num_trials=len(trials),
            num_failed=sum(each["state"] == "failed" for each in trials),
            found_trial=found_trial,
            found_s=found_s,
            shares=overhead.shares_of(model, trials),
        )


@dataclass(frozen=True)
class Race:
    """Both searches. `tool_over_loop`: seconds a call of the loop's winner over the tool's, side by side."""

    model: str
    tool: Tool
    tool_s: float
    """Wall seconds of `tune`, to its verdict."""
    loop: list[LoopTrial]
    loop_s: float
    tool_over_loop: float = 1.0
    savings: list[Saving] = field(default_factory=list)

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
    def share(self) -> float | None:
        """The tool's time over the loop's; an upper bound where the loop found nothing. None: the tool did not."""
        loop_s = self.loop_s if self.loop_found_s is None else self.loop_found_s
        return self.tool_s / loop_s if self.tool_found else None

    @property
    def more_trials(self) -> int:
        """That the loop needed more than the tool; all of the loop's where it found nothing."""
        loop_needed = len(self.loop) if self.loop_found is None else self.loop_found
        return 0 if self.tool.found_trial is None else loop_needed - self.tool.found_trial


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


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--model", default="vit", help="a bundled model (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15.0, help="of the plain loop (default: %(default)s)")
    parser.add_argument("--trials", type=int, help="trials of the product's study (default: as the product does)")


def cases(given: argparse.Namespace) -> list[Case]:
    """One model; for a smoke run two trials, a short confirmation, one minute of the loop."""
    if given.quick:
        return [Case(given.model, minutes=1.0, trials=2, is_quick=True)]
    return [Case(given.model, given.minutes, given.trials)]


def run(case: Case) -> Race:
    """Tune, run the loop, and hold their winners against each other; then what each feature saved.

    The loop has its processes to itself, so the product may search settings of the process as well.
    """
    with Product() as product:
        budget = product.folder / "quick.yaml" if case.is_quick else None
        if budget is not None:
            budget.write_text("confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}\n")
        start = time.perf_counter()
        document = product.tune(
            case.name, "torch", study="race", trials=case.trials, budget=budget, process_settings=True
        )
        tool_s = time.perf_counter() - start
        print(f"autotune: {document['verdict']} after {tool_s:.0f} s: {document['best']}", flush=True)
        folder = product.folder / "loop"
        began, start = datetime.now(), time.perf_counter()
        subprocess.run(
            [sys.executable, plain_loop.__file__, case.name, "--minutes", str(case.minutes), "--folder", str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        loop_s = time.perf_counter() - start
        found = Race(case.name, Tool.of(case.name, document), tool_s, read_loop(folder, began), loop_s)
        print(f"plain loop: {len(found.loop)} trials in {loop_s:.0f} s: {found.loop_best}", flush=True)
        found = replace(found, tool_over_loop=_winners(product, found))
    savings = savings_of(document, fork_saving_s(case.name, repeats=3), found.more_trials)
    return replace(found, savings=savings)


def judge(records: Sequence[Race]) -> list[Goal]:
    """The tool's time over the loop's."""
    (found,) = records
    text = f"the product needs at most a third of the plain loop's time to within {WITHIN:.0%} of the best known"
    share = found.share
    if share is None:
        loss = percent(1 / found.tool_over_loop - 1)
        return [Goal(text.replace("%", " %"), f"its answer is {loss} slower than the loop's best", met=False)]
    words = f"{percent(share)}: {found.tool_s:.0f} s, against {_loop_words(found)}"
    return [Goal(text.replace("%", " %"), words, met=share <= GOAL_SHARE)]


def section(records: Sequence[Race]) -> str:
    """Both times, where the tool's went, and what each feature contributed."""
    (found,) = records
    about = (
        f"`tune --model {found.model} --process-settings` on the CPU with PyTorch, otherwise with default settings, to "
        "its verdict, and "
        "`benchmarks/plain_loop.py`: Optuna's default sampler over the same knobs, a process for each trial, as a "
        "good engineer writes it by hand. The loop counts until the trial that is within 2 % of the best config "
        "that either has found; the loop itself does not know that it may stop there, and proves nothing. *Found "
        "after* is the same for both; *done after* is the tool's verdict, confirmed, and the end of the loop's "
        "time. The two winners were compared side by side. One run of each: a search has luck."
    )
    return "\n\n".join([about, _summary(found), _stages(found), _contributions(found.savings)])


def _winners(product: Product, found: Race) -> float:
    """The loop's winner against the tool's, side by side: times as fast is the tool's."""
    exported = product.folder / "tool.yaml"
    product.export("race", exported)
    content = yaml.safe_load(exported.read_text(encoding="utf-8"))
    content["config"] = config_of(found.loop_best.config)
    loops = product.folder / "loop.yaml"
    loops.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return float(product.compare(loops, exported)["speedup"]["median"])


def _loop_words(found: Race) -> str:
    if found.loop_found_s is None:
        return f"a loop that had not found one after {found.loop_s:.0f} s, so the true share is smaller"
    return f"{found.loop_found_s:.0f} s (trial {found.loop_found} of {len(found.loop)})"


def _summary(found: Race) -> str:
    configs = [json.dumps(each.config, sort_keys=True) for each in found.loop]
    pruned = sum(each.latency_s is None for each in found.loop)
    tool = [
        "autotune", _seconds(found.tool.found_s), f"{found.tool_s:.0f} s, confirmed", str(found.tool.num_trials),
        str(found.tool.found_trial), str(found.tool.num_failed), "0", _words(found.tool.config or {}),
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


def _stages(found: Race) -> str:
    shares = found.tool.shares
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


BENCHMARK = Benchmark("wall_time", "The same answer, in how long", __doc__, Race, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
