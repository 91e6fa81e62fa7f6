"""The adaptive runtime against always eager and always compiled, on three kinds of traffic.

The model decodes a detector's candidates, as many as there are in a frame. The same stream of calls is made in a fresh
process with an empty cache each time, in turns: eagerly; compiled for each shape as it comes; and adaptively, with the
evidence of a study of one shape. What counts are the seconds from the first call to the end, compiling included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from benchmarks.adaptive_job import FEWEST, Case, decoding
from benchmarks.frame import Benchmark
from benchmarks.made_up_export import CONFIG, made_up_export
from benchmarks.record import REPOSITORY, Goal, table

JOB = Path(__file__).with_name("adaptive_job.py")
WAYS = ("eager", "compiled", "adaptive")
SLOWER_LIMIT = 1.05
LONG_TAIL = "long tail"
ZIPF = tuple(1 / rank**1.8 for rank in range(1, 61))
CASES = (
    Case("steady", "two shapes, as often the one as the other", (1, 1), 2400),
    Case(LONG_TAIL, "60 shapes, the n-th as often as 1 / n^1.8: most of them rarely", ZIPF, 8000),
    Case("long tail, over soon", "the same shapes, in a job that ends when break-even is in sight", ZIPF, 2400),
    Case("bursts", "6 shapes, in 12 phases of 200 calls", (1,) * 6, 2400, 200),
)
QUICK = (Case("steady", "two shapes", (1, 1), 400), Case(LONG_TAIL, "8 shapes", ZIPF[:8], 400))


@dataclass(frozen=True)
class Found:
    """What each way gave under one traffic, a process for each round."""

    case: Case
    ways: dict[str, list[dict[str, Any]]]

    def median_s(self, way: str) -> float:
        return float(statistics.median(each["seconds"] for each in self.ways[way]))

    @property
    def share(self) -> float:
        """Of the adaptive runtime's time in the slower one of the two others."""
        return self.median_s("adaptive") / max(self.median_s("eager"), self.median_s("compiled"))

    def cells(self) -> list[str]:
        times = [f"{self.median_s(way):.1f}" for way in WAYS]
        compiled = [str(self.ways[way][-1]["num_compiled"]) for way in ("compiled", "adaptive")]
        return [f"{self.case.name}: {self.case.about}", f"{self.case.num_calls:,}", *times, *compiled]


def answer(folder: Path) -> Path:
    """An export as of a study of the first shape, with figures from a process with cold and one with warm caches."""
    cold, warm = (child(["first-call"], folder / "cache") for _ in range(2))
    content = made_up_export(*decoding(FEWEST), CONFIG)
    ratio = cold["eager_s"] / cold["compiled_s"]
    evidence = content["evidence"]
    evidence["speedup"] = dict.fromkeys(("median", "low", "high"), ratio)
    evidence["best"].update(compile_cold_s=cold["first_s"], latency_s=percentiles(cold["compiled_s"]))
    evidence["untuned"].update(latency_s=percentiles(cold["eager_s"]))
    evidence["compile_warm_s"] = warm["first_s"]
    (folder / "best.yaml").write_text(yaml.safe_dump(content))
    return folder / "best.yaml"


def percentiles(seconds: float) -> dict[str, float]:
    """As if all calls had taken the same."""
    return dict.fromkeys(("p50", "p90", "p99"), seconds)


def child(arguments: Sequence[str], cache: Path) -> dict[str, Any]:
    """What the job prints in a process of its own."""
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(JOB), *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--rounds", type=int, default=2, help="processes of each way (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """All kinds of traffic; for a smoke run two short streams, once."""
    return list(QUICK) if given.quick else [replace(each, rounds=given.rounds) for each in CASES]


def run(case: Case) -> Found:
    """The ways take turns, each round in another order, in fresh processes with empty caches."""
    ways: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as temporary:
        path = answer(Path(temporary))
        for number in range(case.rounds):
            turn = number % len(WAYS)
            for way in (*WAYS[turn:], *WAYS[:turn]):
                with tempfile.TemporaryDirectory() as cache:
                    seen = child(["replay", way, str(path), json.dumps(asdict(case))], Path(cache))
                ways[way].append(seen)
                print(case.name, way, seen, file=sys.stderr, flush=True)
    return Found(case, ways)


def judge(records: Sequence[Found]) -> list[Goal]:
    """About the worst traffic, and about the long tail."""
    worst = max(each.share for each in records)
    tail = next(each for each in records if each.case.name == LONG_TAIL)
    adaptive_s, eager_s, compiled_s = (tail.median_s(way) for way in ("adaptive", "eager", "compiled"))
    return [
        Goal(
            f"never over {SLOWER_LIMIT:.2f} times the slower of always eager and always compiled",
            f"{worst:.2f} times at most",
            worst <= SLOWER_LIMIT,
        ),
        Goal(
            "on the long tail faster than both",
            f"{adaptive_s:.1f} s; eager {eager_s:.1f} s, compiled {compiled_s:.1f} s",
            adaptive_s < min(eager_s, compiled_s),
        ),
    ]


def section(records: Sequence[Found]) -> str:
    """A row for each kind of traffic."""
    about = (
        "Seconds that a job's calls take together, compiling included, from an empty cache. A detector's decoding "
        f"of {FEWEST:,} and more candidates on one core; medians of {len(records[0].ways['eager'])} process(es), "
        "which take turns. The "
        "sizes were chosen so that there is something to decide: where compiling gains less, or the job is over "
        "sooner, eager execution is the better choice, and the adaptive runtime pays for finding out."
    )
    header = ["traffic", "calls", "eager s", "compiled s", "adaptive s", "shapes compiled", "by adaptive"]
    return f"{about}\n\n{table(header, [each.cells() for each in records])}"


BENCHMARK = Benchmark(
    "adaptive", "The adaptive runtime on three kinds of traffic", __doc__, Found, cases, run, judge, section, options
)

if __name__ == "__main__":
    BENCHMARK.main()
