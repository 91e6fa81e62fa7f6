"""Does compiling side by side change what is measured? The same configs alone and side by side.

    taskset -c 0,1 python benchmarks/jobs.py --rounds 6 --stop-after 60

In each round a config runs four times, from empty caches: alone, alone again, and as the search does, compiled beside
another compilation that is stopped while it is timed, first with kernels of its own and then with those found. The two
runs alone tell the scatter of processes. Each round is a piece: a run that was stopped goes on with the same command.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pydantic import TypeAdapter

from autotune.bench.runner import Runner
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.errors import HarnessError
from autotune.measure.measurement import Measurement, Outcome
from autotune.measure.sampling import SamplingPlan
from autotune.planning.models import make_workload
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.workload.workload import Workload
from benchmarks import pieces
from benchmarks.frame import Benchmark
from benchmarks.intervals import Pair, ratio_over_pairs
from benchmarks.pieces import Pieces
from benchmarks.record import Goal, percent, table

MODELS = ("vit", "resnet18")
UNTUNED = Config({"execution": "eager"})
_COMPILED = {"execution": "compile", "backend": "inductor", "mode": "default"}
CONFIGS = {
    "default": Config({**_COMPILED, "freezing": False}),
    "frozen": Config({**_COMPILED, "freezing": True}),
    "frozen, C++ wrapper": Config({**_COMPILED, "freezing": True, "cpp_wrapper": True}),
    "frozen, max-autotune": Config({**_COMPILED, "mode": "max-autotune", "freezing": True}),
}
BESIDE = Config({**_COMPILED, "mode": "max-autotune", "freezing": True})
"""What compiles meanwhile: it takes longest."""
NEGLIGIBLE = 0.01
Way = Literal["alone", "again", "beside", "found"]
ORDERS: tuple[tuple[Way, ...], ...] = (
    ("alone", "beside", "found", "again"), ("beside", "found", "alone", "again"), ("alone", "again", "beside", "found"),
)  # fmt: skip
"""What is found was compiled beside."""


@dataclass(frozen=True)
class Case:
    """A config of a model, once in each way."""

    model: str
    config: str
    round: int
    pieces: Pieces
    is_quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}, {self.config}, round {self.round}"


@dataclass(frozen=True)
class Times:
    """Median seconds of a call in the processes, what each compiled for, and what of that it was spared."""

    model: str
    config: str
    round: int
    latency_s: dict[Way, float]
    compile_s: dict[Way, float]
    spared_s: dict[Way, float]

    @property
    def pair(self) -> Pair:
        """As the search measures, and alone."""
        return self._mean_s("beside", "found"), self._mean_s("alone", "again")

    def _mean_s(self, one: Way, other: Way) -> float:
        return math.sqrt(self.latency_s[one] * self.latency_s[other])

    @property
    def log_scatter(self) -> float:
        """Of two processes alone."""
        return math.log(self.latency_s["again"] / self.latency_s["alone"])


_TIMES = TypeAdapter(Times)


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--rounds", type=int, default=6, help="of each config (default: %(default)s)")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="bundled ones (default: %(default)s)")
    pieces.options(parser, "jobs")


def cases(given: argparse.Namespace) -> list[Case]:
    """Round by round, so that what is there when it is stopped holds every config."""
    kept = Pieces(given.folder / ("quick" if given.quick else "all"), {}, given.stop_after, anew=given.quick)
    if given.quick:
        return [Case("tanh_matmul", "default", each, kept, is_quick=True) for each in range(2)]
    return [Case(m, name, n, kept) for n in range(given.rounds) for m in given.models for name in CONFIGS]


def run(case: Case) -> Times:
    """The piece's record, kept or made now."""
    found: Times = case.pieces.run(case.name, _TIMES, lambda: _measured(case))
    return found


def _measured(case: Case) -> Times:
    workload = make_workload(case.model, {}, "torch", "cpu", seed=0)
    with tempfile.TemporaryDirectory(prefix="autotune-benchmark-") as name:
        folder = Path(name).resolve()
        with Runner("torch", {}, preload=True, log=folder / "log") as runner:
            trials = _Trials(runner, folder, workload, case.is_quick)
            trials.alone(UNTUNED)  # It leaves the reference.
            ways = {"alone": trials.alone, "again": trials.alone, "beside": trials.beside, "found": trials.beside}
            seen = {way: ways[way](CONFIGS[case.config]) for way in ORDERS[case.round % len(ORDERS)]}
    return Times(
        case.model, case.config, case.round,
        latency_s={way: each.latency.p50 for way, each in seen.items()},
        compile_s={way: each.compile_s for way, each in seen.items()},
        spared_s={way: each.compile_spared_s for way, each in seen.items()},
    )  # fmt: skip


@dataclass
class _Trials:
    """Trials of one model in one folder."""

    runner: Runner
    folder: Path
    workload: Workload
    is_quick: bool

    def alone(self, config: Config) -> Measurement:
        return _measurement(self.runner.run(*self._trial("timed", config)))

    def beside(self, config: Config) -> Measurement:
        """Timed while another one has compiled for some time, and is stopped."""
        timed, request = self._trial("timed", config)
        other, its_request = self._trial("beside", BESIDE)
        num_threads = max(num_usable_cores() // 2, 1)
        request = request.with_kernels(self.folder / "kernels", num_threads)
        self.runner.prepare(timed, request)
        self.runner.prepare(other, its_request.with_kernels(Path(its_request.cache) / "kernels", num_threads))
        try:
            return _measurement(self.runner.run(timed, request))
        finally:
            self.runner.drop_prepared()

    def _trial(self, name: str, config: Config) -> tuple[TrialFolder, TrialRequest]:
        folder = TrialFolder(self.folder / name)
        quick = SamplingPlan(max_warmup_s=0.2, min_samples=5, max_samples=20, max_sampling_s=0.5)
        return folder, TrialRequest(
            number=0,
            workload=self.workload,
            config=config,
            untuned=config == UNTUNED,
            tolerance=2e-2,
            reference=str(self.folder / "reference.npz"),
            cache=str(folder.path / "cache"),
            cold=True,
            sampling=quick if self.is_quick else SamplingPlan(),
        )


def _measurement(outcome: Outcome) -> Measurement:
    if not isinstance(outcome, Measurement):
        raise HarnessError(f"{outcome.reason}: {outcome.error}; see {outcome.evidence}")
    return outcome


def judge(records: Sequence[Times]) -> list[Goal]:
    """For each model: the mean ratio is within what processes of one config differ by."""
    goals = []
    for model in dict.fromkeys(each.model for each in records):
        times = [each for each in records if each.model == model]
        allowed = max(NEGLIGIBLE, floor_of(times) / math.sqrt(len(times)))
        mean = ratio_over_pairs([each.pair for each in times]).mean
        text = f"{model}: medians side by side differ from those alone by at most {percent(allowed)}, the noise floor"
        goals.append(Goal(text, percent(mean - 1), met=abs(math.log(mean)) <= allowed))
    return goals


def floor_of(times: Sequence[Times]) -> float:
    """Root mean square of the log ratios of two processes alone."""
    return math.sqrt(statistics.fmean(each.log_scatter**2 for each in times))


def section(records: Sequence[Times]) -> str:
    """A row for each config of each model."""
    about = (
        "The same configs in processes with empty caches, alone and as the search runs them: compiled beside another "
        f"compilation ({BESIDE.root['mode']}, frozen), which is stopped while they are timed, with as many threads as "
        "there are cores for each; first with kernels of their own, then with those found. Compile seconds are those "
        "that a trial tells; in brackets, what of them it was spared: imports, and kernels that were found. *Noise "
        "floor*: two processes alone."
    )
    rows = []
    for key in dict.fromkeys((each.model, each.config) for each in records):
        times = [each for each in records if (each.model, each.config) == key]
        ratio = str(ratio_over_pairs([each.pair for each in times])) if len(times) > 1 else "-"
        rows.append(
            [*key, str(len(times)), _ms(times, "alone", "again"), _ms(times, "beside", "found"), ratio,
             percent(floor_of(times)), *(_compiled(times, way) for way in ("alone", "beside", "found"))]
        )  # fmt: skip
    header = [
        "model", "config", "rounds", "alone", "side by side", "side by side / alone (95 %)", "noise floor",
        "compile, alone", "side by side", "kernels found",
    ]  # fmt: skip
    return f"{about}\n\n{table(header, rows)}"


def _compiled(times: Sequence[Times], way: Way) -> str:
    shown_s = statistics.median(each.compile_s[way] for each in times)
    spared_s = statistics.median(each.spared_s[way] for each in times)
    return f"{shown_s:.1f} s ({spared_s:.1f} s)"


def _ms(times: Sequence[Times], *ways: Way) -> str:
    return f"{1e3 * statistics.median(each.latency_s[way] for each in times for way in ways):.2f} ms"


BENCHMARK = Benchmark("jobs", "Compiled side by side, timed alone", __doc__, Times, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
