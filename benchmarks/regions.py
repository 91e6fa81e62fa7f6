"""The whole model against its repeated blocks: what a cold compile takes, and how fast the result is.

Each config is a trial like any other, through the product's own runner and worker: a process of its own, empty caches,
outputs checked. Rounds go through all configs in turn, so that a busy hour of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.backends.registry import entry_of
from autotune.config import Config, Scalar
from autotune.measure.measurement import Measurement, Outcome
from autotune.planning.models import make_workload
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits
from autotune.trial.runner.runner import Runner
from autotune.workload.regions import KNOB
from benchmarks.cold_trials import cold_request, measurements
from benchmarks.record import Conditions, Goal, Report, publish, table

BLOCKS = "blocks.*"
DEEP = 12
"""Blocks from which on a model counts as deep."""
COMPILE_SHARE = 0.5
LATENCY_SHARE = 1.25
PATIENT = Limits(start=600, build=600, compile=1800, check=1800, run=600, total=3600)


@dataclass(frozen=True)
class Case:
    """A model of `depth` equal blocks, and what is compiled of it besides the region."""

    framework: str
    model: str
    depth: int
    settings: tuple[tuple[str, Scalar], ...] = ()

    def configs(self) -> dict[str, Config]:
        compiled = {**entry_of(self.framework).compiled, **dict(self.settings)}
        untuned = {"torch": "eager", "mindspore": "pynative"}[self.framework]
        return {
            "untuned": Config({"execution": untuned}),
            "whole": Config(compiled),
            "blocks": Config({**compiled, KNOB: BLOCKS}),
        }

    @property
    def name(self) -> str:
        settings = "".join(f", {name}={value}" for name, value in self.settings)
        return f"{self.model}, {self.depth} blocks, {self.framework}{settings}"


FROZEN = (("freezing", True),)
CASES = (
    Case("torch", "vit", 6),
    Case("torch", "vit", 12),
    Case("torch", "vit", 24),
    Case("torch", "vit", 24, FROZEN),
    Case("torch", "bert_small", 4),
    Case("torch", "bert_small", 12),
    Case("mindspore", "bert_small", 12),
)
QUICK = (Case("torch", "bert_small", 4),)


@dataclass(frozen=True)
class Seen:
    """The outcomes of a case's configs, one for each round."""

    case: Case
    outcomes: dict[str, list[Outcome]]

    def measured(self, name: str) -> list[Measurement]:
        return measurements(self.outcomes[name], f"{self.case.name}, {name}")

    def compile_s(self, name: str) -> float:
        return statistics.median(each.compile_s for each in self.measured(name))

    def latency_s(self, name: str) -> float:
        return statistics.median(each.latency.p50 for each in self.measured(name))

    @property
    def compile_share(self) -> float:
        """Seconds to compile the blocks over those for the whole."""
        return self.compile_s("blocks") / self.compile_s("whole")

    @property
    def latency_share(self) -> float:
        """Latency with compiled blocks over that with the whole compiled."""
        return self.latency_s("blocks") / self.latency_s("whole")

    def cells(self) -> list[str]:
        latencies = [f"{1e3 * self.latency_s(name):.2f}" for name in ("untuned", "whole", "blocks")]
        compiles = [f"{self.compile_s(name):.1f}" for name in ("whole", "blocks")]
        graphs = [str(self.measured(name)[0].diagnosis.num_graphs) for name in ("whole", "blocks")]
        shares = [f"{self.compile_share:.2f}", f"{self.latency_share:.2f}"]
        return [self.case.name, *compiles, shares[0], *graphs, *latencies, shares[1]]

    def numbers(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            **{
                name: {
                    "compile_s": [each.compile_s for each in self.measured(name)],
                    "latency_s": [each.latency.p50 for each in self.measured(name)],
                    "relative_error": self.measured(name)[0].relative_error,
                }
                for name in self.outcomes
            },
        }


HEADER = (
    "model", "whole: compile s", "blocks: compile s", "share", "whole: graphs", "blocks: graphs", "untuned ms",
    "whole ms", "blocks ms", "share",
)  # fmt: skip


def measure(case: Case, folder: Path, rounds: int) -> Seen:
    """All configs of a case, `rounds` times each."""
    workload = make_workload(case.model, {"depth": case.depth}, case.framework, "cpu", 0)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in case.configs()}
    with Runner(case.framework, {}, preload=True, log=folder / "log.txt") as runner:
        for number in range(rounds):
            for name, config in case.configs().items():
                trial = TrialFolder(folder / f"{name}-{number}")
                request = cold_request(
                    workload, config, trial, folder / "reference.npz", PATIENT, untuned=name == "untuned"
                )
                outcomes[name].append(runner.run(trial, request))
                trial.drop_leftovers()
    return Seen(case, outcomes)


def report_of(seen: Sequence[Seen], rounds: int) -> Report:
    """Goals are about deep models in PyTorch: MindSpore compiles each block anew, and frozen blocks differ."""
    deep = [each for each in seen if each.case.framework == "torch" and each.case.depth >= DEEP]
    deep = [each for each in deep if not each.case.settings] or list(seen)
    compile_share = max(each.compile_share for each in deep)
    latency_share = max(each.latency_share for each in deep)
    return Report(
        name="regions",
        title="Regions: the whole against its repeated blocks",
        about=(
            "Cold compile and latency of models of equal blocks, compiled in one piece and block by block "
            f"(`region={BLOCKS}`). Medians of {rounds} process(es) a config; each share is that of the blocks over the "
            f"whole. Goals are about models of {DEEP} and more blocks in PyTorch, not frozen."
        ),
        goals=[
            Goal(
                f"the blocks compile in at most {COMPILE_SHARE:.0%} of the time",
                f"{compile_share:.0%} at most",
                compile_share <= COMPILE_SHARE,
            ),
            Goal(
                f"they take at most {LATENCY_SHARE:.2f} times as long a call",
                f"{latency_share:.2f} times at most",
                latency_share <= LATENCY_SHARE,
            ),
        ],
        body=table(HEADER, [each.cells() for each in seen]),
        results={"rounds": rounds, "cases": [each.numbers() for each in seen]},
    )


def main() -> None:
    """Measure, and write the section and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each config (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one small model, one process each, nothing written")
    given = parser.parse_args()
    cases, rounds = (QUICK, 1) if given.quick else (CASES, given.rounds)
    os.chdir(Path(__file__).resolve().parent.parent)
    conditions = Conditions.now()
    with tempfile.TemporaryDirectory() as temporary:
        seen = [measure(case, Path(temporary) / str(number), rounds) for number, case in enumerate(cases)]
    publish(report_of(seen, rounds), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
