"""Does compiling the next trial while this one is timed disturb what is timed?

One process times a compiled model in bursts. Beside it a second one compiles with inductor, again and again from empty
caches, or is held still. They take turns, the order swapped from round to round, so that whatever the machine does
meanwhile, it does to both. A ratio is a burst beside the compiler over the burst of the same round without it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.frame import Benchmark
from benchmarks.intervals import Pair, Ratio, ratio_over_pairs
from benchmarks.record import Goal, table

MODELS = ("resnet18", "vit")
HARMLESS = 0.01
"""Share of a latency: a setting worth less than this is called a tie, so a disturbance as large decides verdicts."""
SETTLING_S = 0.5
"""Between letting the compiler go on and the burst."""
PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "both on one core": ((0,), (0,)),
    "a core each": ((0,), (1,)),
    "both on both cores": ((0, 1), (0, 1)),
}
"""Where the timed process and the compiler may run. The last is what a study without `taskset` would do."""

ABOUT = (
    "A compiled model is timed in bursts, while another process compiles the same model with inductor from "
    "empty caches, or is held still; in turns. Ratios above 1: slower beside the compiler. *CPU time*: the "
    "same ratio of the timed process's own CPU seconds, in which waiting for a core does not count. Only a CPU "
    "was measured; on an accelerator a compile may well go on beside a measurement, and that was not run."
)

_NEIGHBOURS = Path(__file__).with_name("neighbours.py")


@dataclass(frozen=True)
class Case:
    """A model, where the two processes run, and how often and how long it is timed."""

    model: str
    place: str
    num_rounds: int
    burst_s: float

    @property
    def name(self) -> str:
        return f"{self.model}, {self.place}"


@dataclass
class Disturbance:
    """A model timed beside a compiler, and alone: pairs of seconds a call, a pair a round."""

    model: str
    place: str
    wall_pairs_s: list[Pair] = field(default_factory=list)
    cpu_pairs_s: list[Pair] = field(default_factory=list)
    """CPU seconds of the timed process alone: waiting for the core is not in them, lost caches are."""

    @property
    def wall(self) -> Ratio:
        return ratio_over_pairs(self.wall_pairs_s)

    @property
    def cpu(self) -> Ratio:
        return ratio_over_pairs(self.cpu_pairs_s)

    @property
    def is_harmless(self) -> bool:
        """The whole interval lies within the share that does not matter."""
        return self.wall.low > 1 - HARMLESS and self.wall.high < 1 + HARMLESS

    def cells(self) -> list[str]:
        alone_ms = 1e3 * sorted(alone for _, alone in self.wall_pairs_s)[len(self.wall_pairs_s) // 2]
        worst = max(beside / alone for beside, alone in self.wall_pairs_s)
        return [self.model, self.place, f"{alone_ms:.2f} ms", str(self.wall), f"{worst:.3f}", str(self.cpu)]


class Timed:
    """A process that times a model in bursts, warm and idle between them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._read()  # ready

    def burst(self, seconds: float) -> tuple[float, float]:
        """Median wall seconds and mean CPU seconds a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        told = json.loads(self._read())
        return told["median_s"], told["cpu_s"]

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the timed process ended")
        return line


@contextmanager
def neighbour(what: str, model: str, cores: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    """A process of `neighbours.py` in a group of its own; killed with all that it started."""
    process = subprocess.Popen(
        [sys.executable, str(_NEIGHBOURS), what, model, "--cores", *map(str, cores)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="bundled torch models (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="of two bursts (default: %(default)s)")
    parser.add_argument("--burst-s", type=float, default=4.0, help="seconds (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Every model in every place."""
    if given.quick:
        return [Case("resnet18", place, num_rounds=3, burst_s=1.0) for place in PLACES]
    return [Case(model, place, given.rounds, given.burst_s) for model in given.models for place in PLACES]


def run(case: Case) -> Disturbance:
    """Rounds of two bursts: alone, and beside a compiler."""
    timed_cores, compiler_cores = PLACES[case.place]
    found = Disturbance(case.model, case.place)
    with ExitStack() as stack:
        timed = Timed(stack.enter_context(neighbour("timed", case.model, timed_cores)))
        compiler = stack.enter_context(neighbour("compiling", case.model, compiler_cores))
        os.killpg(compiler.pid, signal.SIGSTOP)
        for number in range(case.num_rounds):
            taken = {
                beside: _burst(timed, compiler if beside else None, case.burst_s)
                for beside in ((False, True) if number % 2 == 0 else (True, False))
            }
            found.wall_pairs_s.append((taken[True][0], taken[False][0]))
            found.cpu_pairs_s.append((taken[True][1], taken[False][1]))
    return found


def _burst(timed: Timed, compiler: subprocess.Popen[str] | None, seconds: float) -> tuple[float, float]:
    """Median wall seconds and mean CPU seconds a call, while the compiler, if there is one, goes on."""
    if compiler is None:
        return timed.burst(seconds)
    os.killpg(compiler.pid, signal.SIGCONT)
    time.sleep(SETTLING_S)
    try:
        return timed.burst(seconds)
    finally:
        os.killpg(compiler.pid, signal.SIGSTOP)


def judge(records: Sequence[Disturbance]) -> list[Goal]:
    """A goal for each place."""
    goals = []
    for place in PLACES:
        there = [each for each in records if each.place == place]
        goals.append(
            Goal(
                f"a compile changes a timed latency by less than {HARMLESS:.0%}, {place} (whole 95 % interval)",
                ", ".join(f"{each.model} {each.wall}" for each in there),
                all(each.is_harmless for each in there),
            )
        )
    return goals


def section(records: Sequence[Disturbance]) -> str:
    """One row for each case."""
    header = ["model", "where", "alone", "beside the compiler / alone (95 % interval)", "worst round", "CPU time"]
    return f"{ABOUT}\n\n{table(header, [each.cells() for each in records])}"


BENCHMARK = Benchmark(
    "overlap", "Compiling beside a measurement", __doc__, Disturbance, cases, run, judge, section, options
)

if __name__ == "__main__":
    BENCHMARK.main()
