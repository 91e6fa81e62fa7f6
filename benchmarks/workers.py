"""Does the search become as much faster as there are workers?

Where the compilers only sleep, many workers fit on one machine, and what is left is what the driver, Ray and the
starts of processes cost. Real compilers need cores: one and two workers on the cores of this machine. The search phase
begins when the noise floor is known, and whether the workers disturb each other; it ends with the last trial. The first
readings of the untuned model by the workers are in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.backends.registry import framework_version
from autotune.bench.ray.cluster import LOCAL, SLOTS, RayCluster, require_ray
from autotune.bench.ray.messages import WorkerSettings
from autotune.bench.ray.trials import ClusterTrials
from autotune.measure.sampling import SamplingPlan
from autotune.space.space import Knob, SearchSpace
from autotune.study.budget import BlockPlan, Budget
from autotune.study.folder import FolderStudies
from autotune.trial.command import code_sha256
from autotune.tuning.events import Event, NeighboursFound, NoiseFloorMeasured, SearchEnded
from autotune.tuning.loop import Tuner
from autotune.workload.workload import Workload
from benchmarks.frame import Benchmark
from benchmarks.record import REPOSITORY, Goal, percent, table
from benchmarks.simulated import manifest_of
from benchmarks.table import TABLES, read_table

WORKERS = (1, 2, 4, 8)
TORCH_WORKERS, TORCH_TRIALS = (1, 2), 8
GOAL = 0.85
"""Of the ideal: the time of one worker over the number of workers."""
MODEL = "import numpy as np\n\n\ndef tiny():\n    return (lambda x: x + 1), np.ones((4, 8))\n"
TORCH_MODEL = REPOSITORY / "benchmarks" / "models" / "small_mlp_torch.py"
ABOUT = (
    "A search on a Ray cluster of this machine with so many workers. *Of ideal*: the time of one worker over the "
    "number of workers and the time. The fake framework's compilers sleep, so that cores do not matter; PyTorch's "
    "compile, two workers on the cores that one has to itself."
)
_QUICK = SamplingPlan(max_warmup_s=0.2, min_samples=5, max_samples=20, min_sampling_s=0.02, max_sampling_s=0.2)
_BLOCKS = BlockPlan(num_rounds=3, first_look=2, num_looks=1)


@dataclass(frozen=True)
class Search:
    """Seconds of the search phase."""

    num_workers: int
    num_trials: int
    compile_s: float | None
    search_s: float


@dataclass(frozen=True)
class Case:
    """So many workers, trials, and seconds that a compiler sleeps; None: PyTorch's, which works."""

    num_workers: int
    num_trials: int
    compile_s: float | None

    @property
    def name(self) -> str:
        return f"{self.num_workers} workers" + (", torch" if self.compile_s is None else "")


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--trials", type=int, default=32, help="of the search (default: %(default)s)")
    parser.add_argument("--compile-s", type=float, default=10.0, help="a compiler sleeps (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """One for each number of workers with compilers that sleep, and with PyTorch's."""
    if given.quick:
        return [Case(each, num_trials=8, compile_s=1.0) for each in WORKERS[:2]]
    sleeping = [Case(each, given.trials, given.compile_s) for each in WORKERS]
    return [*sleeping, *(Case(each, TORCH_TRIALS, None) for each in TORCH_WORKERS)]


def run(case: Case) -> Search:
    """Tune a study on a cluster of its own, up to the end of the search."""
    ray = require_ray()
    ray.init(
        address="local", num_cpus=case.num_workers, resources={SLOTS: case.num_workers}, include_dashboard=False,
        object_store_memory=2**27, log_to_driver=False, configure_logging=False,
    )  # fmt: skip
    try:
        return Search(case.num_workers, case.num_trials, case.compile_s, _search_s(case))
    finally:
        ray.shutdown()


class _SearchIsOver(BaseException):
    """The confirmation is not what is measured."""


def _search_s(case: Case) -> float:
    times: dict[type[Event], float] = {}

    def note(event: Event) -> None:
        times[type(event)] = time.monotonic()
        if isinstance(event, SearchEnded):
            raise _SearchIsOver

    budget = Budget(
        num_trials=1 + case.num_trials, stop_early=False, sampling=_QUICK, noise_floor=_BLOCKS, trials_per_sentinel=1000
    )
    with tempfile.TemporaryDirectory() as folder:
        workload, space = _sleeping(case, Path(folder)) if case.compile_s is not None else _torch()
        versions = {workload.framework: framework_version(workload.framework)}
        settings = WorkerSettings((workload.framework,), "cpu", {}, versions, code_sha256())
        manifest = manifest_of(space, seed=0).model_copy(update={"workload": workload})
        study = FolderStudies(Path(folder, "studies")).create(manifest)
        try:
            with ClusterTrials(RayCluster(LOCAL), settings) as devices:
                Tuner(study, budget, devices, note, devices=devices).run()
        except _SearchIsOver:
            pass
        finally:
            study.close()
    return times[SearchEnded] - max(times[each] for each in (NoiseFloorMeasured, NeighboursFound) if each in times)


def _sleeping(case: Case, folder: Path) -> tuple[Workload, SearchSpace]:
    """As many compiled configs as there are trials, and the untuned model."""
    model = folder / "tiny_model.py"
    model.write_text(MODEL, encoding="utf-8")
    execution = Knob(name="execution", doc="", values=("eager", "compile"), when={}, default="compile", untuned="eager")
    when: dict[str, str] = {"execution": "compile"}
    numbers = tuple(range(case.num_trials))
    compile_ms = int(1000 * (case.compile_s or 0))
    knobs = (
        execution,
        Knob(name="compile_ms", doc="", values=(compile_ms,), when=when, default=compile_ms, untuned=None),
        Knob(name="number", doc="", values=numbers, when=when, default=0, untuned=None),
    )
    return _workload("fake", f"{model}:tiny"), SearchSpace(framework="fake", knobs=knobs, forbid=())


def _torch() -> tuple[Workload, SearchSpace]:
    """The model and the space of the recorded table of the same name."""
    return _workload("torch", f"{TORCH_MODEL}:small_mlp"), read_table(TABLES / "small_mlp_torch.json").space


def _workload(framework: str, reference: str) -> Workload:
    folder = str(Path(reference).parent)
    return Workload(model=reference, reference=reference, framework=framework, device="cpu", search_path=folder)


def shares(records: Sequence[Search]) -> dict[int, float]:
    """Workers -> share of the ideal, of searches with the same compilers."""
    alone = next(each.search_s for each in records if each.num_workers == 1)
    return {each.num_workers: alone / (each.num_workers * each.search_s) for each in records}


def judge(records: Sequence[Search]) -> list[Goal]:
    """At the largest number of workers; cores do not bound what sleeps."""
    most, share = max(shares([each for each in records if each.compile_s is not None]).items())
    return [Goal(f"at least {GOAL:.0%} of ideal at {most} workers", percent(share), share >= GOAL)]


def section(records: Sequence[Search]) -> str:
    """A row for each number of workers, sleeping compilers first."""
    sleeping = [each for each in records if each.compile_s is not None]
    working = [each for each in records if each.compile_s is None]
    rows = [row for same in (sleeping, working) if same for row in _rows(same)]
    return f"{ABOUT}\n\n{table(['workers', 'trials', 'compiler', 'search', 'of ideal'], rows)}"


def _rows(records: Sequence[Search]) -> list[list[str]]:
    return [
        [
            str(each.num_workers),
            str(each.num_trials),
            "PyTorch" if each.compile_s is None else f"sleeps {each.compile_s:g} s",
            f"{each.search_s:.0f} s",
            percent(share),
        ]
        for each, share in zip(records, shares(records).values(), strict=True)
    ]


BENCHMARK = Benchmark("workers", "The search on many workers", __doc__, Search, cases, run, judge, section, options)

if __name__ == "__main__":
    os.environ.pop("FAKE_CLOCK", None)  # Compilers shall sleep.
    BENCHMARK.main()
