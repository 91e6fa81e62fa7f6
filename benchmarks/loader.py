"""What the loaded model costs a call, over the bare compiled one, and in memory.

A torch model is compiled with inductor; the same compiled code is then called bare, through a loaded model that has
settled, and through one that is monitored, in bursts that take turns in random order. What is compared is the time of
a call in each burst, so that whatever else the machine does, it does to all of them. Frozen code is compared with
frozen code that nobody watches, which is what a job would have that sets `torch._inductor.config.freezing` itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import torch
import torch._inductor.config
import yaml

import autotune
from autotune import environment
from autotune.backends.torch.backend import TorchBackend
from autotune.backends.torch.frozen import FrozenWeights
from autotune.job.load import Loaded
from autotune.measure.measurement import structure_sha256
from autotune.models.torch.vit import vit
from benchmarks.record import REPOSITORY, Conditions, Goal, Report, publish, table

PLAIN_SHARE, FROZEN_SHARE = 0.1, 0.02
"""Of a call of the smallest model, and of a ViT's: a share, since machines differ by more than the wrapper costs."""
CONFIG = {"execution": "compile", "backend": "inductor", "mode": "default", "dynamic": None, "fullgraph": False}
FROZEN = {**CONFIG, "freezing": True}


@dataclass(frozen=True)
class Case:
    """A model under a config, and the share of a burst's calls that it is called."""

    name: str
    make: Callable[[], tuple[torch.nn.Module, torch.Tensor]]
    config: dict[str, Any]
    share: float = 1.0


def tiny() -> tuple[torch.nn.Module, torch.Tensor]:
    """As little work as a compiled call can hold."""
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.ones(2, 4)


def large() -> tuple[torch.nn.Module, torch.Tensor]:
    """A ViT, with some 150 tensors to watch."""
    built: dict[str, Any] = vit()
    inputs = built["inputs"]
    return built["model"], inputs[0] if isinstance(inputs, tuple) else inputs


CASES = (
    Case("one layer", tiny, CONFIG),
    Case("one layer, frozen", tiny, FROZEN),
    Case("ViT, frozen", large, FROZEN, 2e-3),
)


def answer(case: Case, folder: Path) -> Loaded:
    """An answer for the case's model, on this machine."""
    model, x = case.make()
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content.update(framework="torch", verdict="faster", config=case.config, untuned={"execution": "eager"})
    here = environment.describe(device="cpu", variables={}).model_dump(mode="json")
    content["environment"] = {**here, "framework_version": str(torch.__version__)}
    parameters = TorchBackend().parameters(model)
    inputs = [{"shape": list(x.shape), "dtype": "float32"}]
    content["workload"]["signature"].update(structure_sha256=structure_sha256(parameters), inputs=inputs)
    content["evidence"]["best"]["latency_s"] = {"p50": 10.0, "p90": 10.0, "p99": 10.0}
    (folder / "best.yaml").write_text(yaml.safe_dump(content))
    return autotune.load(folder / "best.yaml")


def ways(case: Case, folder: Path) -> dict[str, Callable[[], Any]]:
    """The ways of calling, each compiled and settled."""
    loaded, x = answer(case, folder), case.make()[1]
    bare = torch.compile(case.make()[0], backend="inductor", mode="default", dynamic=None, fullgraph=False)
    with torch._inductor.config.patch(freezing=bool(case.config.get("freezing"))):
        bare(x)
    made: dict[str, Any] = {
        "bare": bare,
        "loaded": loaded.apply(case.make()[0], on_mismatch="raise"),
        "monitored": loaded.apply(case.make()[0], on_mismatch="raise", monitor=True),
    }
    for each in made.values():
        for _ in range(50):
            each(x)
    for name in ("loaded", "monitored"):
        stats = autotune.stats(made[name])
        assert stats is not None
        assert stats.state == "tuned", stats
    return {name: lambda each=each: each(x) for name, each in made.items()}  # type: ignore[misc]


def burst_s(call: Callable[[], Any], num_calls: int) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - start) / num_calls


def measure(case: Case, num_rounds: int, num_calls: int) -> dict[str, list[float]]:
    """Seconds of a call in each burst of each way."""
    generator = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        calls = ways(case, Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(num_rounds):
            for name in generator.sample(list(calls), len(calls)):
                seconds[name].append(burst_s(calls[name], max(1, int(num_calls * case.share))))
    return seconds


@dataclass(frozen=True)
class Watch:
    """What it takes to watch the ViT's weights."""

    num_tensors: int
    weights_bytes: int
    taken_bytes: int
    check_s: float


def watch() -> Watch:
    """Measured by itself: beside a call of some milliseconds a check cannot be told from noise."""
    weights = list(large()[0].state_dict(keep_vars=True).values())
    before = psutil.Process().memory_info().rss
    frozen = FrozenWeights()
    frozen.add(weights)
    taken = psutil.Process().memory_info().rss - before
    seconds = [burst_s(frozen.have_changed, 200) for _ in range(50)]
    num_bytes = sum(each.numel() * each.element_size() for each in weights)
    return Watch(len(weights), num_bytes, max(taken, 0), statistics.median(seconds))


def added_s(seconds: dict[str, list[float]], name: str) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile of what a way adds to the bare call of the same round."""
    added = [one - bare for one, bare in zip(seconds[name], seconds["bare"], strict=True)]
    tenths = statistics.quantiles(added, n=10)
    return statistics.median(added), tenths[0], tenths[-1]


def report_of(found: dict[str, dict[str, list[float]]], cost: Watch) -> Report:
    """The section."""
    rows = []
    for case, seconds in found.items():
        rows.append([case, "bare `torch.compile`", f"{statistics.median(seconds['bare']) * 1e6:.2f} µs", ""])
        for name in ("loaded", "monitored"):
            median_s, low_s, high_s = added_s(seconds, name)
            added = f"{median_s * 1e6:+.2f} µs ({low_s * 1e6:+.2f} to {high_s * 1e6:+.2f})"
            rows.append([case, name, f"{statistics.median(seconds[name]) * 1e6:.2f} µs", added])
    plain = found["one layer"]
    plain_share = added_s(plain, "loaded")[0] / statistics.median(plain["bare"])
    share = cost.check_s / statistics.median(found["ViT, frozen"]["bare"])
    mib = 2**20
    return Report(
        name="loader",
        title="What the loaded model costs a call",
        about=(
            "A compiled model, called bare, through `autotune.load(...).apply(model)` once it has settled, and with "
            "`monitor=True`. Under frozen weights each call compares them with those that were compiled in. In "
            "brackets: 10th and 90th percentile over rounds. No copy of the weights is made: watching the "
            f"{cost.weights_bytes / mib:.1f} MiB of the ViT's {cost.num_tensors} tensors takes "
            f"{cost.taken_bytes / mib:.1f} MiB, and a check by itself {cost.check_s * 1e6:.1f} µs."
        ),
        goals=[
            Goal(
                f"at most {PLAIN_SHARE:.0%} of the smallest compiled call",
                f"{plain_share:.1%}",
                plain_share <= PLAIN_SHARE,
            ),
            Goal(
                f"the check of frozen weights at most {FROZEN_SHARE:.0%} of a ViT's call",
                f"{share:.2%}",
                share <= FROZEN_SHARE,
            ),
        ],
        body=table(["model", "called", "a call", "added"], rows),
        results={"seconds": found, "watch": dataclasses.asdict(cost)},
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
    found = {each.name: measure(each, given.rounds, given.calls) for each in CASES}
    publish(report_of(found, watch()), conditions, write=not given.quick)


if __name__ == "__main__":
    main()
