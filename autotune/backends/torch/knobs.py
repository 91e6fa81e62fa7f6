"""What each knob of PyTorch comes to: a pure mapping from a config to `Settings`. No torch in here.

A knob is handed over in the way that works, found by what inductor emits and not by what it accepts
(docs/knobs.md has the pairs). `KNOBS` has one row for each. Most of inductor's go through `torch.compile(options=...)`,
which keeps them to this model. Freezing and dynamo's own settings do not: they are set while this model is compiled
(`compiler`).

What changes the job's weights is no knob: casting them, and channels-last. Frozen code under autocast is as fast
(docs/decisions/0018-results-first.md).
"""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Literal, Union, get_args, get_origin

from autotune.config import Config, Scalar
from autotune.errors import InvalidConfigError, did_you_mean
from autotune.workload.regions import KNOB, Region

SHAPES = "shapes"
"""The knob that says what is done about calls of many shapes; it stands in for `dynamic`."""

DYNAMIC: dict[str, bool | None] = {
    "automatic": None,
    "static": False,
    "dynamic": True,
    "marked": None,
    "bounded": None,
    "bucketed": False,
}
"""Value of the knob `shapes` -> torch.compile's `dynamic`. What else a strategy does is not torch's: `strategy`."""

_OPEN = ("dynamic", "marked", "bounded")
"""Values of the knob `shapes` under which code is for several shapes."""

AUTOCASTS = {"bf16_autocast": "bfloat16", "fp16_autocast": "float16"}
"""Value of the knob `precision` -> torch's name of the element type."""

_LIMITS: dict[str, Scalar] = {"bucketed": 64}
"""Value of the knob `shapes` -> the limit of compilations that it needs: they mean to compile so often."""


class Goes(Enum):
    """Into what a knob goes."""

    ARGUMENT = "arguments of torch.compile"
    INDUCTOR = "torch._inductor.config, as options= of torch.compile"
    COMPILER = "torch._inductor.config, set while this model is compiled: dynamo reads it"
    DYNAMO = "torch._dynamo.config, set while this model is compiled"
    FUNCTORCH = "torch._functorch.config, set while this model is compiled: AOTAutograd reads it"
    OPENVINO = "options= of torch.compile, for OpenVINO's backend"
    PROCESS = "a setting of the process"
    OTHER = "something that is made for this model"


_SWITCH: tuple[Scalar, ...] = (False, True)
_OF_THE_COMPILER = (Goes.ARGUMENT, Goes.INDUCTOR, Goes.COMPILER, Goes.DYNAMO, Goes.FUNCTORCH, Goes.OPENVINO)
_OF_INDUCTOR = (Goes.INDUCTOR, Goes.COMPILER)

_WELL_KNOWN = ("inductor", "eager", "aot_eager", "cudagraphs", "npugraph_ex", "npugraphs", "torchair")
"""Backends of PyTorch and of torch_npu. Any other is brought by another package, or by the user."""
_THROUGH_INDUCTOR = ("inductor", "zentorch")
"""Backends whose graphs inductor compiles: what it emits, caches and counts is all of the program."""
BROUGHT_BY = {"zentorch": "zentorch", "openvino": "openvino.torch"}
"""Backend -> the module whose import registers it, of packages whose ways are known."""
_OF_ONE_SHAPE = ("openvino",)
"""Backends whose code is for one shape. OpenVINO's compiles a graph again, within itself, for each shape that it gets,
and stacks these in each other."""


@dataclass(frozen=True)
class Knob:
    """A row of the table: all that this backend knows of a knob."""

    goes: Goes
    name: str = ""
    """The setting's name, where it is not the knob's own."""
    plain: Scalar = None
    """The value that leaves the setting as it is, where the setting is an entry of a `config` module."""
    values: tuple[Scalar, ...] | None = None
    """What it takes; None: whatever PyTorch takes."""
    compile_only: bool = False
    """Whether the knob means nothing to an eager model. Settings of the compiler need no such mark."""
    only_for: tuple[str, ...] = ()
    """Backends of torch.compile to which it means something; none: all, and inductor for the entries of its config."""

    @property
    def needs_compile(self) -> bool:
        return self.compile_only or self.goes in _OF_THE_COMPILER

    @property
    def backends(self) -> tuple[str, ...]:
        """Those that it is for; none: all."""
        return self.only_for or (("inductor",) if self.goes in _OF_INDUCTOR else ())


KNOBS: dict[str, Knob] = {
    "execution": Knob(Goes.OTHER),
    KNOB: Knob(Goes.OTHER, compile_only=True),
    SHAPES: Knob(Goes.ARGUMENT, "dynamic", values=tuple(DYNAMIC)),
    "backend": Knob(Goes.ARGUMENT),
    "mode": Knob(Goes.ARGUMENT, only_for=("inductor",)),
    "dynamic": Knob(Goes.ARGUMENT, values=(None, False, True)),
    "fullgraph": Knob(Goes.ARGUMENT, values=_SWITCH),
    "torchair_mode": Knob(Goes.OTHER, compile_only=True, only_for=("torchair",)),
    "openvino_device": Knob(Goes.OPENVINO, "device", only_for=("openvino",)),
    "openvino_precision": Knob(Goes.OPENVINO, "precision", values=("f32", "bf16", "f16"), only_for=("openvino",)),
    "openvino_cache": Knob(Goes.OPENVINO, "cache", values=_SWITCH, only_for=("openvino",)),
    "scope": Knob(Goes.OTHER, values=("model", "loss"), compile_only=True),
    "cpp_wrapper": Knob(Goes.INDUCTOR, plain=False, values=_SWITCH),
    "max_autotune_gemm": Knob(Goes.INDUCTOR, plain=False, values=_SWITCH),
    "max_autotune_gemm_backends": Knob(Goes.INDUCTOR, values=(None, "CPP", "TRITON", "ATEN,TRITON,CUTLASS")),
    "epilogue_fusion": Knob(Goes.INDUCTOR, plain=True, values=_SWITCH),
    "shape_padding": Knob(Goes.INDUCTOR, plain=True, values=_SWITCH),
    "layout_optimization": Knob(Goes.INDUCTOR, plain=True, values=_SWITCH),
    "coordinate_descent_tuning": Knob(Goes.INDUCTOR, plain=False, values=_SWITCH),
    "skip_dynamic_graphs": Knob(Goes.INDUCTOR, "triton.cudagraph_skip_dynamic_graphs", plain=False, values=_SWITCH),
    "cudagraph_trees": Knob(Goes.INDUCTOR, "triton.cudagraph_trees", plain=True, values=_SWITCH),
    "persistent_tma": Knob(Goes.INDUCTOR, "triton.enable_persistent_tma_matmul", plain=False, values=_SWITCH),
    "all_directions": Knob(Goes.INDUCTOR, "coordinate_descent_check_all_directions", plain=False, values=_SWITCH),
    "conv_1x1_as_mm": Knob(Goes.INDUCTOR, plain=False, values=_SWITCH),
    "combo_kernels": Knob(Goes.INDUCTOR, plain=False, values=_SWITCH),
    "multi_kernel": Knob(Goes.INDUCTOR, "triton.multi_kernel", plain=0, values=(0, 1)),
    "cooperative_reductions": Knob(Goes.INDUCTOR, "triton.cooperative_reductions", plain=False, values=_SWITCH),
    "dependent_launch": Knob(Goes.INDUCTOR, "triton.enable_pdl", plain=False, values=_SWITCH),
    "npu_backend": Knob(Goes.INDUCTOR, values=(None, "mlir", "dvm")),
    "emulate_precision_casts": Knob(Goes.INDUCTOR, plain=False, values=_SWITCH),
    "weight_prepack": Knob(Goes.INDUCTOR, "cpp.weight_prepack", plain=True, values=_SWITCH),
    "decompose_tanh": Knob(Goes.INDUCTOR, "cpp.use_decompose_tanh", plain=False, values=_SWITCH),
    "zentorch_freezing": Knob(Goes.COMPILER, "freezing", plain=False, values=_SWITCH, only_for=("zentorch",)),
    "freezing": Knob(Goes.COMPILER, plain=False, values=_SWITCH),
    "packed_linear": Knob(Goes.OTHER, values=("mkl", "onednn"), compile_only=True, only_for=("inductor",)),
    "allow_rnn": Knob(Goes.DYNAMO, plain=False, values=_SWITCH),
    "recompile_limit": Knob(Goes.DYNAMO, plain=8, values=(8, 64)),
    "fallback_random": Knob(Goes.INDUCTOR, plain=False, values=_SWITCH),
    "activation_memory_budget": Knob(Goes.FUNCTORCH, plain=1.0),
    "sdpa": Knob(Goes.OTHER, values=(None, "cudnn", "flash", "efficient", "math"), compile_only=True),
    "precision": Knob(Goes.OTHER, values=(None, *AUTOCASTS)),
    "matmul_precision": Knob(Goes.PROCESS, values=(None, "highest", "high", "medium")),
    "cudnn_benchmark": Knob(Goes.PROCESS, values=(None, True)),
    "fp16_accumulation": Knob(Goes.PROCESS, values=(None, True)),
    "blas_library": Knob(Goes.PROCESS, values=(None, "cublas", "cublaslt")),
    "threads": Knob(Goes.PROCESS),
    "allocator": Knob(Goes.PROCESS, values=(None, "keep")),
    "cache": Knob(Goes.OTHER, values=("dynamic", "static", "transformers")),
    "cache_length": Knob(Goes.OTHER),
    "prefill": Knob(Goes.OTHER, values=("eager", "compile", "compile_dynamic"), compile_only=True),
    "optimizer_impl": Knob(Goes.OTHER, values=(None, "foreach", "fused")),
    "optimizer_compiled": Knob(Goes.OTHER, values=_SWITCH),
}
"""Knob -> its row."""

OPTIONS: dict[str, Knob] = {"inductor": Knob(Goes.INDUCTOR), "dynamo": Knob(Goes.DYNAMO)}
"""Beginning of the name of a knob that is an option of the compiler, as `inductor.max_fusion_size` -> its row. Which of
them are taken, `options` says."""

OWN_KNOBS: dict[str, str] = {
    **{f"inductor.{k.name or n}": n for n, k in KNOBS.items() if k.goes in (Goes.INDUCTOR, Goes.COMPILER)},
    **{f"dynamo.{k.name or n}": n for n, k in KNOBS.items() if k.goes is Goes.DYNAMO},
    **dict.fromkeys(("inductor.max_autotune", "inductor.max_autotune_pointwise", "inductor.triton.cudagraphs"), "mode"),
    **dict.fromkeys(("dynamo.automatic_dynamic_shapes", "dynamo.assume_static_by_default"), "dynamic"),
    "inductor.cpp.threads": "threads",
}
"""Option -> the knob that sets it: there it is bounded, and what has to stand around it does."""


@dataclass(frozen=True)
class Settings:
    """One config in PyTorch's own terms. `None` everywhere: as the job has it."""

    compiled: bool
    region: Region = field(default_factory=Region)
    backend: str = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    options: dict[str, Scalar] = field(default_factory=dict)
    """Entries of inductor's config for this model alone; those of `mode` are not among them."""
    compiler_options: dict[str, Scalar] = field(default_factory=dict)
    """Entries of inductor's config that dynamo reads."""
    dynamo_options: dict[str, Scalar] = field(default_factory=dict)
    """Entries of dynamo's config."""
    packs_for_onednn: bool = False
    """Frozen linear layers in float32 are packed for oneDNN, in place of MKL."""
    torchair_mode: str | None = None
    openvino: dict[str, Scalar] = field(default_factory=dict)
    """What OpenVINO's backend is asked for: `device`, `precision`, `cache`."""
    autocast: str | None = None
    """Element type that torch.autocast computes in."""
    attention: str | None = None
    """The kernel that scaled_dot_product_attention tries first."""
    matmul_precision: str | None = None
    cudnn_benchmark: bool = False
    """cuDNN times its algorithms for each convolution, and takes the fastest."""
    fp16_accumulation: bool = False
    """Matrix products of float16 are summed in float16."""
    blas_library: str | None = None
    num_threads: int | None = None
    keeps_memory: bool = False
    """glibc is told never to give freed memory back to the system."""
    functorch_options: dict[str, Scalar] = field(default_factory=dict)
    """Entries of functorch's config."""
    scope: str = "model"
    """What is compiled as one of a training step: `model`, or `loss`, which is the model and the loss."""
    optimizer_impl: str | None = None
    """`foreach` or `fused`: the optimizer's own ways of changing all weights at once."""
    optimizer_compiled: bool = False
    open_options: dict[str, Scalar] = field(default_factory=dict)
    """Knobs that are options of the compiler, by their full names; they are among the entries above, too."""

    @property
    def compiles_anything(self) -> bool:
        return self.compiled or self.optimizer_compiled

    @property
    def is_third_party(self) -> bool:
        """The backend is neither PyTorch's nor torch_npu's."""
        return self.compiled and self.backend not in _WELL_KNOWN

    @property
    def through_inductor(self) -> bool:
        """What runs is what inductor emits, or nothing is compiled."""
        return not self.compiled or self.backend in _THROUGH_INDUCTOR

    @property
    def is_unknown(self) -> bool:
        """Nobody promises what inductor keeps: see `third_party`."""
        return self.is_third_party and not self.through_inductor

    @property
    def freezes(self) -> bool:
        """The weights become constants of the compiled code, or may become some, which is for inference only."""
        return self.is_unknown or bool(self.compiler_options.get("freezing"))


def settings_of(config: Config) -> Settings:
    """What a config asks for. Pure. Raises InvalidConfigError for a knob or value that means nothing."""
    execution = config.get("execution")
    if execution not in ("eager", "compile"):
        raise InvalidConfigError(f"knob execution: {execution!r} is neither 'eager' nor 'compile'")
    _refuse_unknown(config, compiled=execution == "compile")
    precision = config.get("precision")
    return Settings(
        compiled=execution == "compile",
        region=_region(config),
        **_compile_knobs(config),
        options=_entries(config, Goes.INDUCTOR),
        compiler_options=_entries(config, Goes.COMPILER),
        dynamo_options={**_limit(config), **_entries(config, Goes.DYNAMO)},
        packs_for_onednn=config.get("packed_linear") == "onednn",
        torchair_mode=_text(config, "torchair_mode"),
        openvino=_entries(config, Goes.OPENVINO),
        autocast=AUTOCASTS.get(str(precision)),
        attention=_text(config, "sdpa"),
        matmul_precision=_text(config, "matmul_precision"),
        cudnn_benchmark=bool(config.get("cudnn_benchmark")),
        fp16_accumulation=bool(config.get("fp16_accumulation")),
        blas_library=_text(config, "blas_library"),
        num_threads=_num_threads(config.get("threads")),
        keeps_memory=config.get("allocator") == "keep",
        functorch_options=_entries(config, Goes.FUNCTORCH),
        scope=str(config.get("scope", "model")),
        optimizer_impl=_text(config, "optimizer_impl"),
        optimizer_compiled=bool(config.get("optimizer_compiled")),
        open_options={name: config[name] for name in config.knobs() if name not in KNOBS and config[name] is not None},
    )


def require_for_training(settings: Settings) -> None:
    """Raises InvalidConfigError for what is for inference only."""
    if settings.is_third_party:
        raise InvalidConfigError(f"knob backend: {settings.backend} is for inference: it promises no gradients")
    if settings.freezes:
        raise InvalidConfigError("knob freezing: frozen weights cannot be trained")
    if settings.region != Region():
        raise InvalidConfigError(f"knob {KNOB}: is for inference; in a training step `scope` says what is compiled")


def require_for_generation(settings: Settings) -> None:
    """Raises InvalidConfigError for a backend that may not do what a step of generating text does."""
    if settings.is_unknown:
        raise InvalidConfigError(
            f"knob backend: {settings.backend} is not for generating text: a step changes its cache in place, which "
            "it does not promise to do"
        )


def compile_arguments(settings: Settings, mode_options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `torch.compile`. `mode_options` is what the mode stands for in this release.

    torch.compile takes a mode or options but not both, so with options of its own a config spells its mode out.
    """
    arguments: dict[str, Any] = {
        "backend": settings.backend, "dynamic": settings.dynamic, "fullgraph": settings.fullgraph,
    }  # fmt: skip
    if settings.options:
        arguments["options"] = {**mode_options, **settings.options}
    elif settings.mode is not None:
        arguments["mode"] = settings.mode
    return arguments


def process_knobs(config: Config) -> tuple[str, ...]:
    """The knobs of a config that set something for the whole process."""
    return tuple(name for name, knob in KNOBS.items() if knob.goes is Goes.PROCESS and config.get(name) is not None)


def row_of(name: str) -> Knob:
    """The row of a knob. Raises InvalidConfigError if there is none."""
    group, dot, _ = name.partition(".")
    row = OPTIONS.get(group) if dot else KNOBS.get(name)
    if row is None:
        raise InvalidConfigError(f"knob {name}: unknown to the torch backend")
    return row


def _refuse_unknown(config: Config, *, compiled: bool) -> None:
    for name in config.knobs():
        if row_of(name).needs_compile and not compiled:
            raise InvalidConfigError(f"knob {name}: is for execution=compile only")
        values = row_of(name).values
        if values is not None and not config.matches({name: values}):
            raise InvalidConfigError(f"knob {name}: {config[name]!r} is none of {', '.join(map(str, values))}")
    backend = config.get("backend", "inductor")
    for name in config.knobs():
        backends = row_of(name).backends
        if backends and backend not in backends:
            raise InvalidConfigError(f"knob {name}: is for backend={' or '.join(backends)} only")
    if config.get("packed_linear") == "onednn" and not config.get("freezing"):
        raise InvalidConfigError("knob packed_linear: onednn is for freezing=true only")
    opens = SHAPES if config.get(SHAPES) in _OPEN else "dynamic" if config.get("dynamic") else None
    if backend in _OF_ONE_SHAPE and opens is not None:
        raise InvalidConfigError(f"knob {opens}: code of {backend} is for one shape")


def _region(config: Config) -> Region:
    region = Region.of(config)
    if region.left and config.get("fullgraph"):
        raise InvalidConfigError(
            f"knob {KNOB}: a part that is left out breaks the graph, and fullgraph=true refuses that"
        )
    return region


def _compile_knobs(config: Config) -> dict[str, Any]:
    knobs = {name: config[name] for name in config.knobs() if row_of(name).goes is Goes.ARGUMENT and name != SHAPES}
    if SHAPES in config.root:
        if "dynamic" in knobs:
            raise InvalidConfigError(f"knob dynamic: {SHAPES} says it already")
        knobs["dynamic"] = DYNAMIC[str(config[SHAPES])]
    backend = knobs.get("backend")
    # AMD's advice for convolutions, which zentorch leaves to inductor where a size may become dynamic.
    static = backend in _OF_ONE_SHAPE or (backend == "zentorch" and SHAPES not in config.root)
    if static and knobs.get("dynamic") is None:
        knobs["dynamic"] = False
    return knobs


def _limit(config: Config) -> dict[str, Scalar]:
    limit = _LIMITS.get(str(config.get(SHAPES)))
    return {} if limit is None else {"recompile_limit": limit}


def _entries(config: Config, goes: Goes) -> dict[str, Scalar]:
    """Entries of a `config` module by their own names, those that change something."""
    rows = {name: row_of(name) for name in config.knobs()}
    return {
        (row.name or name) if name in KNOBS else name.partition(".")[2]: config[name]
        for name, row in rows.items()
        if row.goes is goes and not config.matches({name: row.plain})
    }


def _text(config: Config, knob: str) -> str | None:
    value = config.get(knob)
    return None if value is None else str(value)


MOST_THREADS = 4096
"""No machine has more cores; a process that asks its runtime for far more of them is ended by it."""


def _num_threads(value: Scalar) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_THREADS:
        raise InvalidConfigError(f"knob threads: {value!r} is no number of threads")
    return value


# Options of the installed compiler as knobs: `inductor.NAME` is `torch._inductor.config.NAME`, `dynamo.NAME` is
# `torch._dynamo.config.NAME`.
#
# Which of them a config may set is decided here, for a trial and for a job alike (decision 31). Not those that take
# text of any kind, which may name a program, a path or a function; and not those whose effect the comparison of
# outputs cannot see, such as a check that is left out at run time.

_MODULES = {"inductor": "torch._inductor.config", "dynamo": "torch._dynamo.config"}

_KEPT_BACK: dict[str, tuple[str, ...]] = {
    "it leaves out a check at run time, which the comparison of outputs cannot see": (
        *("*assert*", "*assume_*", "*unsafe*", "*guard*", "*skip_*", "*ignore*", "*check*", "*vec_isa_ok*"),
        *("*verify*", "*validate*", "*input_mutation*", "dynamo.suppress_errors", "dynamo.replay_side_effects"),
    ),
    "it takes something of the model from the job": (
        *("inductor.freezing_*", "dynamo.prepare_freezing", "inductor.keep_output_stride", "inductor.pad_outputs"),
    ),
    "it is for debugging: it writes files, logs or other code": (
        *("*debug*", "*trace.*", "*dump*", "*log*", "*save*", "*profil*", "*print*", "*verbose*", "*repro*", "*test*"),
        *("*TEST*", "*inject*", "*generate_*", "*benchmark_harness*", "*benchmark_kernel*", "*hook*", "*_tables*"),
        *("*store_cubin*", "*bisect*", "*halide*", "*record*", "*collect*", "*ptxas_info*", "*report*", "*objgraph*"),
        *("*proton*", "*lint*", "dynamo.disable", "inductor.fallback_by_default"),
    ),
    "it is about processes, caches or other machines": (
        *("*cache*", "*remote*", "*upload*", "*worker*", "*compile_threads*", "*subproc*", "*timeout*", "*async*"),
        *("*pgo*", "*precompil*", "*p2p*", "*collective*", "*multi_device*"),
    ),
    "it is not for torch.compile": ("*aot_inductor*", "*compile_standalone*", "*is_predispatch*", "*aot_compile*"),
    "it decides when the model is compiled": ("dynamo.minimum_call_count",),
    "it is private": ("*._*", "*.TYPE_CHECKING"),
}
"""Why -> patterns of the full names."""


def require_option(knob: str, value: Scalar) -> None:
    """Raises InvalidConfigError if a config may not set this option, this release has none of the name, or it takes no
    such value. It is set and read back, as where the model is compiled."""
    group, _, name = knob.partition(".")
    if knob in OWN_KNOBS:
        raise InvalidConfigError(
            f"knob {knob}: has a knob of its own, {OWN_KNOBS[knob]}", tip=f"use the knob {OWN_KNOBS[knob]}"
        )
    module = importlib.import_module(_MODULES[group])
    if name not in module._config:
        raise InvalidConfigError(
            f"knob {knob}: torch {_release()} has no setting {_MODULES[group]}.{name}",
            tip=f"{did_you_mean(knob, _taken(group, module))}see the source of {_MODULES[group]}",
        )
    refusal = _refusal(knob, module)
    if refusal is not None:
        raise InvalidConfigError(f"knob {knob}: {refusal}", tip="docs/search-spaces.md says which are taken")
    if value is None:
        return
    kinds = _kinds(module, name)
    if not any(_fits(value, kind) for kind in kinds or ()):
        raise InvalidConfigError(
            f"knob {knob}: {json.dumps(value)} is not {_text_of(kinds or ())}, which is what it takes",
            tip="null leaves it as it is",
        )
    from autotune.backends.torch.compiler import value_under

    found = value_under((module, name, value))
    if found != value:
        raise InvalidConfigError(
            f"knob {knob}: set to {json.dumps(value)}, it reads {found!r}",
            tip="an environment variable of the compiler may override it",
        )


def _release() -> str:
    return str(importlib.import_module("torch").__version__)


def _refusal(knob: str, module: Any) -> str | None:
    """Why this option is not for a config; None: it is."""
    for because, patterns in _KEPT_BACK.items():
        if any(fnmatchcase(knob, pattern) for pattern in patterns):
            return f"{because}, so no config may set it"
    name = knob.partition(".")[2]
    alias = getattr(module._config[name], "alias", None)
    if alias is not None:
        return f"it is another name of {alias}"
    if _kinds(module, name) is None:
        return "it takes text or objects, which may name a program, a path or a function"
    return None


def _taken(group: str, module: Any) -> Iterable[str]:
    """The options of a group that a config may set."""
    names = (f"{group}.{name}" for name in module._config)
    return [name for name in names if name not in OWN_KNOBS and _refusal(name, module) is None]


def _kinds(module: Any, name: str) -> tuple[Any, ...] | None:
    """What an option takes: types of scalars, and the choices of a Literal; None where it takes anything else too."""
    declared = module._config[name].value_type
    kinds: list[Any] = []
    for part in get_args(declared) if get_origin(declared) in (Union, types.UnionType) else (declared,):
        if get_origin(part) is Literal:
            kinds += get_args(part)
        elif part in (bool, int, float):
            kinds.append(part)
        elif part is not type(None):
            return None
    return tuple(kinds) or None


def _fits(value: Scalar, kind: Any) -> bool:
    if isinstance(kind, type):
        return type(value) is kind
    return type(value) is type(kind) and value == kind


def _text_of(kinds: Iterable[Any]) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number with a point"}
    return " or ".join(names[kind] if isinstance(kind, type) else json.dumps(kind) for kind in kinds)
