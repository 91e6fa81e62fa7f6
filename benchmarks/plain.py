"""One model, one way of running it, timed as anyone would: no tuner, no supervisor, no backend of the product.

    python benchmarks/plain.py vit -o seen.json                        the model as it is
    python benchmarks/plain.py vit --settings best.yaml -o seen.json   torch.compile under an exported config
    python benchmarks/plain.py vit --default-compile -o seen.json      torch.compile with nothing said

Before it is timed the model has seen other data than what it was compiled for, as in any job: `torch.compile` first
treats a number that it reads from a tensor as a constant, and is faster for as long as it never changes.

Of the package only the definition of a bundled model is imported. What `best.yaml` says is read with PyYAML and handed
to `torch.compile` as it stands there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if TYPE_CHECKING:
    import torch

MIN_CALLS = 5
"""Of the warm-up, and of the timing: for models whose calls take seconds."""


def settings_of(path: Path) -> dict[str, Any] | None:
    """What an exported YAML hands to `torch.compile`; None where it says to leave the model as it is."""
    config: dict[str, Any] = dict(yaml.safe_load(path.read_text(encoding="utf-8"))["config"])
    return None if config.pop("execution") == "eager" else config


def build(name: str, seed: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A bundled model and its inputs."""
    module = importlib.import_module(f"autotune.models.torch.{name}")
    model, inputs = getattr(module, name)(seed=seed)
    return model, inputs


def call_for(call: Callable[[], object], seconds: float) -> list[float]:
    """Call again and again for so long, and at least `MIN_CALLS` times; seconds of each call."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < MIN_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def main() -> None:
    """Build, compile if told to, warm up, time, and write what was seen."""
    parser = argparse.ArgumentParser(description="Time one bundled torch model on the CPU, in plain code.")
    parser.add_argument("model", help="name of a bundled model, e.g. vit")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--settings", type=Path, help="an exported YAML whose config to compile with")
    way.add_argument("--default-compile", action="store_true", help="torch.compile(model), nothing said")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs (default: %(default)s)")
    parser.add_argument("--warmup-s", type=float, default=2.0, help="seconds of calls before (default: %(default)s)")
    parser.add_argument("--sampling-s", type=float, default=4.0, help="seconds of timed calls (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()

    import torch

    model, inputs = build(given.model, given.seed)
    _, other_inputs = build(given.model, given.seed + 1)
    settings = settings_of(given.settings) if given.settings else {} if given.default_compile else None
    step = model if settings is None else torch.compile(model, **settings)
    with torch.no_grad():
        start = time.perf_counter()
        step(*inputs)
        first_call_s = time.perf_counter() - start
        step(*other_inputs)
        call_for(lambda: step(*inputs), given.warmup_s)
        samples_s = call_for(lambda: step(*inputs), given.sampling_s)
    seen = {"median_s": statistics.median(samples_s), "num_calls": len(samples_s), "first_call_s": first_call_s}
    given.output.write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
