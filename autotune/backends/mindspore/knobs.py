"""What a config hands to MindSpore, by release and device: pure, and no import of mindspore.

`compile_arguments` alone knows which release takes what. "Measured" in a comment means: on MindSpore 2.10.0, CPU,
Linux x86-64. Where a setting has an old form (`ms.set_context`) and a new one, the old one is used: it holds from 2.3
to 2.10, and 2.10 follows it (measured: it reads back, and has its effect).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet

from autotune.config import Config, Scalar
from autotune.errors import InvalidConfigError
from autotune.workload.regions import KNOB, WHOLE, Region
from autotune.workload.workload import Device, Task

TARGETS: dict[Device, str] = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend"}
"""Device -> MindSpore's name for it."""
_VALUES: dict[str, tuple[Scalar, ...]] = {
    "execution": ("pynative", "graph", "jit"),
    "onednn_isa": (None, "SSE41", "AVX", "AVX2", "AVX512_CORE"),
    "capture": ("ast", "bytecode", "trace"),
    "shapes": ("static", "automatic", "marked", "bounded", "bucketed", "chunked", "eager_rare"),
    "jit_level": ("O0", "O1", "O2"),
    "fullgraph": (False, True),
    "graph_pipeline": (False, True),
    "launch_blocking": (False, True),
    "enable_graph_kernel": (False, True),
    "graph_kernel_opt_level": (1, 2, 3),
    "graph_kernel_transpose": (False, True),
    "graph_kernel_expand": ("default", "norms", "none"),
    "graph_kernel_parallel": (False, True),
    "graph_kernel_stitch": (False, True),
    "graph_kernel_matmul": (False, True),
    "amp_level": ("O0", "O2", "O3", "auto"),
    "amp_dtype": ("float16", "bfloat16"),
    "graph_kernel_limit": (None, 3, 6, 10),
    "memory_optimize_level": ("O0", "O1"),
    "exec_order": ("bfs", "dfs"),
    "kernel_launch": ("single", "group-2-4", "group-2-8", "group-4-8", "capture"),
    "precision_mode": (
        None,
        "must_keep_origin_dtype",
        "force_fp16",
        "allow_fp32_to_fp16",
        "allow_mix_precision_fp16",
        "allow_mix_precision_bf16",
    ),
    "op_compile": (None, False, True),
    "aclnn_global_cache": (False, True),
    "matmul_hf32": (False, True),
    "conv_hf32": (False, True),
    "conv_algorithm": ("normal", "performance"),
    "conv_tf32": (False, True),
    "matmul_tf32": (False, True),
    "format_transform": (False, True),
    "scope": ("step", "gradients", "model"),
    "step_pipeline": (False, True),
}
THREADS = ("kernel_threads", "dispatch_threads")
"""Knobs that take a number of threads; null leaves MindSpore's own choice."""

CPU_KERNEL_LIMIT = 6
"""On CPU the fusion compiler (AKG) takes more than 100 s for one kernel of nine chained *, tanh and +, and puts up to
200 operators into a kernel. Limited to 6, chains of 240 compile in 5 s, and the bundled models run as fast as without
the limit, within the noise (measured; with 7 the chains hang again)."""
_OLD_CAPTURE = {"ast": "PSJit", "bytecode": "PIJit"}
"""`ms.jit(mode=...)` of releases before 2.6, which have no `capture_mode`."""
_EXPAND = {"default": "", "norms": "--enable_expand_ops=LayerNorm,Softmax", "none": "--disable_expand_ops=GeLU,BiasAdd"}


@dataclass(frozen=True)
class _Refused:
    """A combination that some releases or devices ignore, or fail on without a clear word."""

    pattern: dict[str, object]
    because: str
    versions: str = ""
    devices: tuple[Device, ...] = ("cpu", "gpu", "ascend")


_CPU_ONLY: tuple[Device, ...] = ("gpu", "ascend")
_ASCEND_ONLY: tuple[Device, ...] = ("cpu", "gpu")
_GPU_ONLY: tuple[Device, ...] = ("cpu", "ascend")


def _all_but(knob: str, first: Scalar, because: str, devices: tuple[Device, ...]) -> _Refused:
    """Every value of a knob except the one that changes nothing."""
    return _Refused({knob: [v for v in _VALUES[knob] if v is not first]}, because, devices=devices)


# https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.jit.html and the same page of r2.5 to r2.8.
_REFUSED = (
    _Refused({"capture": "trace"}, "capture trace came with MindSpore 2.6", versions="<2.6"),
    _Refused(
        {"shapes": list(_VALUES["shapes"]), "execution": "pynative"}, "without a graph there is no code for a shape"
    ),
    _Refused({"shapes": "automatic", "execution": "graph"}, "dynamic is a setting of ms.jit"),
    _Refused({"shapes": "automatic"}, "ms.jit knows dynamic since 2.6", versions="<2.6"),
    _Refused(
        {"shapes": ["automatic", "marked", "bounded"], "capture": ["bytecode", "trace"]},
        "this capture compiles for each shape, whatever it is told (measured)",
    ),
    _Refused({"capture": "trace", "fullgraph": True}, "fullgraph means nothing to capture trace"),
    _Refused(
        {"execution": "jit", "jit_level": "O2"}, "ms.jit takes O0 and O1; O2 needs execution graph", versions=">=2.6"
    ),
    _Refused({"jit_level": "O2"}, "O2 compiles whole graphs with CANN's GE", devices=("cpu", "gpu")),
    _Refused({"jit_level": "O2"}, "O2 and its backend GE are deprecated since 2.9", versions=">=2.9"),
    _Refused({"execution": "pynative", "enable_graph_kernel": True}, "without a graph there is nothing to fuse"),
    _Refused({"execution": "graph", "launch_blocking": True}, "a graph launches its kernels without PyNative's queue"),
    _all_but("onednn_isa", None, "oneDNN computes on CPUs only", _CPU_ONLY),
    _all_but("exec_order", "bfs", "the order of kernels is chosen on Ascend only", _ASCEND_ONLY),
    _Refused({"exec_order": "dfs"}, "ms.jit knows exec_order since 2.6", versions="<2.6"),
    _all_but("kernel_launch", "single", "kernels are launched in groups, or captured, on Ascend only", _ASCEND_ONLY),
    _Refused({"kernel_launch": ["group-2-4", "group-2-8", "group-4-8"]}, "it came with MindSpore 2.6", versions="<2.6"),
    _Refused({"kernel_launch": "capture"}, "it came with MindSpore 2.7", versions="<2.7"),
    _all_but("precision_mode", None, "it is a setting of CANN", _ASCEND_ONLY),
    _all_but("op_compile", None, "it is a setting of CANN", _ASCEND_ONLY),
    _all_but("aclnn_global_cache", False, "it is a setting of CANN", _ASCEND_ONLY),
    _Refused({"aclnn_global_cache": True}, "it came with MindSpore 2.7", versions="<2.7"),
    _Refused({"execution": ["pynative", "jit"], "aclnn_global_cache": True}, "it acts in graph mode only"),
    _Refused({"matmul_hf32": True}, "HF32 is a type of Ascend's", devices=_ASCEND_ONLY),
    _Refused({"conv_hf32": False}, "HF32 is a type of Ascend's", devices=_ASCEND_ONLY),
    _all_but("conv_algorithm", "normal", "it is a setting of cuDNN", _GPU_ONLY),
    _Refused({"conv_tf32": False}, "TF32 is a type of NVIDIA's", devices=_GPU_ONLY),
    _Refused({"matmul_tf32": True}, "TF32 is a type of NVIDIA's", devices=_GPU_ONLY),
    _all_but("format_transform", True, "only on a GPU MindSpore changes the layout of tensors", _GPU_ONLY),
)


@dataclass(frozen=True)
class CompileArguments:
    """What a config hands to MindSpore. `jit` None: the Cell is not wrapped."""

    context: dict[str, Any]
    """For `ms.set_context`: holds for the process."""
    compiling: dict[str, Any] = field(default_factory=dict)
    """For `ms.set_context` while something is compiled, and only then."""
    whole_graph: bool = False
    """The Cell is called as in graph mode."""
    jit: dict[str, Any] | None = None
    """For `ms.jit`."""
    jit_config: dict[str, str] = field(default_factory=dict)
    """For `ms.JitConfig`: of the Cell in graph mode, of `ms.jit` before 2.6."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables that are read after the import: at the first operator, or the first compilation."""
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Function in `mindspore` -> its arguments: settings that have no other form."""
    region: Region = field(default_factory=Region)
    """The Cells that `ms.jit` wraps."""
    mixed_precision: tuple[str, str] | None = None
    """Level and type for `ms.amp.auto_mixed_precision`, which rewrites the Cell."""


def compile_arguments(config: Config, version: str, device: Device, task: Task = "infer") -> CompileArguments:
    """The config in the terms of a release and a device. Pure. Raises InvalidConfigError."""
    _refuse(config, version, device)
    execution, level = config["execution"], str(config.get("jit_level", "O0"))
    process: dict[str, Any] = {
        "context": {
            **_threads_and_memory(config),
            **_device_settings(config),
        },
        "compiling": _fusion(config, device, task),
        "variables": _variables(config),
        "calls": _calls(config),
        "region": _region(config),
        "mixed_precision": _mixed_precision(config),
    }
    if execution == "pynative":
        return CompileArguments(**process)
    if execution == "graph":
        return CompileArguments(**process, whole_graph=True, jit_config={"jit_level": level})
    capture, fullgraph = str(config.get("capture", "ast")), config.get("fullgraph", False)
    if _within(version, "<2.6"):
        syntax = {"jit_level": level, "jit_syntax_level": "STRICT" if fullgraph else "LAX"}
        return CompileArguments(**process, jit={"mode": _OLD_CAPTURE[capture]}, jit_config=syntax)
    options = {"capture_mode": capture, "jit_level": level, "fullgraph": fullgraph, **_jit_options(config)}
    return CompileArguments(**process, jit=options)


def _refuse(config: Config, version: str, device: Device) -> None:
    if "execution" not in config.root:
        raise InvalidConfigError("knob execution: is missing")
    settings = {name: value for name, value in config.root.items() if name != KNOB}
    for name, value in settings.items():
        if name in THREADS:
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidConfigError(f"knob {name}: {value!r} is neither null nor a whole number from 1")
        elif name == "amp_level" and value == "O1":
            raise InvalidConfigError("knob amp_level: O1 writes the model's class anew, which a job's Cell must not be")
        elif name not in _VALUES:
            raise InvalidConfigError(f"knob {name}: unknown to the mindspore backend")
        elif not config.matches({name: _VALUES[name]}):
            raise InvalidConfigError(f"knob {name}: {value!r} is none of its values")
    for each in _REFUSED:
        if config.matches(each.pattern) and device in each.devices and _within(version, each.versions):
            raise InvalidConfigError(f"{config}: {each.because} (this is {version} on {device})")


def _region(config: Config) -> Region:
    if KNOB in config.root and config["execution"] != "jit":
        raise InvalidConfigError(f"knob {KNOB}: is for execution=jit only; graph mode compiles whatever is called")
    return Region.parse(str(config.get(KNOB, WHOLE)))


def _within(version: str, versions: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def process_knobs(config: Config) -> tuple[str, ...]:
    """The knobs of a config that set something for the whole process."""
    return tuple(
        knob for knob in config.root if knob in OF_PROCESS and not config.matches({knob: _UNCHANGED.get(knob)})
    )


def _fusion(config: Config, device: Device, task: Task) -> dict[str, Any]:
    """Switches of graph-kernel fusion, which MindSpore reads when it compiles.

    https://www.mindspore.cn/tutorials/en/r2.10.0/custom_program/fusion_pass.html has what the flags mean. In training
    transpositions stay out of the fused kernels unless they are asked for: with them a CPU's gradients are wrong, for a
    ViT by 140 times the largest one (measured).
    """
    if not config.get("enable_graph_kernel", False):
        return {}
    limit = config.get("graph_kernel_limit") or (CPU_KERNEL_LIMIT if device == "cpu" else None)
    flags = [
        f"--opt_level={config.get('graph_kernel_opt_level', 2)}",
        f"--composite_op_limit_size={limit}" if limit else "",
        _EXPAND[str(config.get("graph_kernel_expand", "default"))],
        "" if config.get("graph_kernel_transpose", task == "infer") else "--disable_cluster_ops=Transpose",
        "--enable_cluster_ops=MatMul" if config.get("graph_kernel_matmul", False) else "",
        "--enable_parallel_fusion=true" if config.get("graph_kernel_parallel", False) else "",
        "--enable_stitch_fusion=true" if config.get("graph_kernel_stitch", False) else "",
    ]
    return {"enable_graph_kernel": True, "graph_kernel_flags": " ".join(filter(None, flags))}


_CONTEXT = {
    "launch_blocking": "pynative_synchronize",
    "kernel_threads": "runtime_num_threads",
    "dispatch_threads": "inter_op_parallel_num",
    "memory_optimize_level": "memory_optimize_level",
}
"""Knob -> the argument of `ms.set_context` that it is."""
_UNCHANGED: dict[str, Scalar] = {
    "launch_blocking": False,
    "memory_optimize_level": "O0",
    "conv_hf32": True,
    "matmul_hf32": False,
    "conv_tf32": True,
    "matmul_tf32": False,
    "conv_algorithm": "normal",
    "kernel_launch": "single",
    "aclnn_global_cache": False,
    "graph_pipeline": True,
    "step_pipeline": True,
}
"""MindSpore's own default of a knob: it is not set, so that whatever a job's author has set before stays."""


def _changed(config: Config, knobs: dict[str, str]) -> dict[str, Any]:
    """Those of the knobs that ask for something, under MindSpore's names for them."""
    asked = {name: config.get(knob) for knob, name in knobs.items() if not config.matches({knob: _UNCHANGED.get(knob)})}
    return {name: value for name, value in asked.items() if value is not None}


def _threads_and_memory(config: Config) -> dict[str, Any]:
    return _changed(config, _CONTEXT)


# https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.set_context.html: ascend_config, gpu_config.
_ASCEND = {
    "precision_mode": "precision_mode",
    "op_compile": "jit_compile",
    "matmul_hf32": "matmul_allow_hf32",
    "conv_hf32": "conv_allow_hf32",
}
_GPU = {"conv_algorithm": "conv_fprop_algo", "conv_tf32": "conv_allow_tf32", "matmul_tf32": "matmul_allow_tf32"}


OF_PROCESS = frozenset({*_CONTEXT, *_ASCEND, *_GPU, *_UNCHANGED, "onednn_isa"})
"""Knobs that MindSpore knows for the whole process only."""


def _device_settings(config: Config) -> dict[str, Any]:
    groups = {"ascend_config": _changed(config, _ASCEND), "gpu_config": _changed(config, _GPU)}
    return {name: settings for name, settings in groups.items() if settings}


def _jit_options(config: Config) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if config.get("shapes") == "automatic":
        options["dynamic"] = 1
    if config.get("exec_order", "bfs") != "bfs":
        options["exec_order"] = config["exec_order"]
    if not config.get("format_transform", True):
        options["disable_format_transform"] = True
    return options


def _variables(config: Config) -> dict[str, str]:
    variables = {}
    if config.get("onednn_isa") is not None:
        variables["ONEDNN_MAX_CPU_ISA"] = str(config["onednn_isa"])
    if not (config.get("graph_pipeline", True) and config.get("step_pipeline", True)):
        variables["MS_DEV_RUNTIME_CONF"] = "graph_pipeline:false"
    return variables


def _calls(config: Config) -> dict[str, dict[str, Any]]:
    calls: dict[str, dict[str, Any]] = {}
    launch, _, numbers = str(config.get("kernel_launch", "single")).partition("-")
    if launch == "capture":
        calls["runtime.set_kernel_launch_capture"] = {"enable_capture_graph": True}
    elif launch == "group":
        threads, groups = numbers.split("-")
        calls["runtime.set_kernel_launch_group"] = {"thread_num": int(threads), "kernel_group_num": int(groups)}
    if config.get("aclnn_global_cache", False):
        calls["device_context.ascend.op_tuning.aclnn_cache"] = {"enable_global_cache": True}
    return calls


def _mixed_precision(config: Config) -> tuple[str, str] | None:
    level = str(config.get("amp_level", "O0"))
    return None if level == "O0" else (level, str(config.get("amp_dtype", "float16")))
