"""Two processes of a core each against one of two cores: throughput by the tool, and as it is counted by hand.

    taskset -c 0,1 python benchmarks/instances.py

The tool is `tune --objective throughput --instances 2` on a space that has nothing else. By hand `instances_job.py` is
started once, or twice with `taskset` and OMP_NUM_THREADS, and calls are counted over a span in which all of them call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.evidence import Benchmark, Goal, percent, table
from benchmarks.processes import Document, Product, ProductError

JOB = Path(__file__).with_name("instances_job.py")
MODELS = ("vit", "resnet18", "bert_small")
NUM = 2
TOLERANCE = 0.05
LEAD_S = 0.5
"""From telling the span to its begin."""
SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://docs.pytorch.org/docs/stable/", values: [eager], untuned: eager, default: eager}
"""


@dataclass(frozen=True)
class Case:
    """A model, and how much to measure."""

    name: str
    budget: str
    rounds: int
    span_s: float


@dataclass(frozen=True)
class Rates:
    """Calls a second of one process with all cores, and of two with a core each: by the tool's blocks, and in rounds by
    hand."""

    model: str
    verdict: str
    tool: list[tuple[float, float]]
    hand: list[tuple[float, float]]

    def medians(self, pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
        one, two = (statistics.median(side) for side in zip(*pairs, strict=True))
        return one, two

    @property
    def is_same_winner(self) -> bool:
        """One wins in both, or neither by more than the tolerance in either."""
        ratios = [two / one for one, two in (self.medians(self.tool), self.medians(self.hand))]
        return all(abs(ratio - 1) <= TOLERANCE for ratio in ratios) or len({ratio > 1 for ratio in ratios}) == 1

    @property
    def differences(self) -> list[float]:
        """Of the tool's figures from those by hand, as shares."""
        return [tool / hand - 1 for tool, hand in zip(self.medians(self.tool), self.medians(self.hand), strict=True)]


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), help="default: all")
    parser.add_argument("--budget", default="110s", help="of each study (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="by hand, of each way (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """All models; for a smoke run one, shortly."""
    if given.quick:
        return [Case("vit", "3m", 1, 2.0)]
    return [Case(model, given.budget, given.rounds, 6.0) for model in given.model]


def run(case: Case) -> Rates:
    """By hand before the tool and after it, since the machine may change in between."""
    cores = sorted(os.sched_getaffinity(0))[:NUM]
    if len(cores) < NUM:
        raise SystemExit(f"this needs {NUM} cores")
    half = (case.rounds + 1) // 2
    hand = [_by_hand(case, cores) for _ in range(half)]
    with Product() as product:
        space = product.folder / "space.yaml"
        space.write_text(SPACE)
        document = product.tune(
            case.name, "torch", study="instances", space=space, budget=case.budget, objective="throughput",
            flags=["--instances", str(NUM)],
        )  # fmt: skip
    hand += [_by_hand(case, cores) for _ in range(case.rounds - half)]
    return Rates(case.name, str(document["verdict"]), _by_tool(document), hand)


def _by_tool(document: Document) -> list[tuple[float, float]]:
    """Of each block; of the two trials, where there is no block with both."""
    made = [trial["number"] for trial in document["trials"] if trial["throughput"] and trial["config"]["instances"]]
    if not made:
        raise ProductError("the time did not hold a trial of two instances: give more --budget")
    number = made[0]
    items = document["trials"][0]["outcome"]["signature"]["items_per_call"]
    values = [{int(trial): value for trial, value in block["values"].items()} for block in document["blocks"]]
    pairs = [(1 / items / block[0], 1 / items / block[number]) for block in values if {0, number} <= block.keys()]
    rates = {trial["number"]: trial["throughput"] for trial in document["trials"]}
    return pairs or [(rates[0] / items, rates[number] / items)]


def _by_hand(case: Case, cores: Sequence[int]) -> tuple[float, float]:
    one = _counted(case, [cores])
    return one, _counted(case, [[core] for core in cores])


def _counted(case: Case, sets: Sequence[Sequence[int]]) -> float:
    """Calls a second of one process on each of these sets of cores, all together."""
    jobs = []
    for cores in sets:
        command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, str(JOB), case.name]
        variables = {**os.environ, "OMP_NUM_THREADS": str(len(cores))}
        jobs.append(subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for job in jobs:
        assert job.stdout is not None
        job.stdout.readline()
    begin = time.monotonic() + LEAD_S
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write(f"{begin} {begin + case.span_s}\n")
        job.stdin.flush()
    return sum(int(job.communicate()[0]) for job in jobs) / case.span_s


def judge(records: Sequence[Rates]) -> list[Goal]:
    """The tool finds what is counted by hand."""
    agreed = sum(record.is_same_winner for record in records)
    differences = [each for record in records for each in record.differences]
    near = sum(abs(each) <= TOLERANCE for each in differences)
    furthest = max(differences, key=abs, default=0.0)
    return [
        Goal("the same winner by the tool and by hand", f"{agreed} of {len(records)} models", agreed == len(records)),
        Goal(
            f"the same throughput within {percent(TOLERANCE)}",
            f"{near} of {len(differences)} figures, the furthest off by {percent(furthest)}",
            near == len(differences),
        ),
    ]


def section(records: Sequence[Rates]) -> str:
    """A row a model."""
    about = (
        "Untuned models on two cores: calls a second of one process with both, and of two processes with a core each "
        "that call at the same time. *Tool*: `tune --objective throughput --instances 2`, the median over its blocks. "
        "*By hand*: `benchmarks/instances_job.py` started with `taskset` and `OMP_NUM_THREADS`, calls counted over a "
        f"common span, the median of {len(records[0].hand)} rounds."
    )
    columns = ["model", "verdict", "tool: 1 x 2", "2 x 1", "ratio", "by hand: 1 x 2", "2 x 1", "ratio"]
    return f"{about}\n\n{table(columns, [_cells(record) for record in records])}"


def _cells(record: Rates) -> list[str]:
    cells = [record.model, record.verdict]
    for one, two in (record.medians(record.tool), record.medians(record.hand)):
        cells += [f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}x"]
    return cells


BENCHMARK = Benchmark("instances", "Instances and cores", __doc__, Rates, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
