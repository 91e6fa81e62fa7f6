"""Training steps of one torch model, timed as anyone would: no tuner, no backend of the product.

    python benchmarks/plain_training.py vit -o seen.json                        the step as it is
    python benchmarks/plain_training.py vit --settings best.yaml -o seen.json   as an exported config says

Of the package only the definition of a bundled model with its loss is imported. What the settings say is done here once
more, as one would write it by hand from docs/training.md.
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
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.plain import (
    arguments_of,
    autocast,
    call_for,
    function_of,
    known,
    on_device,
    set_process,
    sizes_of,
    start_anew,
    waiting,
)

LEARNING_RATE = 1e-4
Step = Callable[[], object]

TORCH_KNOBS = frozenset({"scope", "activation_memory_budget", "optimizer_impl", "optimizer_compiled"})
"""What the space for training offers beside that for inference."""


def settings_of(text: str | None) -> dict[str, Any]:
    """The config of an exported YAML, or one in JSON; the untuned one where nothing is given."""
    if text is None:
        return {"execution": "eager"}
    if text.startswith("{"):
        return dict(json.loads(text))
    return dict(yaml.safe_load(Path(text).read_text(encoding="utf-8"))["config"])


def torch_step(parts: dict[str, Any], config: dict[str, Any], batch: tuple[Any, ...]) -> Step:
    """Forward, loss, backward, Adam."""
    import torch
    import torch._functorch.config

    set_process(known(config, TORCH_KNOBS))
    torch._functorch.config.activation_memory_budget = config.get("activation_memory_budget", 1.0)
    model, loss = parts["model"], parts["loss"]
    if config.get("memory_format"):
        model = model.to(memory_format=getattr(torch, config["memory_format"]))
    impl = config.get("optimizer_impl")
    flags: dict[str, Any] = {impl: True} if impl else {}
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, **flags)
    compiled = config["execution"] == "compile"
    called = (
        torch.compile(model, **arguments_of(config)) if compiled and config.get("scope", "model") == "model" else model
    )

    def forward(*batch: torch.Tensor) -> Any:
        with autocast(config.get("precision"), batch[0].device.type):
            return loss(called, *batch)

    if compiled and config.get("scope") == "loss":
        forward = torch.compile(forward, **arguments_of(config))
    update = torch.compile(optimizer.step) if config.get("optimizer_compiled") else optimizer.step

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward(*batch).backward()
        update()

    return step


def torch_on(device: str, parts: dict[str, Any], config: dict[str, Any]) -> Step:
    """The step on a device. Parameters keep their identity, so the loss that was made with them stays right."""
    parts["model"].to(device)
    return waiting(torch_step(parts, config, on_device(batch_of(parts), device)), device)


def batch_of(parts: dict[str, Any]) -> tuple[Any, ...]:
    """Inputs and targets, one after the other."""
    inputs = parts["inputs"]
    return (*(inputs if isinstance(inputs, tuple) else (inputs,)), parts["targets"])


def main() -> None:
    """Build, train some steps, time the next, and write what was seen."""
    parser = argparse.ArgumentParser(description="Time training steps of a model, in plain code.")
    parser.add_argument("model", help="name of a bundled model that trains, e.g. vit, or FILE.py:FUNCTION")
    parser.add_argument("--settings", help="an exported YAML whose config to use, or a config in JSON")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE", help="for the model's function")
    parser.add_argument("--device", default="cpu", help="as torch names it (default: %(default)s)")
    parser.add_argument("--warmup-s", type=float, default=2.0, help="seconds of steps before (default: %(default)s)")
    parser.add_argument("--sampling-s", type=float, default=4.0, help="seconds of timed steps (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()

    config = settings_of(given.settings)
    start_anew(config)
    if given.device == "npu":
        importlib.import_module("torch_npu")
    parts = function_of(given.model, "autotune.models.torch.training")(seed=0, **sizes_of(given.size))
    step = torch_on(given.device, parts, config)
    start = time.perf_counter()
    step()
    first_step_s = time.perf_counter() - start
    call_for(step, given.warmup_s)
    samples_s = call_for(step, given.sampling_s)
    seen = {"median_s": statistics.median(samples_s), "num_steps": len(samples_s), "first_call_s": first_step_s}
    given.output.write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
