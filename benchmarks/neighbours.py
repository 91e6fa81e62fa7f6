"""Two processes that meet on one machine: one is timed in bursts when it is told to, the other compiles without end.

    python benchmarks/neighbours.py timed resnet18 --cores 0         a line of seconds in, a line of JSON out
    python benchmarks/neighbours.py compiling resnet18 --cores 1     cold compiles until it is killed

Each keeps to its cores. Nothing of the product is used but the definition of a bundled model.
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
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.plain import build

UNCOUNTED_SHARE = 0.15
"""Of a burst: the caches of the processor are filled again first."""


def timed(model_name: str) -> None:
    """Compile a model by default, say `ready`, then time a burst for each line on stdin that says how many seconds."""
    import torch

    model, inputs = build(model_name, seed=0)
    with tempfile.TemporaryDirectory() as cache, torch.no_grad():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        step = torch.compile(model)
        for _ in range(20):
            step(*inputs)
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(_burst(lambda: step(*inputs), float(line))), flush=True)


def _burst(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """Median wall seconds a call, and mean CPU seconds a call of this process."""
    begun = time.perf_counter()
    while time.perf_counter() < begun + UNCOUNTED_SHARE * seconds:
        call()
    samples_s = []
    cpu_before_s = time.process_time()
    while time.perf_counter() < begun + seconds:
        start = time.perf_counter()
        call()
        samples_s.append(time.perf_counter() - start)
    cpu_s = (time.process_time() - cpu_before_s) / len(samples_s)
    return {"median_s": statistics.median(samples_s), "cpu_s": cpu_s, "num_calls": len(samples_s)}


def compiling(model_name: str) -> None:
    """Compile the model again and again, each time in a new process with empty caches, as trials do."""
    print("compiling", flush=True)
    while True:
        with tempfile.TemporaryDirectory() as cache:
            subprocess.run(
                [sys.executable, __file__, "once", model_name, "--cores", *map(str, os.sched_getaffinity(0))],
                env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
                check=True,
            )


def once(model_name: str) -> None:
    """One compile of a model, by default."""
    import torch

    model, inputs = build(model_name, seed=0)
    with torch.no_grad():
        torch.compile(model)(*inputs)


def main() -> None:
    """Keep to the cores that were given, then do what was said."""
    parser = argparse.ArgumentParser(description="A process that is timed, or one that compiles without end.")
    parser.add_argument("what", choices=["timed", "compiling", "once"])
    parser.add_argument("model", help="name of a bundled torch model")
    parser.add_argument("--cores", type=int, nargs="+", required=True, help="those that it may use")
    given = parser.parse_args()
    os.sched_setaffinity(0, given.cores)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    {"timed": timed, "compiling": compiling, "once": once}[given.what](given.model)


if __name__ == "__main__":
    main()
