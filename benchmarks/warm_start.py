"""The first call in a fresh process: cold, with the caches of an earlier process, and from an exported artifact.

Each process is one trial, started by the product's own runner: what is timed is what a job does at its first call,
reading the artifact included. The three ways take turns, so that a busy minute hits all of them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.answer.export import prewarm
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import InputError
from autotune.measure.measurement import Measurement
from autotune.measure.sampling import SamplingPlan
from autotune.planning.models import make_workload
from autotune.trial.folder import TrialFolder
from autotune.trial.request import ShippedCache, TrialRequest
from benchmarks.evidence import Benchmark, Goal, table

MODEL = "vit"
GOAL = 5.0
SAMPLING = SamplingPlan(min_samples=10, max_samples=30, max_sampling_s=1.0, max_warmup_s=2.0)
WAYS = ("cold", "warm", "artifact")


@dataclass(frozen=True)
class Case:
    """A config of ViT, and how the untuned model is called in its framework."""

    name: str
    framework: str
    config: dict[str, str | bool | None]
    untuned: dict[str, str]
    num_processes: int = 5
    """Of each way."""


_EAGER, _PYNATIVE = {"execution": "eager"}, {"execution": "pynative"}
CASES = (
    Case("torch, default", "torch", {"execution": "compile"}, _EAGER),
    Case(
        "torch, the fastest of its table that keeps 1e-3: frozen weights",
        "torch",
        {"execution": "compile", "freezing": True, "matmul_precision": "high"},
        _EAGER,
    ),
    Case(
        "torch, the fastest of all: frozen weights, bfloat16, C++ wrapper",
        "torch",
        {"execution": "compile", "freezing": True, "precision": "bf16_autocast", "cpp_wrapper": True},
        _EAGER,
    ),
    Case("mindspore, default", "mindspore", {"execution": "jit", "capture": "ast", "jit_level": "O0"}, _PYNATIVE),
    Case(
        "mindspore, graph mode with fusion",
        "mindspore",
        {"execution": "graph", "enable_graph_kernel": True, "onednn_isa": "AVX2"},
        _PYNATIVE,
    ),
)
"""The table: benchmarks/tables/vit_torch.json."""


@dataclass(frozen=True)
class Seen:
    """First calls of a case, in seconds, a number for each process; and the artifact's size."""

    case: Case
    first_call_s: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    num_bytes: int | None = None
    """None: no artifact was written, and `problem` says why."""
    problem: str | None = None

    def median_s(self, way: str) -> float:
        return statistics.median(self.first_call_s[way])

    @property
    def gain(self) -> float | None:
        """Cold over artifact."""
        return None if self.num_bytes is None else self.median_s("cold") / self.median_s("artifact")

    def cells(self) -> list[str]:
        if self.gain is None:
            return [self.case.name, *("" for _ in WAYS), "", "none", str(self.problem)]
        times = [
            f"{self.median_s(way):.2f} s ({min(self.first_call_s[way]):.2f} to {max(self.first_call_s[way]):.2f})"
            for way in WAYS
        ]
        assert self.num_bytes is not None
        return [self.case.name, *times, f"{self.gain:.1f}x", f"{self.num_bytes / 2**20:.1f} MiB", ""]


class Bench:
    """Runs the processes of one case in a folder of its own."""

    def __init__(self, case: Case, folder: Path, runner: LocalBench) -> None:
        self._case = case
        self._folder = folder
        self._runner = runner
        workload = make_workload(MODEL, {}, case.framework, "cpu", 0)
        self._request = TrialRequest(
            number=0, workload=workload, config=Config(case.config), untuned=False, tolerance=0.1,
            reference=str(folder / "reference.npz"), cache=str(folder / "cache"), cold=True, sampling=SAMPLING,
        )  # fmt: skip

    def measure(self) -> Seen:
        self._run("untuned", config=Config(self._case.untuned), untuned=True)
        try:
            artifact = prewarm(self._request, self._folder / "prewarm", self._folder / "best.cache", self._runner)
        except InputError as problem:
            return Seen(self._case, problem=str(problem))
        seen = Seen(self._case, num_bytes=artifact.num_bytes)
        ways: dict[str, dict[str, Any]] = {
            "cold": {},
            "warm": {"cold": False},
            "artifact": {"shipped": ShippedCache(artifact=artifact, home=str(self._folder))},
        }
        self._run("warm", **ways["warm"])  # Fills the caches.
        for _ in range(self._case.num_processes):
            for way, asked in ways.items():
                seen.first_call_s[way].append(self._run(way, **asked).first_call_s)
        return seen

    def _run(self, name: str, **asked: object) -> Measurement:
        folder = TrialFolder(self._folder / name)
        own_caches = {"cache": str(self._folder / f"{name}-cache")}
        request = self._request.model_copy(update={**own_caches, **asked})
        outcome = self._runner.run(folder, request, fresh=True)
        if isinstance(outcome, Measurement):
            return outcome
        raise SystemExit(f"{self._case.name}, {name}: {outcome.reason}: {outcome.error}")


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--processes", type=int, default=5, help="of each way (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """All configs; for a smoke run the first one, in one process each."""
    if given.quick:
        return [replace(CASES[0], num_processes=1)]
    return [replace(case, num_processes=given.processes) for case in CASES]


def run(case: Case) -> Seen:
    """A folder and a runner, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="autotune-benchmark-") as name:
        folder = Path(name).resolve()
        with LocalBench({}, preload=False, log=folder / "supervisor.log") as runner:
            return Bench(case, folder, runner).measure()


def judge(records: Sequence[Seen]) -> list[Goal]:
    """Every config has the goal."""
    gains = {seen.case.name: seen.gain for seen in records}
    return [
        Goal(
            f"the first call with the artifact is at least {GOAL:g} times faster than cold",
            ", ".join(f"{name} {'no artifact' if gain is None else f'{gain:.1f}x'}" for name, gain in gains.items()),
            all(gain is not None and gain >= GOAL for gain in gains.values()),
        )
    ]


def section(records: Sequence[Seen]) -> str:
    """A row for each config."""
    num_processes = max(len(seen.first_call_s["cold"]) for seen in records)
    about = (
        "The first call of ViT (config applied and called once) in fresh processes on the CPU: *cold* with empty "
        "caches, *warm* with the caches of an earlier process, *artifact* with empty caches and the file of "
        f"`export --with-cache`, reading it included. Median of {num_processes} processes each (least to most)."
    )
    header = ["config", *WAYS, "cold / artifact", "size", "note"]
    return f"{about}\n\n{table(header, [seen.cells() for seen in records])}"


BENCHMARK = Benchmark("warm_start", "First call from an artifact", __doc__, Seen, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
