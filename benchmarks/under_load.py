"""Studies beside a neighbour that takes a core half of the time: is the verdict right or `undecided`, and never wrong?

The model does its work several times over; its variants repeat it more or less often, so that the truth is planted. In
every other study one variant is 1.33 times as fast as the untuned model, in the others all are slower. Everything is
pinned to one core, which the neighbour takes for 0.5 s of each second. Nothing is compiled, and live processes are
forked from one that has imported PyTorch, so that a study takes seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.answer.result import StudyResult
from autotune.bench.runner import Runner
from autotune.bench.trials import LiveTrial, StageCallback
from autotune.measure.measurement import Stage
from autotune.measure.sampling import SamplingPlan
from autotune.planning.manifest import make_manifest
from autotune.planning.request import TuneRequest
from autotune.study.budget import BlockPlan, Budget, BusyMachinePlan
from autotune.study.folder import FolderStudies
from autotune.study.manifest import Manifest
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.events import Event, TrialDisturbed
from autotune.tuning.loop import Tuner
from benchmarks.frame import Benchmark
from benchmarks.record import Goal, table

HERE = Path(__file__).resolve().parent
FASTEST = "less"
"""The planted variant."""
BUDGET = Budget(
    num_trials=4,
    sampling=SamplingPlan(max_warmup_s=0.5, min_samples=15, max_samples=100, max_sampling_s=0.5),
    noise_floor=BlockPlan(num_rounds=3, max_sampling_s=2, first_look=2, num_looks=1),
    sentinel=SamplingPlan(min_samples=10, max_sampling_s=0.5, max_warmup_s=0.5),
    trials_per_sentinel=2,
    confirmation=BlockPlan(num_rounds=4, max_sampling_s=4, first_look=4, num_looks=2, max_s=20),
    quiet=BusyMachinePlan(max_wait_s=2),
)
ABOUT = (
    "Real studies of a small PyTorch MLP on one core, alone and beside a process that takes this core for "
    "0.5 s of each second. In every other study one config is 1.33 times as fast as the untuned model, in the "
    "others all are slower. *Right*: that config is called `faster`, or nothing is. The processes of "
    "all blocks are forks of one, where the product starts another one for each block: it makes a study short, and "
    "changes nothing about the load."
)
NEIGHBOUR = """
import time
while True:
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        pass
    time.sleep(0.5)
"""


class ForkingRunner(Runner):
    """All blocks are forks of one process: importing PyTorch for each would take longer than all else."""

    def next_block(self) -> None:
        """The process that trials are forked from stays."""

    def hold(self, folder: TrialFolder, request: TrialRequest, *, on_stage: StageCallback | None = None) -> LiveTrial:
        held = self._start(folder, request, fresh=False, waits="live")
        held.watch(on_stage)
        held.wait_for(Stage.WAIT)
        return held


@dataclass(frozen=True)
class Case:
    """So many studies on a quiet or a loaded machine."""

    name: str
    num_studies: int


@dataclass
class Row:
    """Studies on one kind of machine."""

    machine: str
    verdicts: Counter[str] = field(default_factory=Counter)
    """`right`, `undecided` or `wrong`."""
    seconds: list[float] = field(default_factory=list)
    num_repeats: int = 0
    num_disturbed: int = 0
    """Trials that stayed disturbed."""
    wrong: list[str] = field(default_factory=list)


def judged(verdict: str, variant: object, *, has_gain: bool) -> str:
    """What a verdict about `variant` is worth where the truth is known."""
    if verdict == "undecided":
        return "undecided"
    if has_gain:
        return "right" if (verdict, variant) == ("faster", FASTEST) else "wrong"
    return "right" if verdict in ("keep_untuned", "tie") else "wrong"


def run_study(manifest: Manifest, studies: Path, runner: Runner, row: Row, *, has_gain: bool) -> None:
    """One study from its first trial to its verdict."""
    repeats: list[Event] = []

    def notify(event: Event) -> None:
        if isinstance(event, TrialDisturbed):
            repeats.append(event)

    study = FolderStudies(studies).create(manifest)
    begun = time.monotonic()
    verdict = Tuner(study, BUDGET, runner, notify).run().verdict.value
    row.seconds.append(time.monotonic() - begun)
    answer = StudyResult(study)
    best = None if answer.best is None else answer.best.config.get("variant.work")
    result = judged(verdict, best, has_gain=has_gain)
    row.verdicts[result] += 1
    row.num_repeats += len(repeats)
    row.num_disturbed += sum(each.disturbed is not None for each in answer.records)
    said = f"{manifest.name}: {verdict} ({best}): {result}, {row.seconds[-1]:.0f} s"
    if result == "wrong":
        row.wrong.append(said)
    print(said, flush=True)
    study.close()


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--studies", type=int, default=20, help="beside the neighbour (default: %(default)s)")
    parser.add_argument("--quiet", type=int, default=5, help="on the quiet machine (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """The quiet studies, then those beside the neighbour; for a smoke run one study of each."""
    return [Case("quiet", 1 if given.quick else given.quiet), Case("loaded", 1 if given.quick else given.studies)]


def run(case: Case) -> Row:
    """Studies one after the other on one core, with a planted gain in every other one."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    manifests = {has_gain: question(has_gain=has_gain) for has_gain in (True, False)}
    row = Row(case.name)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-benchmark-") as folder,
        neighbour() if case.name == "loaded" else nullcontext(),
        ForkingRunner("torch", {}, preload=True, log=Path(folder) / "supervisor.log") as runner,
    ):
        for number in range(case.num_studies):
            has_gain = number % 2 == 0
            manifest = manifests[has_gain]
            workload = manifest.workload.model_copy(update={"seed": number})
            own = {"id": uuid.uuid4().hex, "name": f"{case.name}-{number:02d}", "workload": workload}
            run_study(manifest.model_copy(update=own), Path(folder), runner, row, has_gain=has_gain)
    return row


def question(*, has_gain: bool) -> Manifest:
    """That of a study with or without a planted gain."""
    return make_manifest(
        TuneRequest(
            models=(f"{HERE / 'models' / 'repeated_torch.py'}:repeated",),
            model_arguments=(f"gain={int(has_gain)}",),
            framework="torch",
            device="cpu",
            spaces=(HERE / "spaces" / "eager_torch.yaml",),
            study="load",
        )
    )


@contextmanager
def neighbour() -> Iterator[None]:
    """A process on this process's own core that takes it half of the time."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def judge(records: Sequence[Row]) -> list[Goal]:
    """Nothing wrong beside the neighbour."""
    loaded = next(each for each in records if each.machine == "loaded")
    found = f"{loaded.verdicts['wrong']} of {len(loaded.seconds)}"
    return [Goal("no wrong verdict beside the neighbour", found, loaded.verdicts["wrong"] == 0)]


def section(records: Sequence[Row]) -> str:
    """A row for each machine."""
    names = ("right", "undecided", "wrong")
    rows = [
        [
            row.machine,
            str(len(row.seconds)),
            *(str(row.verdicts[name]) for name in names),
            f"{statistics.median(row.seconds):.0f}",
            str(row.num_repeats),
            str(row.num_disturbed),
        ]
        for row in records
    ]
    header = ["machine", "studies", *names, "seconds a study", "trials repeated", "trials still disturbed"]
    return f"{ABOUT}\n\n{table(header, rows)}"


BENCHMARK = Benchmark("under_load", "Under load", __doc__, Row, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
