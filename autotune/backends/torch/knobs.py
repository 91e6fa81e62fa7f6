"""What each knob of PyTorch comes to: a pure mapping from a config to `Settings`. No torch in here.

A knob is handed over in the way that works, found by what inductor emits and not by what it accepts
(docs/knobs.md has the pairs). Most of inductor's go through `torch.compile(options=...)`, which keeps them to this
model. Freezing and dynamo's own settings do not: they are set while this model is compiled (`torch_compiler`).

What changes the job's weights is no knob: casting them, and channels-last. Frozen code under autocast is as fast
(docs/decisions/0018-results-first.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autotune.config import Config, Scalar
from autotune.errors import InvalidConfigError
from autotune.workload.regions import KNOB, WHOLE, Region

COMPILE_KNOBS = ("backend", "mode", "dynamic", "fullgraph")
"""Arguments of torch.compile under their own names."""

OPTIONS: dict[str, tuple[str, Scalar]] = {
    "cpp_wrapper": ("cpp_wrapper", False),
    "max_autotune_gemm": ("max_autotune_gemm", False),
    "max_autotune_gemm_backends": ("max_autotune_gemm_backends", None),
    "epilogue_fusion": ("epilogue_fusion", True),
    "shape_padding": ("shape_padding", True),
    "layout_optimization": ("layout_optimization", True),
    "coordinate_descent_tuning": ("coordinate_descent_tuning", False),
    "cudagraph_trees": ("triton.cudagraph_trees", True),
    "weight_prepack": ("cpp.weight_prepack", True),
    "decompose_tanh": ("cpp.use_decompose_tanh", False),
}
"""Knob -> entry of torch._inductor.config, given with `options=`; and the value that leaves it as it is."""

COMPILER_OPTIONS: dict[str, tuple[str, Scalar]] = {"freezing": ("freezing", False)}
"""The same, for entries of torch._inductor.config that dynamo reads: set while this model is compiled."""

DYNAMO_OPTIONS: dict[str, tuple[str, Scalar]] = {
    "allow_rnn": ("allow_rnn", False),
    "recompile_limit": ("recompile_limit", 8),
}
"""The same, for entries of torch._dynamo.config."""

FUNCTORCH_OPTIONS: dict[str, tuple[str, Scalar]] = {"activation_memory_budget": ("activation_memory_budget", 1.0)}
"""The same, for entries of torch._functorch.config: what AOTAutograd goes by."""

SHAPES = "shapes"
"""The knob that says what is done about calls of many shapes; it stands in for `dynamic`."""

DYNAMIC: dict[str, bool | None] = {
    "automatic": None,
    "static": False,
    "dynamic": True,
    "marked": None,
    "bounded": None,
    "bucketed": False,
    "chunked": None,
    "eager_rare": False,
}
"""Value of the knob `shapes` -> torch.compile's `dynamic`. What else a strategy does is not torch's: `strategy`."""

AUTOCASTS = {"bf16_autocast": "bfloat16", "fp16_autocast": "float16"}
"""Value of the knob `precision` -> torch's name of the element type."""
"""Value of the knob `precision` -> torch's name of the element type."""

PROCESS_KNOBS = ("matmul_precision", "threads", "allocator")
"""What these set holds for the whole process, other models included: a job has to ask for them."""

_LIMITS: dict[str, Scalar] = {"bucketed": 64, "eager_rare": 64}
"""Value of the knob `shapes` -> the limit of compilations that it needs: they mean to compile so often."""

_CHOICES: dict[str, tuple[Scalar, ...]] = {
    SHAPES: tuple(DYNAMIC),
    "recompile_limit": (8, 64),
    "precision": (None, *AUTOCASTS),
    "matmul_precision": (None, "highest", "high", "medium"),
    "max_autotune_gemm_backends": (None, "CPP", "TRITON", "ATEN,TRITON,CUTLASS"),
    "fullgraph": (False, True),
    "dynamic": (None, False, True),
    **{name: (False, True) for name, (_, plain) in OPTIONS.items() if isinstance(plain, bool)},
    "freezing": (False, True),
    "allow_rnn": (False, True),
    "allocator": (None, "keep"),
    "memory_format": (None,),
    "inference_mode": (False,),
    "scope": ("model", "loss"),
    "optimizer_impl": (None, "foreach", "fused"),
    "optimizer_compiled": (False, True),
}
"""Knobs with a fixed choice, and what they take; `threads` takes a number or null."""

_GIVEN_UP: dict[str, tuple[Scalar, ...]] = {
    "precision": ("bf16_cast", "fp16_cast"),
    "memory_format": ("channels_last",),
    "inference_mode": (True,),
}
"""Knob -> values that earlier releases offered."""

_OF_THE_COMPILER = (
    KNOB, SHAPES, *COMPILE_KNOBS, *OPTIONS, *COMPILER_OPTIONS, *DYNAMO_OPTIONS, *FUNCTORCH_OPTIONS, "torchair_mode",
    "scope",
)  # fmt: skip


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
    torchair_mode: str | None = None
    autocast: str | None = None
    """Element type that torch.autocast computes in."""
    matmul_precision: str | None = None
    num_threads: int | None = None
    keeps_memory: bool = False
    """glibc is told never to give freed memory back to the system."""
    functorch_options: dict[str, Scalar] = field(default_factory=dict)
    """Entries of functorch's config."""
    scope: str = "model"
    """Of a training step, what is compiled as one: `model`, or `loss`, which is the model and the loss."""
    optimizer_impl: str | None = None
    """`foreach` or `fused`: the optimizer's own ways of changing all weights at once."""
    optimizer_compiled: bool = False

    @property
    def compiles_anything(self) -> bool:
        return self.compiled or self.optimizer_compiled

    @property
    def freezes(self) -> bool:
        """The weights become constants of the compiled code, which is for inference only."""
        return bool(self.compiler_options.get("freezing"))


def settings_of(config: Config) -> Settings:
    """What a config asks for. Pure. Raises InvalidConfigError for a knob or value that means nothing."""
    execution = config.get("execution")
    if execution not in ("eager", "compile"):
        raise InvalidConfigError(f"knob execution: {execution!r} is neither 'eager' nor 'compile'")
    _refuse_given_up(config)
    _refuse_unknown(config, compiled=execution == "compile")
    precision = config.get("precision")
    return Settings(
        compiled=execution == "compile",
        region=_region(config),
        **_compile_knobs(config),
        options=_entries(config, OPTIONS),
        compiler_options=_entries(config, COMPILER_OPTIONS),
        dynamo_options={**_limit(config), **_entries(config, DYNAMO_OPTIONS)},
        torchair_mode=_text(config, "torchair_mode"),
        autocast=AUTOCASTS.get(str(precision)),
        matmul_precision=_text(config, "matmul_precision"),
        num_threads=_num_threads(config.get("threads")),
        keeps_memory=config.get("allocator") == "keep",
        functorch_options=_entries(config, FUNCTORCH_OPTIONS),
        scope=str(config.get("scope", "model")),
        optimizer_impl=_text(config, "optimizer_impl"),
        optimizer_compiled=bool(config.get("optimizer_compiled")),
    )


def require_for_training(settings: Settings) -> None:
    """Raises InvalidConfigError for what is for inference only."""
    if settings.freezes:
        raise InvalidConfigError("knob freezing: frozen weights cannot be trained")
    if settings.region != Region():
        raise InvalidConfigError(f"knob {KNOB}: is for inference; in a training step `scope` says what is compiled")


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
    return tuple(name for name in PROCESS_KNOBS if config.get(name) is not None)


def _refuse_given_up(config: Config) -> None:
    """A config of an earlier release: what it promised cannot be kept without changing the job's own weights."""
    for name, values in _GIVEN_UP.items():
        if any(config.matches({name: value}) for value in values) and name in config.root:
            raise InvalidConfigError(
                f"knob {name}: {config[name]!r} is no longer applied: it changes what the model's owner sees "
                "(weights, or outputs that cannot be trained on)",
                tip="tune again",
            )


def _refuse_unknown(config: Config, *, compiled: bool) -> None:
    known = {"execution", "threads", *_CHOICES, *_OF_THE_COMPILER}
    for name in config.knobs():
        if name not in known:
            raise InvalidConfigError(f"knob {name}: unknown to the torch backend")
        if name in _OF_THE_COMPILER and not compiled:
            raise InvalidConfigError(f"knob {name}: is for execution=compile only")
    for name, choices in _CHOICES.items():
        if not any(config.matches({name: each}) for each in choices) and name in config.root:
            raise InvalidConfigError(f"knob {name}: {config[name]!r} is none of {', '.join(map(str, choices))}")
    backend = config.get("backend", "inductor")
    if backend != "torchair" and "torchair_mode" in config.root:
        raise InvalidConfigError("knob torchair_mode: is for backend=torchair only")
    if backend != "inductor":
        for name in ("mode", *OPTIONS, *COMPILER_OPTIONS):
            if name in config.root:
                raise InvalidConfigError(f"knob {name}: is for backend=inductor only")


def _region(config: Config) -> Region:
    region = Region.parse(str(config.get(KNOB, WHOLE)))
    if region.left and config.get("fullgraph"):
        raise InvalidConfigError(
            f"knob {KNOB}: a part that is left out breaks the graph, and fullgraph=true refuses that"
        )
    return region


def _compile_knobs(config: Config) -> dict[str, Any]:
    knobs = {name: config[name] for name in COMPILE_KNOBS if name in config.root}
    if SHAPES not in config.root:
        return knobs
    if "dynamic" in knobs:
        raise InvalidConfigError(f"knob dynamic: {SHAPES} says it already")
    return {**knobs, "dynamic": DYNAMIC[str(config[SHAPES])]}


def _limit(config: Config) -> dict[str, Scalar]:
    limit = _LIMITS.get(str(config.get(SHAPES)))
    return {} if limit is None else {DYNAMO_OPTIONS["recompile_limit"][0]: limit}


def _entries(config: Config, names: dict[str, tuple[str, Scalar]]) -> dict[str, Scalar]:
    """Entries by their own names, those that change something."""
    return {
        entry: config[knob]
        for knob, (entry, plain) in names.items()
        if knob in config.root and not config.matches({knob: plain})
    }


def _text(config: Config, knob: str) -> str | None:
    value = config.get(knob)
    return None if value is None else str(value)


def _num_threads(value: Scalar) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfigError(f"knob threads: {value!r} is no number of threads")
    return value
