"""What the loaded model costs a call, over the bare compiled one.

A tiny torch model is compiled with inductor; the same compiled code is then called bare, through a loaded model that
has settled, and through one that is monitored, in bursts that take turns in random order. What is compared is the
time of a call in each burst, so that whatever else the machine does, it does to all three.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import yaml

import autotune
from autotune import environment
from autotune.backends.torch_compile import TorchBackend
from autotune.loaded import Loaded
from autotune.subject import structure_sha256
from benchmarks.record import REPOSITORY, Conditions, Goal, Report, publish, table

LIMIT_S = 2e-6
CONFIG = {"execution": "compile", "backend": "inductor", "mode": "default", "dynamic": None, "fullgraph": False}


def tiny() -> torch.nn.Module:
    """As little work as a compiled call can hold."""
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()


def answer(folder: Path) -> Loaded:
    """An answer for the tiny model, on this machine."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", verdict="faster", config=CONFIG, untuned={"execution": "eager"})
    here = environment.describe(device="cpu", variables={}).model_dump(mode="json")
    content["environment"] = {**here, "framework_version": str(torch.__version__)}
    parameters = TorchBackend().parameters(tiny())
    inputs = [{"shape": [2, 4], "dtype": "float32"}]
    content["workload"]["signature"].update(structure_sha256=structure_sha256(parameters), inputs=inputs)
    (folder / "best.yaml").write_text(yaml.safe_dump(content))
    return autotune.load(folder / "best.yaml")


def ways(folder: Path) -> dict[str, Callable[..., Any]]:
    """The ways of calling, each compiled and settled."""
    model, x = tiny(), torch.ones(2, 4)
    loaded = answer(folder)
    made = {
        "bare": torch.compile(model, backend="inductor", mode="default", dynamic=None, fullgraph=False),
        "loaded": loaded.apply(model, on_mismatch="raise"),
        "monitored": loaded.apply(tiny(), on_mismatch="raise", monitor=True),
    }
    for each in made.values():
        for _ in range(100):
            each(x)
    for name in ("loaded", "monitored"):
        stats = autotune.stats(made[name])
        assert stats is not None
        assert stats.state == "tuned", stats
    return made


def burst_s(call: Callable[..., Any], num_calls: int) -> float:
    """Seconds of a call."""
    x = torch.ones(2, 4)
    start = time.perf_counter()
    for _ in range(num_calls):
        call(x)
    return (time.perf_counter() - start) / num_calls


def measure(num_rounds: int, num_calls: int) -> dict[str, list[float]]:
    """Seconds of a call in each burst of each way."""
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        calls = ways(Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(num_rounds):
            for name in generator.sample(list(calls), len(calls)):
                seconds[name].append(burst_s(calls[name], num_calls))
    return seconds


def added_s(seconds: dict[str, list[float]], name: str) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile of what a way adds to the bare call of the same round."""
    added = [one - bare for one, bare in zip(seconds[name], seconds["bare"], strict=True)]
    tenths = statistics.quantiles(added, n=10)
    return statistics.median(added), tenths[0], tenths[-1]


def report_of(seconds: dict[str, list[float]]) -> Report:
    """The section."""
    rows = [["bare `torch.compile`", f"{statistics.median(seconds['bare']) * 1e6:.2f} µs", ""]]
    for name in ("loaded", "monitored"):
        median_s, low_s, high_s = added_s(seconds, name)
        added = f"{median_s * 1e6:+.2f} µs ({low_s * 1e6:+.2f} to {high_s * 1e6:+.2f})"
        rows.append([name, f"{statistics.median(seconds[name]) * 1e6:.2f} µs", added])
    loaded_s = added_s(seconds, "loaded")[0]
    return Report(
        name="loader",
        title="What the loaded model costs a call",
        about=(
            "A compiled model of one small layer, called bare, through `autotune.load(...).apply(model)` once it has "
            "settled, and with `monitor=True`. In brackets: 10th and 90th percentile over rounds."
        ),
        goals=[Goal("under 2 µs a call over bare torch.compile", f"{loaded_s * 1e6:.2f} µs", loaded_s < LIMIT_S)],
        body=table(["called", "a call", "added"], rows),
        results={"seconds": seconds},
    )


def main() -> None:
    """Measure, and the section."""
    parser = argparse.ArgumentParser(description="What the loaded model costs a call.")
    parser.add_argument("--rounds", type=int, default=60, help="of a burst of each (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=5000, help="in a burst (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few short bursts")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.calls = 5, 200
    conditions = Conditions.now()
    publish(report_of(measure(given.rounds, given.calls)), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
