"""The whole model against its repeated blocks: what a cold compile takes, and how fast the result is.

Each config is a trial like any other, through the product's own runner and worker: a process of its own, empty caches,
outputs checked. Rounds go through all configs in turn, so that a busy hour of the machine meets all of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.backends.registry import entry_of
from autotune.config import Config, Scalar
from autotune.measure.measurement import Measurement
from autotune.planning.models import make_workload
from autotune.trial.request import Limits
from autotune.workload.regions import KNOB
from benchmarks.cold_trials import UNTUNED, in_rounds
from benchmarks.frame import Benchmark
from benchmarks.record import Goal, table

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
    rounds: int = 3

    @property
    def has_goal(self) -> bool:
        """It is deep and in PyTorch: MindSpore compiles each block anew, and frozen blocks differ."""
        return self.framework == "torch" and self.depth >= DEEP and not self.settings

    def configs(self) -> dict[str, Config]:
        compiled = {**entry_of(self.framework).compiled, **dict(self.settings)}
        untuned = {"torch": "eager", "mindspore": "pynative"}[self.framework]
        return {
            UNTUNED: Config({"execution": untuned}),
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
class Times:
    """One config, a process for each round."""

    compile_s: list[float]
    latency_s: list[float]
    num_graphs: int | None
    relative_error: float | None

    @classmethod
    def of(cls, measured: Sequence[Measurement]) -> Times:
        return cls(
            compile_s=[each.compile_s for each in measured],
            latency_s=[each.latency.p50 for each in measured],
            num_graphs=measured[0].diagnosis.num_graphs,
            relative_error=measured[0].relative_error,
        )


@dataclass(frozen=True)
class Seen:
    """The three configs of a case."""

    case: str
    has_goal: bool
    untuned: Times
    whole: Times
    blocks: Times

    @property
    def compile_share(self) -> float:
        """Seconds to compile the blocks over those for the whole."""
        return statistics.median(self.blocks.compile_s) / statistics.median(self.whole.compile_s)

    @property
    def latency_share(self) -> float:
        """Latency with compiled blocks over that with the whole compiled."""
        return statistics.median(self.blocks.latency_s) / statistics.median(self.whole.latency_s)

    def cells(self) -> list[str]:
        latencies = [f"{1e3 * statistics.median(t.latency_s):.2f}" for t in (self.untuned, self.whole, self.blocks)]
        compiles = [f"{statistics.median(each.compile_s):.1f}" for each in (self.whole, self.blocks)]
        graphs = [str(each.num_graphs) for each in (self.whole, self.blocks)]
        return [
            self.case, *compiles, f"{self.compile_share:.2f}", *graphs, *latencies, f"{self.latency_share:.2f}"
        ]  # fmt: skip


HEADER = (
    "model", "whole: compile s", "blocks: compile s", "share", "whole: graphs", "blocks: graphs", "untuned ms",
    "whole ms", "blocks ms", "share",
)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--rounds", type=int, default=3, help="processes of each config (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """All models; for a smoke run a small one, one process each."""
    if given.quick:
        return [replace(each, rounds=1) for each in QUICK]
    return [replace(each, rounds=given.rounds) for each in CASES]


def run(case: Case) -> Seen:
    """All configs of a case, in rounds."""
    workload = make_workload(case.model, {"depth": case.depth}, case.framework, "cpu", 0)
    measured: dict[str, list[Measurement]] = {name: [] for name in case.configs()}
    with tempfile.TemporaryDirectory() as temporary:
        for name, found, _ in in_rounds(workload, case.configs(), case.rounds, Path(temporary).resolve(), PATIENT):
            measured[name].append(found)
    return Seen(case.name, case.has_goal, **{name: Times.of(found) for name, found in measured.items()})


def judge(records: Sequence[Seen]) -> list[Goal]:
    """About deep models in PyTorch, if any of them was run."""
    deep = [each for each in records if each.has_goal] or records
    compile_share = max(each.compile_share for each in deep)
    latency_share = max(each.latency_share for each in deep)
    return [
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
    ]


def section(records: Sequence[Seen]) -> str:
    """One row for each model."""
    about = (
        "Cold compile and latency of models of equal blocks, compiled in one piece and block by block "
        f"(`region={BLOCKS}`). Medians of {len(records[0].whole.compile_s)} process(es) a config; each share is that "
        f"of the blocks over the whole. Goals are about models of {DEEP} and more blocks in PyTorch, not frozen."
    )
    return f"{about}\n\n{table(HEADER, [each.cells() for each in records])}"


BENCHMARK = Benchmark(
    "regions", "Regions: the whole against its repeated blocks", __doc__, Seen, cases, run, judge, section, options
)

if __name__ == "__main__":
    BENCHMARK.main()
