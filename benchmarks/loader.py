"""What the loaded model costs a call, over the bare compiled one, and in memory.

A torch model is compiled with inductor; the same compiled code is then called bare, through a loaded model that has
settled, and through one that is monitored, in bursts that take turns in random order. What is compared is the time of
a call in each burst, so that whatever else the machine does, it does to all of them. Frozen code is compared with
frozen code that nobody watches, which is what a job would have that sets `torch._inductor.config.freezing` itself.

`launch --apply` and `try` change a whole process: there a small job is run in each way, in processes that take turns.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import torch
import torch._inductor.config
import yaml

import autotune
from autotune.backends.torch.frozen import FrozenWeights
from autotune.job.load import Loaded
from autotune.models.torch.vit import vit
from benchmarks.evidence import REPOSITORY, Benchmark, Goal, table
from benchmarks.made_up_export import CONFIG, made_up_export

PLAIN_SHARE, FROZEN_SHARE = 0.1, 0.02
"""Of a call of the smallest model, and of a ViT's: a share, since machines differ by more than the wrapper costs."""
FROZEN = {**CONFIG, "freezing": True}
Calls = dict[str, Callable[[], Any]]
CHECK = "check of frozen weights"
JOB = "one layer, in a job"
JOB_FILE = """
import sys, time
import torch

class OneLayer(torch.nn.Sequential):
    pass

way, begun, num = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
net, x = OneLayer(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.ones(2, 4)
if way == "bare":
    net = torch.compile(net, backend="inductor", mode="default", dynamic=None, fullgraph=False)
if way == "loaded":
    import autotune
    net = autotune.load("best.yaml").apply(net, on_mismatch="raise")
ready_s = time.time() - begun
with torch.no_grad():
    for _ in range(500):
        net(x)
    start = time.perf_counter()
    for _ in range(num):
        net(x)
    print(ready_s, (time.perf_counter() - start) / num)
"""
_CLI = [sys.executable, str(REPOSITORY / "cli.py")]
JOB_WAYS: dict[str, list[str]] = {
    "untuned": [],
    "bare": [],
    "loaded": [],
    "applied": [*_CLI, "launch", "best.yaml", "--apply", "--"],
    "tried": [*_CLI, "try", "best.yaml", "--"],
}
"""How a job's calls are made -> what stands in front of its command."""
_IN_WORDS = {
    "untuned": "untuned",
    "bare": "bare `torch.compile`",
    "loaded": "loaded, in the job's two lines",
    "applied": "`launch --apply`",
    "tried": "`try`, tuned in half of the calls",
}


@dataclass(frozen=True)
class Case:
    """A model under a config, in rounds of bursts of calls; without a model the check of frozen weights, or jobs."""

    name: str
    make: Callable[[], tuple[torch.nn.Module, torch.Tensor]] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    rounds: int = 60
    calls: int = 5000


def tiny() -> tuple[torch.nn.Module, torch.Tensor]:
    """As little work as a compiled call can hold."""
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.ones(2, 4)


def large() -> tuple[torch.nn.Module, torch.Tensor]:
    """A ViT, with some 150 tensors to watch."""
    built: dict[str, Any] = vit()
    inputs = built["inputs"]
    return built["model"], inputs[0] if isinstance(inputs, tuple) else inputs


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    parser.add_argument("--rounds", type=int, default=60, help="of a burst of each (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=5000, help="in a burst (default: %(default)s)")


def cases(given: argparse.Namespace) -> list[Case]:
    """Models, and the check of frozen weights; for a smoke run a few short bursts."""
    rounds, calls = (5, 200) if given.quick else (given.rounds, given.calls)
    return [
        Case("one layer", tiny, CONFIG, rounds, calls),
        Case("one layer, frozen", tiny, FROZEN, rounds, calls),
        Case("ViT", large, CONFIG, rounds, max(1, calls // 500)),
        Case("ViT, frozen", large, FROZEN, rounds, max(1, calls // 500)),
        Case(CHECK),
        Case(JOB, rounds=max(2, rounds // 10), calls=20 * calls),
    ]


def answer(made: tuple[torch.nn.Module, torch.Tensor], config: dict[str, Any], folder: Path) -> Loaded:
    """An answer for a model and its input, on this machine."""
    content = made_up_export(*made, config)
    content["evidence"]["best"]["latency_s"] = {"p50": 10.0, "p90": 10.0, "p99": 10.0}
    (folder / "best.yaml").write_text(yaml.safe_dump(content))
    return autotune.load(folder / "best.yaml")


def ways(make: Callable[[], tuple[torch.nn.Module, torch.Tensor]], config: dict[str, Any], folder: Path) -> Calls:
    """The ways of calling, each compiled and settled."""
    loaded, x = answer(make(), config, folder), make()[1]
    bare = torch.compile(make()[0], backend="inductor", mode="default", dynamic=None, fullgraph=False)
    with torch._inductor.config.patch(freezing=bool(config.get("freezing"))):
        bare(x)
    made: dict[str, Any] = {
        "bare": bare,
        "loaded": loaded.apply(make()[0], on_mismatch="raise"),
        "monitored": loaded.apply(make()[0], on_mismatch="raise", monitor=True),
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


def run(case: Case) -> Bursts | Watch | Jobs:
    """Seconds of a call in each burst of each way, or in each job, or what the check takes."""
    if case.make is None:
        return watch() if case.name == CHECK else jobs(case)
    generator = random.Random(0)
    torch._dynamo.reset()  # What was compiled for the last case would serve this one, frozen or not.
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        calls = ways(case.make, case.config, Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(case.rounds):
            for name in generator.sample(list(calls), len(calls)):
                seconds[name].append(burst_s(calls[name], case.calls))
    return Bursts(case.name, seconds)


@dataclass(frozen=True)
class Bursts:
    """Seconds of a call of one model in each burst of each way."""

    model: str
    seconds: dict[str, list[float]]

    @property
    def bare_s(self) -> float:
        return statistics.median(self.seconds["bare"])

    def added_s(self, name: str) -> tuple[float, float, float]:
        """Median, 10th and 90th percentile of what a way adds to the bare call of the same round."""
        added = [one - bare for one, bare in zip(self.seconds[name], self.seconds["bare"], strict=True)]
        tenths = statistics.quantiles(added, n=10)
        return statistics.median(added), tenths[0], tenths[-1]

    def rows(self) -> list[list[str]]:
        rows = [[self.model, "bare `torch.compile`", f"{self.bare_s * 1e6:.2f} µs", ""]]
        for name in ("loaded", "monitored"):
            median_s, low_s, high_s = self.added_s(name)
            added = f"{median_s * 1e6:+.2f} µs ({low_s * 1e6:+.2f} to {high_s * 1e6:+.2f})"
            rows.append([self.model, name, f"{statistics.median(self.seconds[name]) * 1e6:.2f} µs", added])
        return rows


@dataclass(frozen=True)
class Watch:
    """What it takes to watch the ViT's weights."""

    num_tensors: int
    weights_bytes: int
    taken_bytes: int
    check_s: float
    """One check after the other."""
    check_in_place_s: float
    """Right after a call of the model, which leaves little of what the check reads in the processor's caches."""


def watch() -> Watch:
    """Timed by itself: within a call of some milliseconds a check cannot be told from noise."""
    model, x = large()
    weights = list(model.state_dict(keep_vars=True).values())
    before = psutil.Process().memory_info().rss
    frozen = FrozenWeights()
    frozen.add(weights)
    taken = psutil.Process().memory_info().rss - before
    seconds = [burst_s(frozen.have_changed, 200) for _ in range(50)]
    in_place = []
    with torch.no_grad():
        for _ in range(200):
            model(x)
            in_place.append(burst_s(frozen.have_changed, 1))
    num_bytes = sum(each.numel() * each.element_size() for each in weights)
    return Watch(len(weights), num_bytes, max(taken, 0), statistics.median(seconds), statistics.median(in_place))


@dataclass(frozen=True)
class Jobs:
    """Way -> of each of its processes the seconds until the first call, and of a call."""

    found_s: dict[str, list[tuple[float, float]]]

    def call_s(self, way: str) -> list[float]:
        return [each for _, each in self.found_s[way]]

    def added_s(self, way: str) -> list[float]:
        """What a way adds to the bare call of the same round; `try` to a call that is untuned or applied by turns."""
        base = self.call_s("bare")
        if way == "tried":
            pairs = zip(self.call_s("untuned"), self.call_s("applied"), strict=True)
            base = [(one + other) / 2 for one, other in pairs]
        return [one - other for one, other in zip(self.call_s(way), base, strict=True)]

    def rows(self) -> list[list[str]]:
        rows = []
        for way, words in _IN_WORDS.items():
            added = ""
            if way not in ("untuned", "bare"):
                tenths = statistics.quantiles(self.added_s(way), n=10)
                median_s = statistics.median(self.added_s(way))
                added = f"{median_s * 1e6:+.2f} µs ({tenths[0] * 1e6:+.2f} to {tenths[-1] * 1e6:+.2f})"
            rows.append([JOB, words, f"{statistics.median(self.call_s(way)) * 1e6:.2f} µs", added])
        return rows

    def in_words(self) -> str:
        """Seconds until the first call."""
        ready = {way: statistics.median(each for each, _ in found) for way, found in self.found_s.items()}
        return (
            f"A job is ready for its first call after {ready['untuned']:.2f} s, with the two lines after "
            f"{ready['loaded']:.2f} s, under `launch --apply` after {ready['applied']:.2f} s and under `try` after "
            f"{ready['tried']:.2f} s."
        )


def jobs(case: Case) -> Jobs:
    """Jobs of one layer, each way in each round in an order by chance."""
    generator, found = random.Random(0), dict[str, list[tuple[float, float]]]()
    with tempfile.TemporaryDirectory() as folder:
        content = made_up_export(*tiny(), CONFIG)
        content["workload"]["signature"]["model_class"] = "job.OneLayer"
        content["evidence"]["best"]["latency_s"] = {"p50": 10.0, "p90": 10.0, "p99": 10.0}
        Path(folder, "best.yaml").write_text(yaml.safe_dump(content))
        Path(folder, "job.py").write_text(JOB_FILE)
        for _ in range(case.rounds):
            for way in generator.sample(list(JOB_WAYS), len(JOB_WAYS)):
                found.setdefault(way, []).append(_job_s(way, case.calls, folder))
    return Jobs({way: found[way] for way in JOB_WAYS})


def _job_s(way: str, num_calls: int, folder: str) -> tuple[float, float]:
    command = [*JOB_WAYS[way], sys.executable, "job.py", way, str(time.time()), str(num_calls)]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    ready_s, call_s = map(float, done.stdout.split())
    return ready_s, call_s


def judge(records: Sequence[Bursts | Watch | Jobs]) -> list[Goal]:
    """About the smallest call, and about the check of frozen weights."""
    bursts = {each.model: each for each in records if isinstance(each, Bursts)}
    plain = bursts["one layer"]
    plain_share = plain.added_s("loaded")[0] / plain.bare_s
    goal = Goal(
        f"at most {PLAIN_SHARE:.0%} of the smallest compiled call", f"{plain_share:.1%}", plain_share <= PLAIN_SHARE
    )
    share = _watch(records).check_in_place_s / bursts["ViT, frozen"].bare_s
    text = f"the check of frozen weights at most {FROZEN_SHARE:.0%} of a ViT's call"
    return [goal, Goal(text, f"{share:.2%}", share <= FROZEN_SHARE)]


def section(records: Sequence[Bursts | Watch | Jobs]) -> str:
    """Three rows for each model, and one for each way of a job."""
    cost, mib = _watch(records), 2**20
    about = (
        "A compiled model, called bare, through `autotune.load(...).apply(model)` once it has settled, and with "
        "`monitor=True`. In brackets: 10th and 90th percentile over rounds. Frozen weights are watched without a "
        f"copy: {cost.weights_bytes / mib:.1f} MiB in {cost.num_tensors} tensors take {cost.taken_bytes / mib:.1f} "
        f"MiB, a check {cost.check_in_place_s * 1e6:.1f} µs after a call, {cost.check_s * 1e6:.1f} µs after a check."
    )
    about += "".join(f" {each.in_words()}" for each in records if isinstance(each, Jobs))
    rows = [row for each in records if not isinstance(each, Watch) for row in each.rows()]
    return f"{about}\n\n{table(['model', 'called', 'a call', 'added'], rows)}"


def _watch(records: Sequence[Bursts | Watch | Jobs]) -> Watch:
    return next(each for each in records if isinstance(each, Watch))


BENCHMARK = Benchmark(
    "loader", "What the loaded model costs a call", __doc__, Bursts | Watch | Jobs, cases, run, judge, section, options
)

if __name__ == "__main__":
    BENCHMARK.main()
