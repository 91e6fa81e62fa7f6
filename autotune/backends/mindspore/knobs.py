"""What a config hands to MindSpore, by release and device: pure, and no import of mindspore.

`KNOBS` has one row for each knob. "Measured" in a comment means: on MindSpore 2.10.0, CPU, Linux x86-64. Where a
setting has an old form (`ms.set_context`) and a new one, the old one is used: it holds from 2.3 to 2.10, and 2.10
follows it (measured: it reads back, and has its effect).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from packaging.specifiers import SpecifierSet

from autotune.config import Config, Scalar
from autotune.errors import InvalidConfigError
from autotune.workload.regions import KNOB, Region
from autotune.workload.workload import Device, Task

# `search_spaces/mindspore.yaml` says which values are worth trying where. What stands here is what a job must know of a
# config from elsewhere: what it takes at all, into what it goes, and where it shows.

_ALL: tuple[Device, ...] = ("cpu", "gpu", "ascend")
_SWITCH: tuple[Scalar, ...] = (False, True)


class Goes(Enum):
    """Into what a knob goes. All but the last three hold for the whole process: MindSpore knows no other form."""

    CONTEXT = "an argument of ms.set_context"
    ASCEND = "an entry of its ascend_config"
    GPU = "an entry of its gpu_config"
    VARIABLE = "an environment variable"
    CALL = "a function of mindspore"
    JIT = "ms.jit or ms.JitConfig"
    FUSION = "graph_kernel_flags, which are set while the Cell is compiled"
    OTHER = "something that is made for this Cell"


class Shows(Enum):
    """Where the effect of a knob shows in the digest of what runs (`fingerprint`)."""

    AS_ASKED = "nowhere: it goes in as it was asked for"
    READ_BACK = "in the process: it goes in as it is in force"
    IN_KERNELS = "in the graphs of fused kernels; nothing of it reaches operators that PyNative runs one by one"
    IN_GRAPHS_ONLY = "nowhere, and it changes nothing in operators that PyNative runs one by one"


@dataclass(frozen=True)
class Knob:
    """A row of the table: all that this backend knows of a knob."""

    values: tuple[Scalar, ...] | None
    """What it takes; None: a number of threads, or null for MindSpore's own choice."""
    goes: Goes
    name: str = ""
    """MindSpore's name of the setting, where it is an argument or entry of its own."""
    plain: Scalar = None
    """MindSpore's own default: it is not set, so that whatever a job's author has set before stays."""
    shows: Shows = Shows.AS_ASKED
    devices: tuple[Device, ...] = _ALL
    """Where a value other than the plain one means something."""
    because: str = ""
    """Why it means nothing on other devices."""
    since: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    """Release -> values that came with it."""

    @property
    def is_of_process(self) -> bool:
        return self.goes in (Goes.CONTEXT, Goes.ASCEND, Goes.GPU, Goes.VARIABLE, Goes.CALL)


_CANN = "it is a setting of CANN"
_ON_ASCEND: tuple[Device, ...] = ("ascend",)
_ON_GPU: tuple[Device, ...] = ("gpu",)
_GRAPHS, _KERNELS, _READ = Shows.IN_GRAPHS_ONLY, Shows.IN_KERNELS, Shows.READ_BACK

# https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.jit.html and the same page of r2.5 to r2.8;
# .../mindspore.set_context.html has ascend_config and gpu_config.
KNOBS: dict[str, Knob] = {
    "execution": Knob(("pynative", "graph", "jit"), Goes.OTHER),
    "scope": Knob(("step", "gradients", "model"), Goes.OTHER, shows=_GRAPHS),
    "capture": Knob(("ast",), Goes.JIT),
    "shapes": Knob(("static", "automatic", "marked", "bounded", "bucketed"), Goes.JIT, since={"2.6": ("automatic",)}),
    "jit_level": Knob(("O0", "O1", "O2"), Goes.JIT, shows=_GRAPHS),
    "fullgraph": Knob(_SWITCH, Goes.JIT, shows=_GRAPHS),
    "infer_boost": Knob(
        _SWITCH, Goes.JIT, plain=False, shows=_GRAPHS, devices=_ON_ASCEND, because="its kernels are for Ascend",
        since={"2.4": (True,)},
    ),
    "exec_order": Knob(
        ("bfs", "dfs"), Goes.JIT, plain="bfs", shows=_GRAPHS, devices=_ON_ASCEND,
        because="the order of kernels is chosen on Ascend only", since={"2.6": ("dfs",)},
    ),
    "format_transform": Knob(
        _SWITCH, Goes.JIT, plain=True, shows=_GRAPHS, devices=_ON_GPU,
        because="only on a GPU MindSpore changes the layout of tensors",
    ),
    "enable_graph_kernel": Knob(_SWITCH, Goes.FUSION, shows=_KERNELS),
    "graph_kernel_opt_level": Knob((1, 2, 3), Goes.FUSION, shows=_KERNELS),
    "graph_kernel_limit": Knob((None, 3, 6, 10), Goes.FUSION, shows=_KERNELS),
    "graph_kernel_transpose": Knob(_SWITCH, Goes.FUSION, shows=_KERNELS),
    "graph_kernel_expand": Knob(("default", "norms", "none"), Goes.FUSION, shows=_KERNELS),
    "graph_kernel_matmul": Knob(_SWITCH, Goes.FUSION, shows=_GRAPHS),
    "graph_kernel_parallel": Knob(_SWITCH, Goes.FUSION, shows=_GRAPHS),
    "graph_kernel_stitch": Knob(_SWITCH, Goes.FUSION, shows=_GRAPHS),
    "amp_level": Knob(("O0", "O2", "O3", "auto"), Goes.OTHER),
    "amp_dtype": Knob(("float16", "bfloat16"), Goes.OTHER),
    "launch_blocking": Knob(_SWITCH, Goes.CONTEXT, "pynative_synchronize", plain=False, shows=_READ),
    "kernel_threads": Knob(None, Goes.CONTEXT, "runtime_num_threads", shows=_READ),
    "dispatch_threads": Knob(None, Goes.CONTEXT, "inter_op_parallel_num", shows=_READ),
    "memory_optimize_level": Knob(("O0", "O1"), Goes.CONTEXT, "memory_optimize_level", plain="O0", shows=_READ),
    "onednn_isa": Knob(
        (None, "SSE41", "AVX", "AVX2", "AVX512_CORE"), Goes.VARIABLE, shows=_READ, devices=("cpu",),
        because="oneDNN computes on CPUs only",
    ),
    "pynative_fusion": Knob(
        _SWITCH, Goes.VARIABLE, plain=False, devices=_ON_ASCEND, because="its kernels are for Ascend",
        since={"2.9": (True,)},
    ),
    "graph_pipeline": Knob(_SWITCH, Goes.VARIABLE, plain=True, shows=_GRAPHS),
    "step_pipeline": Knob(_SWITCH, Goes.VARIABLE, plain=True, shows=_GRAPHS),
    "kernel_launch": Knob(
        ("single", "group-2-4", "group-2-8", "group-4-8", "capture"), Goes.CALL, plain="single", shows=_GRAPHS,
        devices=_ON_ASCEND, because="kernels are launched in groups, or captured, on Ascend only",
        since={"2.6": ("group-2-4", "group-2-8", "group-4-8"), "2.7": ("capture",)},
    ),
    "aclnn_global_cache": Knob(
        _SWITCH, Goes.CALL, plain=False, devices=_ON_ASCEND, because=_CANN, since={"2.7": (True,)}
    ),
    "precision_mode": Knob(
        (
            None, "must_keep_origin_dtype", "force_fp16", "force_fp32", "allow_fp32_to_fp16", "allow_fp32_to_bf16",
            "allow_mix_precision", "allow_mix_precision_fp16", "allow_mix_precision_bf16",
        ),
        Goes.ASCEND, "precision_mode", devices=_ON_ASCEND, because=_CANN,
    ),
    "op_compile": Knob((None, False, True), Goes.ASCEND, "jit_compile", devices=_ON_ASCEND, because=_CANN),
    "matmul_hf32": Knob(
        _SWITCH, Goes.ASCEND, "matmul_allow_hf32", plain=False, devices=_ON_ASCEND, because="HF32 is a type of Ascend's"
    ),
    "conv_hf32": Knob(
        _SWITCH, Goes.ASCEND, "conv_allow_hf32", plain=True, devices=_ON_ASCEND, because="HF32 is a type of Ascend's"
    ),
    "conv_algorithm": Knob(
        ("normal", "performance"), Goes.GPU, "conv_fprop_algo", plain="normal", devices=_ON_GPU,
        because="it is a setting of cuDNN",
    ),
    "conv_tf32": Knob(
        _SWITCH, Goes.GPU, "conv_allow_tf32", plain=True, devices=_ON_GPU, because="TF32 is a type of NVIDIA's"
    ),
    "matmul_tf32": Knob(
        _SWITCH, Goes.GPU, "matmul_allow_tf32", plain=False, devices=_ON_GPU, because="TF32 is a type of NVIDIA's"
    ),
}  # fmt: skip
"""Knob -> its row."""
THREADS = tuple(name for name, knob in KNOBS.items() if knob.values is None)
"""Knobs that take a number of threads."""


@dataclass(frozen=True)
class Unsupported:
    """A combination that some releases or devices ignore, or fail on without a clear word."""

    pattern: dict[str, object]
    because: str
    versions: str = ""
    devices: tuple[Device, ...] = _ALL


REFUSED = (
    Unsupported(
        {"execution": "pynative", "shapes": KNOBS["shapes"].values}, "without a graph there is no code for a shape"
    ),
    Unsupported({"execution": "graph", "shapes": "automatic"}, "dynamic is a setting of ms.jit"),
    Unsupported(
        {"execution": "jit", "jit_level": "O2"}, "ms.jit takes O0 and O1; O2 needs execution graph", versions=">=2.6"
    ),
    Unsupported({"jit_level": "O2"}, "O2 compiles whole graphs with CANN's GE", devices=("cpu", "gpu")),
    Unsupported({"jit_level": "O2"}, "O2 and its backend GE are deprecated since 2.9", versions=">=2.9"),
    Unsupported({"infer_boost": True}, "infer_boost is deprecated since 2.10", versions=">=2.10"),
    Unsupported({"infer_boost": True, "execution": ["pynative", "jit"]}, "it is a setting of graph mode's JitConfig"),
    Unsupported({"infer_boost": True, "jit_level": ["O1", "O2"]}, "it acts at jit_level O0"),
    Unsupported({"execution": "pynative", "enable_graph_kernel": True}, "without a graph there is nothing to fuse"),
    Unsupported({"execution": ["graph", "jit"], "pynative_fusion": True}, "it fuses operators that PyNative runs"),
    Unsupported(
        {"execution": "graph", "launch_blocking": True}, "a graph launches its kernels without PyNative's queue"
    ),
    Unsupported({"execution": ["pynative", "jit"], "aclnn_global_cache": True}, "it acts in graph mode only"),
)
"""What single rows of the table do not say."""

TARGETS: dict[Device, str] = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend"}
"""Device -> MindSpore's name for it."""
CPU_KERNEL_LIMIT = 6
"""On CPU the fusion compiler (AKG) takes more than 100 s for one kernel of nine chained *, tanh and +, and puts up to
200 operators into a kernel. Limited to 6, chains of 240 compile in 5 s, and the bundled models run as fast as without
the limit, within the noise (measured; with 7 the chains hang again)."""
PYNATIVE_FUSION = "MS_DEV_PYNATIVE_FUSION_FLAGS"
"""Read once, at the first operator that could be fused."""
_EXPAND = {"default": "", "norms": "--enable_expand_ops=LayerNorm,Softmax", "none": "--disable_expand_ops=GeLU,BiasAdd"}


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
    process = CompileArguments(
        context={**_changed(config, Goes.CONTEXT), **_device_settings(config)},
        compiling=_fusion(config, device, task),
        variables=_variables(config),
        calls=_calls(config),
        region=_region(config),
        mixed_precision=_mixed_precision(config),
    )
    if execution == "pynative":
        return process
    if execution == "graph":
        boost = {"infer_boost": "on"} if config.get("infer_boost", False) else {}
        return replace(process, whole_graph=True, jit_config={"jit_level": level, **boost})
    fullgraph = config.get("fullgraph", False)
    if _within(version, "<2.6"):
        syntax = {"jit_level": level, "jit_syntax_level": "STRICT" if fullgraph else "LAX"}
        return replace(process, jit={"mode": "PSJit"}, jit_config=syntax)
    # Without it CANN's GE compiles on the Atlas training series, to which O0 and O1 mean nothing.
    backend = {"backend": "ms_backend"} if device == "ascend" and _within(version, "<2.9") else {}
    options = {"capture_mode": "ast", "jit_level": level, "fullgraph": fullgraph, **backend, **_jit_options(config)}
    return replace(process, jit=options)


def _refuse(config: Config, version: str, device: Device) -> None:
    if "execution" not in config.root:
        raise InvalidConfigError("knob execution: is missing")
    for name in config.root:
        if name != KNOB:
            _refuse_value(name, config, version, device)
    for refused in REFUSED:
        if config.matches(refused.pattern) and device in refused.devices and _within(version, refused.versions):
            raise InvalidConfigError(f"{config}: {refused.because} (this is {version} on {device})")


def _refuse_value(name: str, config: Config, version: str, device: Device) -> None:
    value = config[name]
    if name not in KNOBS:
        raise InvalidConfigError(f"knob {name}: unknown to the mindspore backend")
    knob = KNOBS[name]
    if knob.values is None:
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidConfigError(f"knob {name}: {value!r} is neither null nor a whole number from 1")
    elif name == "amp_level" and value == "O1":
        raise InvalidConfigError("knob amp_level: O1 writes the model's class anew, which a job's Cell must not be")
    elif not config.matches({name: knob.values}):
        raise InvalidConfigError(f"knob {name}: {value!r} is none of its values")
    here = f"(this is {version} on {device})"
    if device not in knob.devices and not config.matches({name: knob.plain}):
        raise InvalidConfigError(f"knob {name}: {value!r}: {knob.because} {here}")
    for release, values in knob.since.items():
        if config.matches({name: values}) and _within(version, f"<{release}"):
            raise InvalidConfigError(f"knob {name}: {value!r} came with MindSpore {release} {here}")


def _region(config: Config) -> Region:
    if KNOB in config.root and config["execution"] != "jit":
        raise InvalidConfigError(f"knob {KNOB}: is for execution=jit only; graph mode compiles whatever is called")
    return Region.of(config)


def _within(version: str, versions: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def process_knobs(config: Config) -> tuple[str, ...]:
    """The knobs of a config that set something for the whole process."""
    of_process = (name for name in config.root if name in KNOBS and KNOBS[name].is_of_process)
    return tuple(name for name in of_process if not config.matches({name: KNOBS[name].plain}))


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


def _changed(config: Config, goes: Goes) -> dict[str, Any]:
    """What the knobs that go there ask for, under MindSpore's names for them."""
    asked = {
        knob.name: config.get(name)
        for name, knob in KNOBS.items()
        if knob.goes is goes and not config.matches({name: knob.plain})
    }
    return {name: value for name, value in asked.items() if value is not None}


def _device_settings(config: Config) -> dict[str, Any]:
    groups = {"ascend_config": _changed(config, Goes.ASCEND), "gpu_config": _changed(config, Goes.GPU)}
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
    if config.get("pynative_fusion", False):
        variables[PYNATIVE_FUSION] = "--opt_level=1"
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
