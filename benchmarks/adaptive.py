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
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from autotune.workload.traffic import Load, Traffic
from benchmarks.record import REPOSITORY, Conditions, Goal, Report, publish, table

WAYS = ("eager", "compiled", "adaptive")
SLOWER_LIMIT = 1.05
FEWEST = 12_000
"""Candidates in a frame."""
CLASSES, ROUNDS_OF_DAMPING = 80, 2
CONFIG = {"execution": "compile", "backend": "inductor", "mode": "default", "dynamic": None, "fullgraph": False}


@dataclass(frozen=True)
class Case:
    """A kind of traffic. Shapes come in phases if `phase_calls` is not 0, each as often as its share asks for."""

    name: str
    about: str
    shares: tuple[float, ...]
    num_calls: int
    phase_calls: int = 0

    def stream(self) -> list[int]:
        """Numbers of candidates, one for each call."""
        whole = sum(self.shares)
        loads = tuple(Load(sizes={"candidates": FEWEST + 16 * i}, share=s / whole) for i, s in enumerate(self.shares))
        traffic = Traffic(loads=loads)
        repeats = max(self.phase_calls, 1)
        drawn = traffic.stream(self.num_calls // repeats, seed=0)
        return [loads[index].sizes["candidates"] for index in drawn for _ in range(repeats)]


LONG_TAIL = "long tail"
ZIPF = tuple(1 / rank**1.8 for rank in range(1, 61))
CASES = (
    Case("steady", "two shapes, as often the one as the other", (1, 1), 2400),
    Case(LONG_TAIL, "60 shapes, the n-th as often as 1 / n^1.8: most of them rarely", ZIPF, 8000),
    Case("long tail, over soon", "the same shapes, in a job that ends when break-even is in sight", ZIPF, 2400),
    Case("bursts", "6 shapes, in 12 phases of 200 calls", (1,) * 6, 2400, 200),
)
QUICK = (Case("steady", "two shapes", (1, 1), 400), Case(LONG_TAIL, "8 shapes", ZIPF[:8], 400))


def first_call() -> dict[str, float]:
    """In a child: what compiling the first shape takes, and a call of it. Seconds."""
    import torch

    torch.set_num_threads(1)
    model, x = decoding(FEWEST)
    with torch.no_grad():
        eager_s = median_s(lambda: model(x))
        compiled: Callable[..., Any] = torch.compile(model, dynamic=False)
        start = time.perf_counter()
        compiled(x)
        first_s = time.perf_counter() - start
        return {"eager_s": eager_s, "first_s": first_s, "compiled_s": median_s(lambda: compiled(x))}


def answer(folder: Path) -> Path:
    """An export as of a study of the first shape, with figures from a process with cold and one with warm caches."""
    import torch

    from autotune import environment
    from autotune.backends.torch.backend import TorchBackend
    from autotune.measure.measurement import structure_sha256

    cold, warm = (child(["--first-call"], folder / "cache") for _ in range(2))
    model, x = decoding(FEWEST)
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", verdict="faster", config=CONFIG, untuned={"execution": "eager"})
    here = environment.describe(device="cpu", variables={}).model_dump(mode="json")
    content["environment"] = {**here, "framework_version": str(torch.__version__)}
    structure = structure_sha256(TorchBackend().parameters(model))
    content["workload"]["signature"].update(
        structure_sha256=structure, inputs=[{"shape": list(x.shape), "dtype": "float32"}]
    )
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


def median_s(call: Callable[[], Any]) -> float:
    """Of 50 calls, after 10."""
    times_s = []
    for _ in range(60):
        start = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - start)
    return statistics.median(times_s[10:])


def decoding(num_candidates: int) -> tuple[Any, Any]:
    """The model, and one input."""
    from benchmarks.models.box_decoding_torch import box_decoding

    model, (x,) = box_decoding(candidates=num_candidates, num_classes=CLASSES, rounds=ROUNDS_OF_DAMPING)
    return model, x


def way(name: str, model: Any, path: Path) -> AbstractContextManager[Any]:
    """What is called, for as long as the block lasts."""
    import torch

    import autotune
    from autotune.tuned.adaptive_policy import AdaptivePolicy

    if name == "eager":
        return nullcontext(model)
    if name == "compiled":
        torch._dynamo.config.recompile_limit = 10_000
        torch._dynamo.config.accumulated_recompile_limit = 10_000
        return nullcontext(torch.compile(model, dynamic=False))
    bounds = AdaptivePolicy(max_versions=64)
    return autotune.load(path).applied(model, on_mismatch="raise", margin=None, adaptive=bounds)


def replay(name: str, case: Case, path: Path) -> dict[str, Any]:
    """In the child: the stream, once. Inputs are made before the clock starts."""
    import torch

    import autotune

    torch.set_num_threads(1)
    stream = case.stream()
    model = decoding(FEWEST)[0]
    inputs = {size: decoding(size)[1] for size in set(stream)}
    worst_s = 0.0
    with torch.no_grad():
        start = time.perf_counter()
        with way(name, model, path) as called:
            for size in stream:
                before = time.perf_counter()
                called(inputs[size])
                worst_s = max(worst_s, time.perf_counter() - before)
            stats = autotune.stats(called)
        seconds = time.perf_counter() - start
    decided = None if stats is None or stats.adaptive is None else stats.adaptive
    num_compiled = decided.num_compiled if decided else len(set(stream)) if name == "compiled" else 0
    return {
        "seconds": seconds,
        "worst_call_s": worst_s,
        "num_compiled": num_compiled,
        "compiling_s": decided.compiling_s if decided else None,
        "saved_s": decided.saved_s if decided else None,
    }


def replayed(name: str, number: int, path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The same in a fresh process with an empty cache."""
    flags = ["--quick"] if given.quick else []
    with tempfile.TemporaryDirectory() as cache:
        return child(["--replay", name, str(number), str(path), *flags], Path(cache))


def child(arguments: Sequence[str], cache: Path) -> dict[str, Any]:
    """What this script prints in a process of its own."""
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(cases: Sequence[Case], given: argparse.Namespace, path: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Case -> way -> what each round gave. The ways take turns, each round in another order."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {each.name: {way: [] for way in WAYS} for each in cases}
    for round_number in range(given.rounds):
        for number, case in enumerate(cases):
            turn = (round_number + number) % len(WAYS)
            for name in (*WAYS[turn:], *WAYS[:turn]):
                found[case.name][name].append(replayed(name, number, path, given))
                print(case.name, name, found[case.name][name][-1], file=sys.stderr, flush=True)
    return found


def median_seconds(found: dict[str, list[dict[str, Any]]], name: str) -> float:
    """Of a way, over rounds."""
    return float(statistics.median(each["seconds"] for each in found[name]))


def report_of(cases: Sequence[Case], found: dict[str, dict[str, list[dict[str, Any]]]], rounds: int) -> Report:
    """The section."""
    rows, shares = [], {}
    for case in cases:
        seconds = {name: median_seconds(found[case.name], name) for name in WAYS}
        shares[case.name] = seconds["adaptive"] / max(seconds["eager"], seconds["compiled"])
        compiled = [str(found[case.name][name][-1]["num_compiled"]) for name in ("compiled", "adaptive")]
        rows.append(
            [f"{case.name}: {case.about}", f"{case.num_calls:,}", *(f"{seconds[name]:.1f}" for name in WAYS), *compiled]
        )
    tail = {name: median_seconds(found[LONG_TAIL], name) for name in WAYS}
    best = min(tail["eager"], tail["compiled"])
    return Report(
        name="adaptive",
        title="The adaptive runtime on three kinds of traffic",
        about=(
            "Seconds that a job's calls take together, compiling included, from an empty cache. A detector's decoding "
            f"of {FEWEST:,} and more candidates on one core; medians of {rounds} process(es), which take turns. The "
            "sizes were chosen so that there is something to decide: where compiling gains less, or the job is over "
            "sooner, eager execution is the better choice, and the adaptive runtime pays for finding out."
        ),
        goals=[
            Goal(
                f"never over {SLOWER_LIMIT:.2f} times the slower of always eager and always compiled",
                f"{max(shares.values()):.2f} times at most",
                max(shares.values()) <= SLOWER_LIMIT,
            ),
            Goal(
                "on the long tail faster than both",
                f"{tail['adaptive']:.1f} s; eager {tail['eager']:.1f} s, compiled {tail['compiled']:.1f} s",
                tail["adaptive"] < best,
            ),
        ],
        body=table(["traffic", "calls", "eager s", "compiled s", "adaptive s", "shapes compiled", "by adaptive"], rows),
        results={"rounds": rounds, "found": found},
    )


def main() -> None:
    """Measure, and the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each way (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="short streams, once, nothing is written")
    parser.add_argument("--replay", nargs=3, metavar=("WAY", "CASE", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--first-call", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    cases = QUICK if given.quick else CASES
    if given.replay:
        name, number, file = given.replay
        print(json.dumps(replay(name, cases[int(number)], Path(file))))
        return
    if given.first_call:
        print(json.dumps(first_call()))
        return
    if given.quick:
        given.rounds = 1
    conditions = Conditions.now()
    with tempfile.TemporaryDirectory() as temporary:
        found = measure(cases, given, answer(Path(temporary)))
    report = report_of(cases, found, given.rounds)
    publish(report, conditions, write=not given.quick)


if __name__ == "__main__":
    main()
