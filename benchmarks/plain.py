"""One model, one way of running it, timed as anyone would: no tuner, no supervisor, no backend of the product.

    python benchmarks/plain.py vit -o seen.json                        the model as it is
    python benchmarks/plain.py vit --settings best.yaml -o seen.json   torch.compile under an exported config
    python benchmarks/plain.py vit --default-compile -o seen.json      torch.compile with nothing said
    python benchmarks/plain.py vit --settings '{"execution": "compile", "mode": "lite"}' --device cuda -o seen.json

Before it is timed the model has seen other data than what it was compiled for, as in any job: `torch.compile` first
treats a number that it reads from a tensor as a constant, and is faster for as long as it never changes.

A sample ends when the device is done. Of the package only the definition of a bundled model is imported; a model of
another file is FILE.py:FUNCTION. What `best.yaml` says is read with PyYAML and done
here once more, as one would write it by hand from docs/knobs.md.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
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
    "shape_padding": "shape_padding",
    "coordinate_descent_tuning": "coordinate_descent_tuning",
    "cudagraph_trees": "triton.cudagraph_trees",
    "skip_dynamic_graphs": "triton.cudagraph_skip_dynamic_graphs",
    "persistent_tma": "triton.enable_persistent_tma_matmul",
    "all_directions": "coordinate_descent_check_all_directions",
    "conv_1x1_as_mm": "conv_1x1_as_mm",
    "combo_kernels": "combo_kernels",
    "multi_kernel": "triton.multi_kernel",
    "cooperative_reductions": "triton.cooperative_reductions",
    "dependent_launch": "triton.enable_pdl",
    "emulate_precision_casts": "emulate_precision_casts",
}
"""Knob -> inductor's own name."""

OTHERS = frozenset(
    {
        "execution", "backend", "mode", "dynamic", "fullgraph", "threads", "allocator", "matmul_precision", "freezing",
        "allow_rnn", "precision", "memory_format", "inference_mode", "region", "cores", "openmp",
        "sdpa", "cudnn_benchmark", "fp16_accumulation", "blas_library", "recompile_limit", "packed_linear",
        "env.KMP_BLOCKTIME", "env.OMP_PROC_BIND", "env.OMP_WAIT_POLICY",
    }
)  # fmt: skip
"""Knobs that are set below in ways of their own."""
KERNELS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
"""Value of `sdpa` -> PyTorch's name of the kernel that is tried first; the others follow in this order."""
AUTOCASTS = {"bf16_autocast": "bfloat16", "fp16_autocast": "float16"}


def settings_of(given: str | Path) -> dict[str, Any]:
    """The config of an exported YAML, or one in JSON. Exits where it has what this script does not know."""
    if str(given).startswith("{"):
        return known(dict(json.loads(str(given))))
    return known(dict(yaml.safe_load(Path(given).read_text(encoding="utf-8"))["config"]))


def known(config: dict[str, Any], further: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The config, if all of it is done here: what is left out in silence would be measured as if it were there."""
    unknown = {name for name, value in config.items() if value is not None} - OPTIONS.keys() - OTHERS - further
    if unknown:
        raise SystemExit(f"not known to this script: {', '.join(sorted(unknown))}")
    return config


PRELOADS = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4", "iomp": "libiomp5.so"}


def start_anew(config: dict[str, Any]) -> None:
    """What a process has from its start on: this script begins once more with it."""
    wanted = {name[4:]: str(value) for name, value in config.items() if name.startswith("env.") and value is not None}
    libraries = [PRELOADS[value] for value in (config.get("allocator"), config.get("openmp")) if value in PRELOADS]
    if libraries:
        wanted["LD_PRELOAD"] = ":".join(libraries)
    if config.get("allocator") == "huge_pages":
        wanted["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    cores = sorted(os.sched_getaffinity(0))[: config.get("cores")]
    if set(cores) != os.sched_getaffinity(0) or any(os.environ.get(name) != value for name, value in wanted.items()):
        os.sched_setaffinity(0, cores)
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def set_process(config: dict[str, Any]) -> None:
    """Everything of a config that holds for the whole process."""
    import torch
    import torch._dynamo.config
    import torch._inductor.config

    if config.get("threads"):
        torch.set_num_threads(config["threads"])
    if config.get("matmul_precision"):
        torch.set_float32_matmul_precision(config["matmul_precision"])
    if config.get("packed_linear") == "onednn":
        torch.backends.mkldnn.matmul.fp32_precision = "tf32"  # type: ignore[attr-defined] # See `end_of_compiling`.
    if config.get("allocator") == "keep":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD
    if config.get("cudnn_benchmark"):
        torch.backends.cudnn.benchmark = True
    if config.get("fp16_accumulation"):
        torch.backends.cuda.matmul.allow_fp16_accumulation = True
    if config.get("blas_library"):
        torch.backends.cuda.preferred_blas_library(config["blas_library"])
    if config.get("recompile_limit"):
        torch._dynamo.config.recompile_limit = config["recompile_limit"]
    torch._inductor.config.freezing = bool(config.get("freezing"))
    torch._dynamo.config.allow_rnn = bool(config.get("allow_rnn"))


def end_of_compiling(config: dict[str, Any]) -> None:
    """Put back what was set for the compiler alone."""
    import torch

    if config.get("packed_linear") == "onednn":
        torch.backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]


def under(config: dict[str, Any], model: torch.nn.Module) -> Callable[..., Any]:
    """The model under a config, to be called without gradients."""
    import torch

    if config.get("memory_format"):
        model = model.to(memory_format=getattr(torch, config["memory_format"]))  # type: ignore[call-overload]
    precision = config.get("precision")
    if precision == "bf16_cast":
        model = model.bfloat16()

    region = config.get("region", "whole")
    if region != "whole":
        compile_parts(model, region, arguments_of(config))

    def step(*inputs: torch.Tensor) -> Any:
        if precision == "bf16_cast":
            inputs = tuple(each.bfloat16() if each.is_floating_point() else each for each in inputs)
        with autocast(precision, device_of(model)), attention(config.get("sdpa")):
            return model(*inputs)

    called = model if precision is None and config.get("sdpa") is None else step
    is_whole = config["execution"] == "compile" and (region == "whole" or region.startswith("whole but "))
    return torch.compile(called, **arguments_of(config)) if is_whole else called


def compile_parts(model: torch.nn.Module, region: str, arguments: dict[str, Any]) -> None:
    """The knob `region`, in place: modules that are compiled on their own, or left out of a whole."""
    import torch

    left_out = region.startswith("whole but ")
    patterns = [each.strip() for each in region.removeprefix("whole but ").split(",")]
    for name, module in model.named_modules():
        if any(fnmatchcase(name, each) and name.count(".") == each.count(".") for each in patterns):
            if left_out:
                module.forward = torch.compiler.disable(module.forward)  # type: ignore[no-untyped-call]
            else:
                module.compile(**arguments)


def device_of(model: torch.nn.Module) -> str:
    """The type of the device on which its parameters are."""
    return next(model.parameters()).device.type


def autocast(precision: str | None, device: str) -> Any:
    """The knob `precision`, as a context."""
    import torch

    name = AUTOCASTS.get(str(precision))
    return torch.autocast(device, getattr(torch, name or "bfloat16"), enabled=name is not None)


def attention(first: str | None) -> Any:
    """The knob `sdpa`, as a context."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if first is None:
        return contextlib.nullcontext()
    order = [first, *(name for name in KERNELS if name != first)]
    return sdpa_kernel([getattr(SDPBackend, KERNELS[name]) for name in order], set_priority=True)


def on_device(value: Any, device: str) -> Any:
    """A model, or what is given to it, on the device."""
    return tuple(each.to(device) for each in value) if isinstance(value, (tuple, list)) else value.to(device)


def waiting(call: Callable[[], object], device: str) -> Callable[[], object]:
    """The call, which returns when the device is done."""
    import torch

    if device == "cpu":
        return call
    synchronise = torch.get_device_module(device).synchronize

    def whole() -> None:
        call()
        synchronise()

    return whole


def arguments_of(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments of torch.compile: a mode, or options that stand for the mode and the rest."""
    import torch._inductor

    arguments: dict[str, Any] = {
        name: config[name] for name in ("backend", "mode", "dynamic", "fullgraph") if name in config
    }
    said = {name: value for name, value in config.items() if name in OPTIONS and value is not None}
    if not said.get("coordinate_descent_tuning"):
        said.pop("coordinate_descent_tuning", None)  # Off by default; what a mode has on stays on.
    options = {OPTIONS[name]: value for name, value in said.items()}
    if options:
        arguments["options"] = {**torch._inductor.list_mode_options(arguments.pop("mode", "default")), **options}
    return arguments


def function_of(model: str, module: str) -> Callable[..., Any]:
    """What makes a model: FILE.py:FUNCTION, or the function of a bundled module."""
    place, _, function = model.rpartition(":")
    if not place:
        made: Callable[..., Any] = getattr(importlib.import_module(module), model)
        return made
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # Dynamo imports the module of what it inlines.
    spec.loader.exec_module(loaded)
    made = getattr(loaded, function)
    return made  # noqa: RET504


def sizes_of(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE for the model's function; a value is a number where it reads as one."""
    pairs = (each.partition("=") for each in given)
    return {name: int(value) if value.lstrip("-").isdigit() else value for name, _, value in pairs}


def build(
    name: str, seed: int, sizes: dict[str, Any] | None = None
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A model and its inputs."""
    built = function_of(name, f"autotune.models.torch.{name}")(seed=seed, **(sizes or {}))
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
    parser = argparse.ArgumentParser(description="Time one torch model, in plain code.")
    parser.add_argument("model", help="name of a bundled model, e.g. vit, or FILE.py:FUNCTION")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--settings", help="an exported YAML whose config to compile with, or a config in JSON")
    way.add_argument("--default-compile", action="store_true", help="torch.compile(model), nothing said")
    parser.add_argument("--device", default="cpu", help="as torch names it (default: %(default)s)")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE", help="for the model's function")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs (default: %(default)s)")
    parser.add_argument("--warmup-s", type=float, default=2.0, help="seconds of calls before (default: %(default)s)")
    parser.add_argument("--sampling-s", type=float, default=4.0, help="seconds of timed calls (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()

    default = {"execution": "compile" if given.default_compile else "eager"}
    config = settings_of(given.settings) if given.settings else default
    start_anew(config)
    import torch

    if given.device == "npu":
        importlib.import_module("torch_npu")
    sizes = sizes_of(given.size)
    model, inputs = (on_device(each, given.device) for each in build(given.model, given.seed, sizes))
    other_inputs = on_device(build(given.model, given.seed + 1, sizes)[1], given.device)
    set_process(config)
    step = under(config, model)
    with torch.inference_mode() if config.get("inference_mode") else torch.no_grad():
        call = waiting(lambda: step(*inputs), given.device)
        start = time.perf_counter()
        call()
        first_call_s = time.perf_counter() - start
        step(*other_inputs)
        end_of_compiling(config)
        call_for(call, given.warmup_s)
        samples_s = call_for(call, given.sampling_s)
    seen = {"median_s": statistics.median(samples_s), "num_calls": len(samples_s), "first_call_s": first_call_s}
    given.output.write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
