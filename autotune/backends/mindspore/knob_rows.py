"""What this backend knows of each knob: one row for each, and the combinations that mean nothing.

`search_spaces/mindspore.yaml` says which values are worth trying where. What stands here is what a job must know of a
config from elsewhere: what it takes at all, into what it goes, and where it shows. Pure, and no import of mindspore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from autotune.config import Scalar
from autotune.workload.workload import Device

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
    "capture": Knob(("ast", "bytecode", "trace"), Goes.JIT, since={"2.6": ("trace",)}),
    "shapes": Knob(
        ("static", "automatic", "marked", "bounded", "bucketed", "chunked", "eager_rare"),
        Goes.JIT, since={"2.6": ("automatic",)},
    ),
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
        {"shapes": ["automatic", "marked", "bounded"], "capture": ["bytecode", "trace"]},
        "this capture compiles for each shape, whatever it is told (measured)",
    ),
    Unsupported({"capture": "trace", "fullgraph": True}, "fullgraph means nothing to capture trace"),
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
