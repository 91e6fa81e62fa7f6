"""The process of `adaptive.py` in which a stream of calls is made once: eagerly, compiled, or adaptively.

python benchmarks/adaptive_job.py replay WAY BEST.YAML CASE       CASE as JSON; prints what was seen as JSON
python benchmarks/adaptive_job.py first-call                      what compiling the first shape takes
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune.workload.traffic import Load, Traffic

FEWEST = 12_000
"""Candidates in a frame."""
CLASSES, ROUNDS_OF_DAMPING = 80, 2


@dataclass(frozen=True)
class Case:
    """A kind of traffic. Shapes come in phases if `phase_calls` is not 0, each as often as its share asks for."""

    name: str
    about: str
    shares: tuple[float, ...]
    num_calls: int
    phase_calls: int = 0
    rounds: int = 1
    """Processes of each way."""

    def stream(self) -> list[int]:
        """Numbers of candidates, one for each call."""
        whole = sum(self.shares)
        loads = tuple(Load(sizes={"candidates": FEWEST + 16 * i}, share=s / whole) for i, s in enumerate(self.shares))
        traffic = Traffic(loads=loads)
        repeats = max(self.phase_calls, 1)
        drawn = traffic.stream(self.num_calls // repeats, seed=0)
        return [loads[index].sizes["candidates"] for index in drawn for _ in range(repeats)]


def first_call() -> dict[str, float]:
    """What compiling the first shape takes, and a call of it. Seconds."""
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
    """The stream, once. Inputs are made before the clock starts."""
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


def main() -> None:
    """As the docstring has it."""
    what, *given = sys.argv[1:]
    if what == "first-call":
        print(json.dumps(first_call()))
        return
    name, path, case = given
    print(json.dumps(replay(name, Case(**json.loads(case)), Path(path))))


if __name__ == "__main__":
    main()
