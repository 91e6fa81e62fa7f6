"""MindSpore: PyNative, graph mode or ms.jit. The only file that imports mindspore (the bundled models apart).

`compile_arguments` alone knows which release takes what. MindSpore's own counters are private and move between
releases: each is looked up once, below, and a missing one makes the quantity that it gives None. "Measured" in a
comment means: on MindSpore 2.10.0, CPU, Linux x86-64. Supported: mindspore >= 2.3.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import mindspore as ms
import numpy as np
from numpy.typing import NDArray
from packaging.specifiers import SpecifierSet

from autotune.backends import Found, python_random_state
from autotune.config import Config, Scalar
from autotune.environment import package_version
from autotune.errors import InvalidConfigError, MissingDeviceError, MissingFrameworkError
from autotune.measurement import Diagnosis, GraphBreak, Reason, Recompile, TensorSpec
from autotune.numerics import WideType
from autotune.workload import Device


def _first(*places: str) -> Any:
    """The first `module:name` that this release has, or None."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


# `runtime.synchronize` and `hal.synchronize` come last: on CPU their first call returns at once (measured).
_SYNCHRONISE = _first(
    "mindspore._c_expression:synchronize", "mindspore.runtime:synchronize", "mindspore.hal:synchronize"
)
_PEAK_MEMORY = _first("mindspore.runtime:max_memory_allocated", "mindspore.hal:max_memory_allocated")
_RESET_PEAK_MEMORY = _first("mindspore.runtime:reset_peak_memory_stats", "mindspore.hal:reset_peak_memory_stats")
_CONTEXT = _first("mindspore._c_expression:MSContext")
_JIT_EXECUTOR = _first("mindspore._c_expression:JitExecutor_")
_GRAPH_EXECUTOR = _first("mindspore._c_expression:GraphExecutor_")
_DUMP_GRAPH = _first("mindspore._c_expression:dump_func_graph")
_CODE_EXTRA = _first("mindspore._c_expression:get_code_extra")
_AST_PHASES = _first("mindspore.graph.api:ms_compile_cache", "mindspore.common.api:ms_compile_cache")
_TRACE_PHASES = _first(
    "mindspore.graph.jit_trace:_trace_compile_cache", "mindspore.common.jit_trace:_trace_compile_cache"
)

_RNG_STATE = _first("mindspore:get_rng_state")
_OP_SEEDS = _first("mindspore.common.seed:_KERNEL_SEED")
_DROPOUTS = tuple(
    found
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "DropoutExt", "Dropout2dExt")
    if (found := _first(f"mindspore.nn:{name}")) is not None
)

_INSTALL = "https://www.mindspore.cn/install/en"
_TARGETS: dict[Device, str] = {"cpu": "CPU", "gpu": "GPU", "ascend": "Ascend"}

_VALUES: dict[str, tuple[Scalar, ...]] = {
    "execution": ("pynative", "graph", "jit"),
    "capture": ("ast", "bytecode", "trace"),
    "jit_level": ("O0", "O1", "O2"),
    "fullgraph": (False, True),
    "enable_graph_kernel": (False, True),
    "graph_kernel_opt_level": (1, 2, 3),
}
_CPU_KERNEL_LIMIT = "--composite_op_limit_size=6"
"""On CPU the fusion compiler (AKG) takes more than 100 s for one kernel of nine chained *, tanh and +, and puts up to
200 operators into a kernel. Limited to 6, chains of 240 compile in 5 s, and the bundled models run as fast as without
the limit, within the noise (measured; with 7 the chains hang again)."""
_OLD_CAPTURE = {"ast": "PSJit", "bytecode": "PIJit"}
"""`ms.jit(mode=...)` of releases before 2.6, which have no `capture_mode`."""


@dataclass(frozen=True)
class _Refused:
    """A combination that some releases or devices ignore, or fail on without a clear word."""

    pattern: dict[str, object]
    because: str
    versions: str = ""
    devices: tuple[Device, ...] = ("cpu", "gpu", "ascend")


# https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.jit.html and the same page of r2.5 to r2.8.
_REFUSED = (
    _Refused({"capture": "trace"}, "capture trace came with MindSpore 2.6", versions="<2.6"),
    _Refused({"capture": "trace", "fullgraph": True}, "fullgraph means nothing to capture trace"),
    _Refused(
        {"execution": "jit", "jit_level": "O2"}, "ms.jit takes O0 and O1; O2 needs execution graph", versions=">=2.6"
    ),
    _Refused({"jit_level": "O2"}, "O2 compiles whole graphs with CANN's GE", devices=("cpu", "gpu")),
    _Refused({"jit_level": "O2"}, "O2 and its backend GE are deprecated since 2.9", versions=">=2.9"),
    _Refused({"execution": "pynative", "enable_graph_kernel": True}, "without a graph there is nothing to fuse"),
)


@dataclass(frozen=True)
class CompileArguments:
    """What a config hands to MindSpore. `jit` None: the Cell is not wrapped."""

    context: dict[str, Any]
    """For `ms.set_context`: holds for the process."""
    jit: dict[str, Any] | None = None
    """For `ms.jit`."""
    jit_config: dict[str, str] = field(default_factory=dict)
    """For `ms.JitConfig`: of the Cell in graph mode, of `ms.jit` before 2.6."""


def compile_arguments(config: Config, version: str, device: Device) -> CompileArguments:
    """The config in the terms of a release and a device. Pure. Raises InvalidConfigError."""
    _refuse(config, version, device)
    execution, level = config["execution"], str(config.get("jit_level", "O0"))
    context = {"mode": ms.GRAPH_MODE if execution == "graph" else ms.PYNATIVE_MODE, **_fusion(config, device)}
    if execution == "pynative":
        return CompileArguments(context)
    if execution == "graph":
        return CompileArguments(context, jit_config={"jit_level": level})
    capture, fullgraph = str(config.get("capture", "ast")), config.get("fullgraph", False)
    if _within(version, "<2.6"):
        syntax = {"jit_level": level, "jit_syntax_level": "STRICT" if fullgraph else "LAX"}
        return CompileArguments(context, jit={"mode": _OLD_CAPTURE[capture]}, jit_config=syntax)
    return CompileArguments(context, jit={"capture_mode": capture, "jit_level": level, "fullgraph": fullgraph})


def _refuse(config: Config, version: str, device: Device) -> None:
    if "execution" not in config.root:
        raise InvalidConfigError("knob execution: is missing")
    for name, value in config.root.items():
        if name not in _VALUES:
            raise InvalidConfigError(f"knob {name}: unknown to the mindspore backend")
        if not config.matches({name: _VALUES[name]}):
            raise InvalidConfigError(f"knob {name}: {value!r} is none of its values")
    for each in _REFUSED:
        if config.matches(each.pattern) and device in each.devices and _within(version, each.versions):
            raise InvalidConfigError(f"{config}: {each.because} (this is {version} on {device})")


def _within(version: str, versions: str) -> bool:
    return SpecifierSet(versions).contains(version, prereleases=True)


def _fusion(config: Config, device: Device) -> dict[str, Any]:
    """Process-wide switches of graph-kernel fusion; the deprecated ones, because they hold from 2.3 to 2.10."""
    if not config.get("enable_graph_kernel", False):
        return {}
    flags = f"--opt_level={config.get('graph_kernel_opt_level', 2)}"
    if device == "cpu":
        flags = f"{flags} {_CPU_KERNEL_LIMIT}"
    return {"enable_graph_kernel": True, "graph_kernel_flags": flags}


def apply(model: ms.nn.Cell, config: Config) -> ms.nn.Cell:
    """The Cell under `config`: the very same, compiled at its first call, untouched where the config compiles nothing.

    Raises InvalidConfigError, and MissingFrameworkError where fusion lacks its package.
    """
    device = _device()
    arguments = compile_arguments(config, ms.__version__, device)
    if device == "cpu" and "enable_graph_kernel" in arguments.context:
        _need_decorator()
    ms.set_context(**arguments.context)
    options: dict[str, Any] = {}
    if arguments.jit_config:
        options["jit_config"] = ms.JitConfig(**arguments.jit_config)
    if arguments.jit is not None:
        # `ms.jit(cell)` is a bound method. Set as the instance's own `construct` it leaves the Cell a Cell: parameters,
        # checkpoints and use inside another Cell work as before (measured; trace cannot stand inside a graph).
        model.construct = ms.jit(model, **arguments.jit, **options)
    elif options:
        model.set_jit_config(options["jit_config"])
    return model


def _already_compiled(model: ms.nn.Cell) -> str | None:
    """MindSpore would go on with the first graph, without a word (measured), or with the first JitConfig."""
    if "construct" in vars(model) or hasattr(type(model).construct, "__wrapped_by_jit__"):
        return f"a {type(model).__name__} whose construct is wrapped by ms.jit already"
    if getattr(model, "_jit_config_dict", None):
        return f"a {type(model).__name__} that has a JitConfig already"
    return None


def _need_decorator() -> None:
    # The compiler itself (AKG, with LLVM) is in the wheel; without this package it answers "Response is empty."
    if importlib.util.find_spec("decorator") is None:
        raise MissingFrameworkError(
            "graph-kernel fusion on CPU needs the package `decorator`", tip="run: pip install decorator"
        )


class MindSporeBackend:
    """See `Backend`."""

    warmup_calls = 20
    """The runtime tries other threading strategies during calls 4 to 14 (measured)."""
    evaluation_call = "model.set_train(False)"

    def find(self) -> Found:
        names = {device: _device_label(device) for device in _TARGETS}
        return Found(
            version=ms.__version__,
            devices={device: name for device, name in names.items() if name is not None},
            compilers=_compilers(),
            notes=tuple(_why_absent(device) for device, name in names.items() if name is None),
        )

    def prepare(self, device: Device, seed: int) -> None:
        _refuse_numpy_2()
        _select(device)
        random.seed(seed)
        np.random.seed(seed)
        ms.set_seed(seed)

    def device_name(self) -> str:
        return _device_label(_device()) or _TARGETS[_device()]

    def check_model(self, model: Any) -> str | None:
        if not isinstance(model, ms.nn.Cell):
            return f"a {type(model).__name__}; the mindspore backend needs a mindspore.nn.Cell"
        return _already_compiled(model)

    def place(self, value: Any) -> Any:
        """Nothing to do: MindSpore moves tensors itself to the device that `prepare` selected for the process."""
        return value

    def compile(self, model: Any, config: Config) -> Callable[..., Any]:
        cell: Callable[..., Any] = apply(model, config)
        return cell

    def inference(self) -> AbstractContextManager[Any]:
        """Nothing to do: MindSpore records gradients only inside `ms.grad` and its relatives."""
        return nullcontext()

    def synchronise(self) -> None:
        _SYNCHRONISE()

    def to_array(self, value: Any) -> NDArray[Any] | None:
        if not isinstance(value, ms.Tensor):
            return None
        array: NDArray[Any] = (value.astype(ms.float32) if value.dtype == ms.bfloat16 else value).asnumpy()
        return array

    def like(self, array: NDArray[Any], original: Any) -> Any:
        return ms.Tensor(np.ascontiguousarray(array), dtype=original.dtype)

    def spec(self, value: Any) -> TensorSpec | None:
        return TensorSpec(shape=tuple(value.shape), dtype=str(value.dtype)) if isinstance(value, ms.Tensor) else None

    def parameters(self, model: Any) -> Sequence[tuple[str, TensorSpec]]:
        return [(name, spec) for name, tensor in _tensors_of(model) if (spec := self.spec(tensor)) is not None]

    def widen(self, value: Any, dtype: WideType) -> Any:
        """On CPU convolution and batch norm take no float64 (measured): calling such a model raises TypeError."""
        wide = getattr(ms, dtype)
        if isinstance(value, ms.nn.Cell):
            for _, tensor in _tensors_of(value):
                if tensor.is_floating_point():
                    tensor.set_dtype(wide)
            return value
        return value.astype(wide) if isinstance(value, ms.Tensor) and value.is_floating_point() else value

    def active_dropout(self, model: Any) -> list[str]:
        named = ((name, each, _dropped_share(each)) for name, each in model.cells_and_names())
        return [f"{type(each).__name__} {name or '(the model)'!r} (p={p:g})" for name, each, p in named if p]

    def random_state(self) -> bytes:
        """The generator of `mint`, the seeds that `ops` counts up, NumPy's and Python's. A random primitive that a
        Cell holds keeps its state in its kernel, where nobody sees it (measured); a dropout layer's is one."""
        generator = b"" if _RNG_STATE is None else _RNG_STATE().asnumpy().tobytes()
        return b"".join([generator, repr(_OP_SEEDS).encode(), python_random_state()])

    def reset_peak_memory(self) -> None:
        _RESET_PEAK_MEMORY()

    def peak_memory_bytes(self) -> int | None:
        return None if _device() == "cpu" or _PEAK_MEMORY is None else int(_PEAK_MEMORY())

    def cache_variables(self, folder: str) -> dict[str, str]:
        """Fusion's kernels go to `akg_kernel_meta` in there, by hash. The graph cache stays off: it is keyed by the
        number of the compilation, and gave stale results for a changed shape or constant (measured)."""
        return {"MS_COMPILER_CACHE_PATH": folder}

    def classify(self, error: BaseException) -> Reason | None:
        # MindSpore raises RuntimeError for all that its C++ side throws; only the text tells that memory ran out.
        text = str(error).lower()
        exhausted = isinstance(error, RuntimeError) and any(sign in text for sign in _MEMORY_SIGNS)
        return Reason.OUT_OF_MEMORY if exhausted else None

    def program(self, model: Any, config: Config) -> str | None:
        return None

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        way = config.get("capture", "ast") if config["execution"] == "jit" else config["execution"]
        return _DIAGNOSE[str(way)](model)


_MEMORY_SIGNS = ("allocate memory failed", "memory isn't enough", "out of memory", "std::bad_alloc")
"""The first one measured on CPU, the second from MindSpore's sources, the others what drivers and C++ say."""


def _tensors_of(model: Any) -> list[tuple[str, Any]]:
    # Running means and the like are Parameters here; older releases have no other buffers.
    return [*model.parameters_and_names(), *getattr(model, "named_buffers", tuple)()]


def _dropped_share(cell: Any) -> float:
    """The share that a Cell of MindSpore's own drops when it is called as it stands."""
    if not cell.training:
        return 0.0
    if isinstance(cell, _DROPOUTS):
        # The share is `p`, in Dropout1d `prob`; Dropout2d, Dropout3d and an old Dropout have what they keep (measured).
        share = getattr(cell, "p", getattr(cell, "prob", None))
        return 1 - float(cell.keep_prob) if share is None else float(share)
    return float(cell.dropout) if isinstance(cell, ms.nn.MultiheadAttention) else 0.0


def _device() -> Device:
    target = ms.get_context("device_target")
    return next(device for device, name in _TARGETS.items() if name == target)


def _refuse_numpy_2() -> None:
    # The first native call that parses arguments fails, and some modes hang or abort (measured with NumPy 2.4). No
    # release is known to work, so none is let through.
    if int(np.__version__.partition(".")[0]) >= 2:
        raise MissingFrameworkError(
            f"MindSpore {ms.__version__} needs numpy < 2, and {np.__version__} is installed",
            tip="run: pip install 'numpy<2'",
        )


def _select(device: Device) -> None:
    if not _plugin_loaded(device):
        raise MissingDeviceError(_why_absent(device))
    try:
        if hasattr(ms, "set_device"):
            ms.set_device(_TARGETS[device])
        else:
            ms.set_context(device_target=_TARGETS[device])
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise MissingDeviceError(f"{device}: MindSpore cannot use it: {reason}", tip=f"see {_INSTALL}") from error


def _plugin_loaded(device: Device) -> bool:
    """Known since the import; asking prints nothing, unlike `is_available` (measured)."""
    return _CONTEXT is None or bool(_CONTEXT.get_instance().is_pkg_support_device(_TARGETS[device]))


def _device_label(device: Device) -> str | None:
    """The name of the first device of a kind; None if there is none."""
    if device == "cpu":
        return "CPU"
    if not _plugin_loaded(device):
        return None
    # From here on only with a GPU or an NPU, from the documentation:
    # https://www.mindspore.cn/docs/en/master/api_python/mindspore.hal.html (a plugin may load without a card).
    try:
        return str(ms.hal.get_device_name(0, _TARGETS[device])) if ms.hal.device_count(_TARGETS[device]) else None
    except (RuntimeError, ValueError):
        return None


def _why_absent(device: Device) -> str:
    errors = _CONTEXT.get_instance().load_plugin_error() if hasattr(_CONTEXT, "load_plugin_error") else ""
    found = re.search(rf"libmindspore_{device}\S* failed\. (\S+): cannot open", errors)
    missing = f"{found[1]} not found" if found else f"MindSpore {ms.__version__} finds no such device or its libraries"
    return f"{device}: {missing}; for what to install see {_INSTALL}"


def _compilers() -> dict[str, str]:
    """What graph-kernel fusion on CPU needs: AKG, which the wheel holds, and a package that it does not ask for."""
    akg = Path(ms.__file__).parent / "lib" / "plugin" / "cpu" / "libakg.so"
    return {
        "akg": str(akg) if akg.exists() else "missing: this build of MindSpore has no fusion on CPU",
        "decorator": package_version("decorator") or "missing: fusion on CPU needs it: pip install decorator",
    }


def _diagnose_pynative(_: Any) -> Diagnosis:
    return Diagnosis(compiled=False, num_graphs=0, graph_breaks=(), recompiles=())


def _diagnose_phases(phases: Collection[str] | None) -> Diagnosis:
    """MindSpore keeps one phase for each graph, that is for each new combination of input shapes, types, values."""
    if phases is None:
        return Diagnosis(compiled=None, note="this release does not tell what it compiled")
    if not phases:
        return Diagnosis(compiled=False, num_graphs=0, note="no graph was compiled: ran as PyNative (is MS_JIT=0 set?)")
    again = Recompile(reason="an input of a new shape or type, or a new Python value")
    return Diagnosis(
        compiled=True,
        num_graphs=len(phases),
        graph_breaks=_interpreted(phases),
        recompiles=(again,) * (len(phases) - 1),
    )


def _interpreted(phases: Collection[str]) -> tuple[GraphBreak, ...] | None:
    """The Python that a graph hands back to the interpreter at every call, counted for each Cell."""
    scopes: Counter[str] = Counter()
    for phase in phases:
        text = _graph_text(phase)
        if text is None:
            return None
        scopes.update(_interpreted_scopes(text))
    return tuple(
        GraphBreak(reason=f"operations left to the Python interpreter (PyExecute) in {scope}", count=count)
        for scope, count in scopes.items()
    )


def _graph_text(phase: str) -> str | None:
    executors = [each.get_instance() for each in (_JIT_EXECUTOR, _GRAPH_EXECUTOR) if each is not None]
    owner = next((each for each in executors if each.has_compiled(phase)), None)
    return None if owner is None or _DUMP_GRAPH is None else str(_DUMP_GRAPH(owner.get_func_graph(phase)))


def _interpreted_scopes(text: str) -> Iterator[str]:
    """The path of Cells of each fallback node: it stands some lines below the node, as `# Scope: (Default/...)`."""
    inside = False
    for line in text.splitlines():
        if " = PyExecute(" in line or " = PyInterpret(" in line:
            inside = True
        elif inside and "# Scope: " in line:
            inside = False
            yield line.partition("# Scope: ")[2].strip("()")


def _diagnose_bytecode(model: Any) -> Diagnosis:
    """Capture hangs its state on code objects: those of `construct` and of the pieces that it was cut into.

    A piece that was compiled again shows its newest graph only, so each recompile counts as one graph more.
    """
    if _CODE_EXTRA is None:
        return Diagnosis(compiled=None, note="this release does not tell what it compiled")
    pieces = list(_pieces(type(model).construct.__code__))
    num_recompiles = sum(max(extra.get("compile_count_", 0) - 1, 0) for _, extra in pieces)
    num_graphs = sum("phase_" in extra.get("code", ()) for _, extra in pieces)
    return Diagnosis(
        compiled=num_graphs > 0,
        num_graphs=num_graphs + num_recompiles if num_graphs else 0,
        graph_breaks=_breaks(pieces),
        recompiles=(Recompile(reason="a guard failed; MS_JIT_BYTECODE_LOGS=recompiles prints it"),) * num_recompiles,
        note=None if num_graphs else "capture bytecode never compiled: ran as PyNative",
    )


def _pieces(code: CodeType) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """`code` and all code that was generated from it, each with what MindSpore knows of it."""
    waiting, seen = [code], set()
    while waiting:
        current = waiting.pop(0)
        extra = _CODE_EXTRA(current)
        if current in seen or not extra:
            continue
        seen.add(current)
        yield current, extra
        waiting.extend(_generated(extra))


def _generated(extra: dict[str, Any]) -> list[CodeType]:
    compiled = extra.get("code", {}).get("compiled_code_")
    constants = compiled.co_consts if compiled is not None else ()
    codes = [getattr(each, "__code__", each) for each in constants]
    return [each for each in codes if isinstance(each, CodeType)]


def _breaks(pieces: list[tuple[CodeType, dict[str, Any]]]) -> tuple[GraphBreak, ...]:
    counts: Counter[str | None] = Counter()
    for code, extra in pieces:
        counts[_break_line(code, extra)] += extra.get("break_count_", 0)
    reason = "capture bytecode stopped; MS_JIT_BYTECODE_LOGS=graph_break prints why"
    return tuple(GraphBreak(reason=reason, location=place, count=n) for place, n in counts.items() if n)


def _break_line(code: CodeType, extra: dict[str, Any]) -> str | None:
    """Where `code` was cut. Its rest is named like `16I.46B.construct`: it starts at code unit 46 (measured)."""
    rests = [re.match(r"\d+I\.(\d+)B\.", each.co_name) for each in _generated(extra)]
    starts = [2 * int(rest[1]) for rest in rests if rest is not None]
    lines = [line for first, end, line in code.co_lines() if starts and first < min(starts) <= end]
    return f"{code.co_filename}:{lines[0]}" if lines and lines[0] else None


_DIAGNOSE: dict[str, Callable[[Any], Diagnosis]] = {
    "pynative": _diagnose_pynative,
    "graph": lambda model: _diagnose_phases(getattr(model, "compile_cache", None)),
    "ast": lambda _: _diagnose_phases(_AST_PHASES),
    "trace": lambda _: _diagnose_phases(_TRACE_PHASES),
    "bytecode": _diagnose_bytecode,
}
