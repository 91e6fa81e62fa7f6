"""What the tool costs: its own share of a trial's time, and what isolation does to the latency that it measures.

A trial's wall time is what the parent records, from asking for the config to having stored its outcome. The child
tells the seconds of its stages. *The tool's own* is the wall time without build, compile, check and run: what is left
is starting the process, and the framework's import as far as it falls into a trial (CPU trials are forked from a
process that has imported it, so the first one pays for all), judging, storing and waiting. The compiler's import, which
that process makes too, would be part of each trial's compile and stands apart.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.evidence import Benchmark, Goal, percent, table
from benchmarks.processes import Pair, PlainScript, Product, Ratio, alternate, ratio_over_pairs

MODELS = ("vit", "resnet18")
GOAL_OWN_SHARE = 0.05
GOAL_DISTURBANCE = 0.02
CONFIGS: dict[str, tuple[int, list[str]]] = {"untuned": (0, []), "default compile": (1, ["--default-compile"])}
"""Config -> its trial in any study, and the plain script's flags for the same."""

ABOUT = (
    "The tool's own share of a trial is *start* (process and imports) and *outside the child*, the parent's wall time "
    "without the child's stages; the rest is the model and the framework at work. *Imports ahead*: the compiler's, "
    "once a study. All measured trials of a study are added up. Below: a trial run again by `run STUDY N` over the "
    "same config in `benchmarks/plain.py`, in pairs whose order is swapped, for the first 0.5 s of calls of a process."
)


_AHEAD, _OUTSIDE = "imports ahead", "outside the child"
_STAGES = ("start", "build", _AHEAD, "compile", "check", "warm-up", "sampling", "rest of run", _OUTSIDE)
_OWN = ("start", _OUTSIDE)
"""The stages that are the tool's own; the others are the user's model and framework at work."""


@dataclass(frozen=True)
class Shares:
    """Where the wall time of a study's measured trials went, in seconds."""

    model: str
    num_trials: int
    wall_s: float
    stage_s: dict[str, float]

    @property
    def own_share(self) -> float:
        return sum(self.stage_s.get(stage, 0.0) for stage in _OWN) / self.wall_s

    def cells(self) -> list[str]:
        shares = [percent(self.stage_s[name] / self.wall_s) for name in _STAGES]
        return [self.model, str(self.num_trials), f"{self.wall_s:.0f} s", *shares, percent(self.own_share)]


@dataclass(frozen=True)
class Disturbance:
    """One config timed in a trial and in the plain script: pairs of median seconds a call."""

    model: str
    config: str
    pairs_s: list[Pair]

    @property
    def found(self) -> Ratio:
        return ratio_over_pairs(self.pairs_s)

    @property
    def small(self) -> bool:
        return abs(self.found.mean - 1) < GOAL_DISTURBANCE

    def cells(self) -> list[str]:
        inside_ms, plain_ms = (1e3 * statistics.median(side) for side in zip(*self.pairs_s, strict=True))
        return [self.model, self.config, f"{inside_ms:.2f} ms", f"{plain_ms:.2f} ms", str(self.found)]


@dataclass(frozen=True)
class Case:
    """A model, the trials of its study, and the pairs of each of its configs."""

    name: str
    trials: int
    pairs: int


@dataclass(frozen=True)
class Cost:
    """Both parts, for one model."""

    shares: Shares
    disturbances: list[Disturbance]


def shares_of(model: str, trials: list[dict[str, Any]]) -> Shares:
    """Add up the stages of all measured trials. The framework's import is outside the first one's child."""
    measured = [trial for trial in trials if trial["outcome"] and trial["outcome"]["kind"] == "measurement"]
    split = [split_of(trial) for trial in measured]
    stage_s = {name: sum(stages[name] for stages in split) for name in _STAGES if name != _AHEAD}
    # A trial that found no kernel was spared the imports alone.
    spared_s = [trial["outcome"].get("compile_spared_s", 0.0) for trial in measured]
    stage_s[_AHEAD] = min(filter(None, spared_s), default=0.0)
    stage_s[_OUTSIDE] -= stage_s[_AHEAD]
    return Shares(model, len(measured), sum(wall_s_of(trial) for trial in measured), stage_s)


def split_of(trial: dict[str, Any]) -> dict[str, float]:
    """Seconds of a trial by stage."""
    outcome = trial["outcome"]
    warmup_s, sampling_s = sum(outcome["samples"]["warmup_s"]), sum(outcome["samples"]["latency_s"])
    told: dict[str, float] = dict(outcome["stage_s"])
    run_s = told.pop("run")
    return {
        "compile": 0.0,  # The untuned model is not compiled.
        **told,
        "warm-up": warmup_s,
        "sampling": sampling_s,
        "rest of run": run_s - warmup_s - sampling_s,
        _OUTSIDE: wall_s_of(trial) - sum(told.values()) - run_s,
    }


def wall_s_of(trial: dict[str, Any]) -> float:
    """From asking for the config to having its outcome stored."""
    return (datetime.fromisoformat(trial["ended"]) - datetime.fromisoformat(trial["started"])).total_seconds()


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="bundled models (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=4, help="trials of each study, at least 2 (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of each config (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """A case for each model; for a smoke run ResNet-18 alone, two trials, two pairs."""
    if given.quick:
        return [Case("resnet18", trials=2, pairs=2)]
    return [Case(model, given.trials, given.pairs) for model in given.models]


def run(case: Case) -> Cost:
    """A study, for the times of its trials; then two of its configs, again as trials and in the plain script."""
    with Product() as product:
        budget = product.folder / "short_confirmation.yaml"
        budget.write_text("confirmation: {first_look: 2, num_looks: 1, num_rounds: 3}\n")  # Nobody reads the verdict.
        # One at a time: a trial beside others waits for them, and its wall time would hold their turns.
        document = product.tune(
            case.name, "torch", study=case.name, trials=case.trials, budget=budget, flags=("--jobs", "1")
        )
        disturbances = [disturbance_of(product, case, config) for config in CONFIGS]
    return Cost(shares_of(case.name, document["trials"]), disturbances)


def disturbance_of(product: Product, case: Case, config: str) -> Disturbance:
    """One config of the study, run again as a trial and in the plain script, alternating."""
    trial, flags = CONFIGS[config]
    with tempfile.TemporaryDirectory() as folder:
        script = PlainScript(case.name, Path(folder), warmup_s=0.05, sampling_s=0.5)
        pairs_s = alternate(case.pairs, lambda: product.rerun_trial(case.name, trial), lambda: script.median_s(*flags))
    return Disturbance(case.name, config, pairs_s)


def judge(records: Sequence[Cost]) -> list[Goal]:
    """A goal for each part."""
    shares = [record.shares for record in records]
    disturbances = [found for record in records for found in record.disturbances]
    own = ", ".join(f"{study.model} {percent(study.own_share)}" for study in shares)
    return [
        Goal(
            f"the tool's own share of a trial is below {percent(GOAL_OWN_SHARE)}",
            own,
            all(study.own_share < GOAL_OWN_SHARE for study in shares),
        ),
        Goal(
            f"a latency measured in a trial is within {percent(GOAL_DISTURBANCE)} of the plain script's",
            ", ".join(f"{one.model} {one.config} {one.found}" for one in disturbances),
            all(one.small for one in disturbances),
        ),
    ]


def section(records: Sequence[Cost]) -> str:
    """A table for each part."""
    shares = [record.shares.cells() for record in records]
    disturbances = [found.cells() for record in records for found in record.disturbances]
    header = ["model", "config", "in a trial", "plain script", "ratio (95 % interval)"]
    tables = (table(["model", "trials", "wall", *_STAGES, "the tool's own"], shares), table(header, disturbances))
    return "\n\n".join([ABOUT, *tables])


BENCHMARK = Benchmark("overhead", "What the tool costs", __doc__, Cost, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
