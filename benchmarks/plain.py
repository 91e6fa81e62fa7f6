"""One model, one way of running it, timed as anyone would: no tuner, no supervisor, no backend of the product.

    python benchmarks/plain.py vit -o seen.json                        the model as it is
    python benchmarks/plain.py vit --settings best.yaml -o seen.json   torch.compile under an exported config
    python benchmarks/plain.py vit --default-compile -o seen.json      torch.compile with nothing said

Before it is timed the model has seen other data than what it was compiled for, as in any job: `torch.compile` first
treats a number that it reads from a tensor as a constant, and is faster for as long as it never changes.

Of the package only the definition of a bundled model is imported. What `best.yaml` says is read with PyYAML and done
here once more, as one would write it by hand from docs/knobs.md.
"""

from __future__ import annotations

import argparse
import ctypes
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

OPTIONS = {
    "cpp_wrapper": "cpp_wrapper",
    "max_autotune_gemm": "max_autotune_gemm",
    "max_autotune_gemm_backends": "max_autotune_gemm_backends",
    "epilogue_fusion": "epilogue_fusion",
    "layout_optimization": "layout_optimization",
    "weight_prepack": "cpp.weight_prepack",
    "decompose_tanh": "cpp.use_decompose_tanh",
}
"""Knob -> inductor's own name, for those that a CPU has."""


def settings_of(path: Path) -> dict[str, Any]:
    """The config of an exported YAML."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["config"])


def set_process(config: dict[str, Any]) -> None:
    """Everything of a config that holds for the whole process."""
    import torch
    import torch._dynamo.config
    import torch._inductor.config

    if config.get("threads"):
        torch.set_num_threads(config["threads"])
    if config.get("matmul_precision"):
        torch.set_float32_matmul_precision(config["matmul_precision"])
    if config.get("allocator") == "keep":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
    torch._inductor.config.freezing = bool(config.get("freezing"))
    torch._dynamo.config.allow_rnn = bool(config.get("allow_rnn"))


def under(config: dict[str, Any], model: torch.nn.Module) -> Callable[..., Any]:
    """The model under a config, to be called without gradients."""
    import torch

    if config.get("memory_format"):
        model = model.to(memory_format=getattr(torch, config["memory_format"]))  # type: ignore[call-overload]
    precision = config.get("precision")
    if precision == "bf16_cast":
        model = model.bfloat16()

    def step(*inputs: torch.Tensor) -> Any:
        if precision == "bf16_cast":
            inputs = tuple(each.bfloat16() if each.is_floating_point() else each for each in inputs)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16_autocast"):
            return model(*inputs)

    called = model if precision is None else step
    return called if config["execution"] == "eager" else torch.compile(called, **arguments_of(config))


def arguments_of(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments of torch.compile: a mode, or options that stand for the mode and the rest."""
    import torch._inductor

    arguments: dict[str, Any] = {
        name: config[name] for name in ("backend", "mode", "dynamic", "fullgraph") if name in config
    }
    options = {OPTIONS[name]: value for name, value in config.items() if name in OPTIONS and value is not None}
    if options:
        arguments["options"] = {**torch._inductor.list_mode_options(arguments.pop("mode", "default")), **options}
    return arguments


def build(name: str, seed: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A bundled model and its inputs."""
    module = importlib.import_module(f"autotune.models.torch.{name}")
    built = getattr(module, name)(seed=seed)
    model, inputs = (built["model"], built["inputs"]) if isinstance(built, dict) else built
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
    default = {"execution": "compile" if given.default_compile else "eager"}
    config = settings_of(given.settings) if given.settings else default
    set_process(config)
    step = under(config, model)
    with torch.inference_mode() if config.get("inference_mode") else torch.no_grad():
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
