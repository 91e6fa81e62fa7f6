"""What a config hands to MindSpore, by release and device: pure, and no import of mindspore.

`knob_rows` has one row for each knob. "Measured" in a comment means: on MindSpore 2.10.0, CPU, Linux x86-64. Where a
setting has an old form (`ms.set_context`) and a new one, the old one is used: it holds from 2.3 to 2.10, and 2.10
follows it (measured: it reads back, and has its effect).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet

from autotune.backends.mindspore.knob_rows import KNOBS, REFUSED, Goes
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.workload.regions import KNOB, Region
from autotune.workload.workload import Device, Task

TARGETS: dict[Device, str] = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend"}
"""Device -> MindSpore's name for it."""
CPU_KERNEL_LIMIT = 6
"""On CPU the fusion compiler (AKG) takes more than 100 s for one kernel of nine chained *, tanh and +, and puts up to
200 operators into a kernel. Limited to 6, chains of 240 compile in 5 s, and the bundled models run as fast as without
the limit, within the noise (measured; with 7 the chains hang again)."""
PYNATIVE_FUSION = "MS_DEV_PYNATIVE_FUSION_FLAGS"
"""Read once, at the first operator that could be fused."""
_OLD_CAPTURE = {"ast": "PSJit", "bytecode": "PIJit"}
"""`ms.jit(mode=...)` of releases before 2.6, which have no `capture_mode`."""
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
    process: dict[str, Any] = {
        "context": {
            **_changed(config, Goes.CONTEXT),
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
        boost = {"infer_boost": "on"} if config.get("infer_boost", False) else {}
        return CompileArguments(**process, whole_graph=True, jit_config={"jit_level": level, **boost})
    capture, fullgraph = str(config.get("capture", "ast")), config.get("fullgraph", False)
    if _within(version, "<2.6"):
        syntax = {"jit_level": level, "jit_syntax_level": "STRICT" if fullgraph else "LAX"}
        return CompileArguments(**process, jit={"mode": _OLD_CAPTURE[capture]}, jit_config=syntax)
    options = {"capture_mode": capture, "jit_level": level, "fullgraph": fullgraph, **_jit_options(config)}
    return CompileArguments(**process, jit=options)


def _refuse(config: Config, version: str, device: Device) -> None:
    if "execution" not in config.root:
        raise InvalidConfigError("knob execution: is missing")
    for name in config.root:
        if name != KNOB:
            _refuse_value(name, config, version, device)
    for each in REFUSED:
        if config.matches(each.pattern) and device in each.devices and _within(version, each.versions):
            raise InvalidConfigError(f"{config}: {each.because} (this is {version} on {device})")


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
