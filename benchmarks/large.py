"""A model of gigabytes: how often it is built, what the whole run holds at its peak, and what it says under a limit.

The memory of a run is the proportional share (PSS) of all its processes, added up twice a second: pages that forks have
in common count once. Two limits are stand-ins. What the tool reads as free memory is set to 1.5 times the weights, so
that a block of two does not fit by its plan. And each process may have as much as the untuned model needs
(RLIMIT_DATA), in a space whose other configs pack a copy of the weights: a machine that holds the model once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.evidence import REPOSITORY, Benchmark, Goal, table

GIB = 2**30
MODEL = Path(__file__).with_name("models") / "large_torch.py"
SPACE = Path(__file__).with_name("spaces") / "frozen_torch.yaml"
GOAL_MEMORY, GOAL_BUILD = 1.5, 0.1
MOST_BESIDE = 2 * GIB
"""What the processes of a run hold beside weights: a framework each, and a compiler."""
_DRIVER = """
import resource, sys
free, most = map(int, sys.argv[1:3])
if most:
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
from autotune.tuning import room
if free:
    room.available_memory_bytes = lambda: free
from autotune.__main__ import main
sys.argv = ["autotune", *sys.argv[3:]]
main()
"""
_SAID = ("lack of memory", "in turn")
ABOUT = (
    "A CPU model of linear layers, float32, batch 4. *Peak*: the proportional share of all processes of a run, sampled "
    "twice a second, and the largest of them at that moment; *builds*: of the whole run, by the model's own count."
)


@dataclass(frozen=True)
class Case:
    """A model, the minutes of its study, and how many models there is room for; None: as much as there is."""

    name: str
    num_bytes: int
    seconds: int
    models: float | None = None


@dataclass(frozen=True)
class Run:
    """What a study said and needed."""

    name: str
    num_bytes: int
    models: float | None
    verdict: str | None
    said: str
    """Of the answer, the lines that speak of memory."""
    num_builds: int
    first_build_s: float
    later_builds_s: list[float]
    """Seconds of the stage in which each trial has its model."""
    peak_bytes: int
    held: dict[str, int]
    """Of the largest processes at the peak, what each held."""

    @property
    def peak(self) -> float:
        return self.peak_bytes / self.num_bytes

    def cells(self) -> list[str]:
        later = f"{statistics.median(self.later_builds_s):.2f} s" if self.later_builds_s else "-"
        room = "all" if self.models is None else f"{self.models:g} models"
        held = ", ".join(f"{role.rpartition(' ')[0] or role} {held / GIB:.2f}" for role, held in self.held.items())
        first = f"{self.first_build_s:.2f} s"
        return [self.name, room, str(self.verdict), str(self.num_builds), first, later,
                f"{self.peak:.2f} (GiB: {held})", self.said]  # fmt: skip


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--gib", type=float, nargs="+", default=[2.0, 6.0], help="of weights (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=300, help="of each study (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Each size with all the memory there is, and the smallest with the two limits; 320 MiB for a smoke run."""
    sizes = [5 * 2**26] if given.quick else [int(gib * GIB) for gib in given.gib]
    seconds = min(given.seconds, 90) if given.quick else given.seconds
    smallest = min(sizes)
    limited = [Case(f"{_gib(smallest)}, room for {models}", smallest, seconds, models) for models in (1.5, 1.0)]
    return [*(Case(_gib(size), size, seconds) for size in sizes), *limited]


def run(case: Case) -> Run:
    """A study, its processes watched."""
    with tempfile.TemporaryDirectory(prefix="autotune-benchmark-") as name:
        folder = Path(name)
        built = folder / "built"
        options = ["--space", str(SPACE)] if case.models == 1.0 else []
        told = ["tune", "--model", f"{MODEL}:build", "--framework", "torch", "--device", "cpu", "--study", "large"]
        told += ["--budget", f"{case.seconds}s", "--studies-dir", str(folder / "studies"), *options]
        told += ["--model-arg", f"num_bytes={case.num_bytes}", "--model-arg", f"log={built}"]
        peak_bytes, held = _watched(_command(case, told), folder)
        show = [sys.executable, str(REPOSITORY / "cli.py"), "show", "large", "--studies-dir", str(folder / "studies")]
        done = subprocess.run([*show, "--json"], cwd=folder, capture_output=True, text=True, check=True)
        words = subprocess.run([*show, "--why"], cwd=folder, capture_output=True, text=True, check=True).stdout
        document: dict[str, Any] = json.loads(done.stdout)
        outcomes = [trial["outcome"] for trial in document["trials"] if trial["outcome"]]
        builds_s = [each["stage_s"]["build"] for each in outcomes if each["kind"] == "measurement"]
        seconds = [float(line) for line in built.read_text().split()]
    said = [line.strip() for line in words.splitlines() if any(each in line for each in _SAID)]
    return Run(case.name, case.num_bytes, case.models, document["verdict"], "; ".join(said), len(seconds),
               seconds[0], builds_s, peak_bytes, held)  # fmt: skip


def _command(case: Case, told: Sequence[str]) -> list[str]:
    free = 0 if case.models is None else int(case.models * case.num_bytes)
    most = case.num_bytes * 6 // 5 + GIB // 2 if case.models == 1.0 else 0
    return [sys.executable, "-c", _DRIVER, str(free), str(most), *told]


def _watched(command: Sequence[str], folder: Path) -> tuple[int, dict[str, int]]:
    """Run it; the peak of what it and all processes below it hold, and the largest of these then."""
    peak, held = 0, dict[str, int]()
    with (folder / "said").open("w") as said:
        running = psutil.Popen(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=said, stderr=said
        )
        while running.poll() is None:
            now = {process: _pss(process.pid) for process in [running, *running.children(recursive=True)]}
            if sum(now.values()) > peak:
                peak = sum(now.values())
                held = {_role(process, folder): now[process] for process in sorted(now, key=now.__getitem__)[-4:]}
            time.sleep(0.5)
    if running.returncode not in (0, 1):
        raise SystemExit((folder / "said").read_text())
    return peak, held


def _role(process: psutil.Process, folder: Path) -> str:
    """The trial or the place in a block whose folder it works in, or the program that it is, or is a fork of."""
    try:
        here, words, parent = Path(process.cwd()), process.cmdline(), process.parent()
        is_fork = parent is not None and parent.cmdline() == words
    except psutil.Error:  # It ends.
        here, words, is_fork = folder, [], False
    if (studies := folder / "studies" / "large") in here.parents:
        return "/".join(here.relative_to(studies).parts[:-1])
    program = next((Path(word).stem for word in words if word.endswith(".py")), "the command")
    return f"{'fork of ' if is_fork else ''}{program} {process.pid}"


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # It has ended.
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def judge(records: Sequence[Run]) -> list[Goal]:
    """An answer, builds, memory, and what is said under the limits."""
    free = [record for record in records if record.models is None]
    slow = [each for one in free for each in one.later_builds_s if each > GOAL_BUILD * one.first_build_s]
    peaks = [f"{record.name} {record.peak:.2f}" for record in free]
    goals = [
        Goal("each study ends with a verdict", ", ".join(f"{each.name} {each.verdict}" for each in records),
             all(each.verdict is not None for each in records)),
        Goal(f"a trial has its model within {GOAL_BUILD:g} of the seconds of the build",
             f"{len(slow)} of {sum(len(each.later_builds_s) for each in free)} took longer", not slow),
        Goal(f"a run holds at most {GOAL_MEMORY:g} times the weights and {MOST_BESIDE / GIB:g} GiB beside them",
             ", ".join(peaks), all(one.peak_bytes <= GOAL_MEMORY * one.num_bytes + MOST_BESIDE for one in free)),
    ]  # fmt: skip
    limits = {1.5: ("with room for one and a half, those of a block run in turn", "in turn"),
              1.0: ("with room for one, it is undecided for lack of memory", "lack of memory")}  # fmt: skip
    for record in records:
        if record.models is not None:
            text, words = limits[record.models]
            is_met = words in record.said and (record.models != 1.0 or record.verdict == "undecided")
            goals.append(Goal(text, f"{record.verdict}: {record.said or 'nothing is said of memory'}", is_met))
    return goals


def section(records: Sequence[Run]) -> str:
    """One row a study."""
    header = ["weights", "room", "verdict", "builds", "first", "a trial's", "peak over weights", "it says"]
    return "\n\n".join([ABOUT, table(header, [record.cells() for record in records])])


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.3g} GiB"


BENCHMARK = Benchmark("large", "Large models", __doc__, Run, cases, run, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
