"""PyTorch: eager or torch.compile. The only file of the package that imports torch (the bundled models apart).

What the compiler did is read from its own books: `torch._dynamo.utils.counters`, `graph_break_reasons` and
`get_compilation_metrics()`. They are private and differ between releases, so each is looked up on its own and a
missing one makes that quantity None. Supported: torch >= 2.6; checked against 2.13.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.backends import Found, python_random_state
from autotune.config import Config
from autotune.errors import InvalidConfigError, MissingDeviceError
from autotune.measurement import Diagnosis, GraphBreak, Reason, Recompile, TensorSpec
from autotune.numerics import WideType
from autotune.workload import Device

_TORCH_DEVICE: dict[Device, str] = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}
_COMPILE_KNOBS = ("backend", "mode", "dynamic", "fullgraph")
_INSTALL = "https://pytorch.org/get-started/locally/"
_INSTALL_NPU = "https://gitcode.com/ascend/pytorch"


def compile_arguments(config: Config) -> dict[str, Any] | None:
    """What a config hands to `torch.compile`; None for the untuned model. Pure. Raises InvalidConfigError."""
    execution = config.get("execution")
    if execution not in ("eager", "compile"):
        raise InvalidConfigError(f"knob execution: {execution!r} is neither 'eager' nor 'compile'")
    settings = {name: value for name, value in config.root.items() if name != "execution"}
    unknown = sorted(settings.keys() - set(_COMPILE_KNOBS))
    if unknown:
        raise InvalidConfigError(f"knob {unknown[0]}: unknown to the torch backend")
    return None if execution == "eager" else settings


def apply(model: torch.nn.Module, config: Config) -> Any:
    """The model under `config`: itself, untouched, or what `torch.compile` makes of it (compiled at the first call)."""
    arguments = compile_arguments(config)
    if arguments is None:
        return model
    _refuse_unknown(arguments)
    return torch.compile(model, **arguments)


class TorchBackend:
    """See `Backend`."""

    warmup_calls = 3
    """Convolution and attention models are steady from the second call on, tiny ones take some more: the warm-up
    goes on until the samples are steady anyway."""
    evaluation_call = "model.eval()"

    def __init__(self) -> None:
        self._device = torch.device("cpu")

    def find(self) -> Found:
        devices: dict[Device, str] = {"cpu": "cpu"}
        notes = []
        if torch.cuda.is_available():
            devices["gpu"] = torch.cuda.get_device_name(0)
        elif torch.version.cuda is None and torch.version.hip is None:
            notes.append(f"gpu: this torch is a CPU build; install one for your GPU: {_INSTALL}")
        else:
            notes.append("gpu: torch is built for one and finds none; check the driver (nvidia-smi)")
        if _import_npu() and torch.get_device_module("npu").is_available():
            devices["ascend"] = torch.get_device_module("npu").get_device_name(0)
        else:
            notes.append(f"ascend: torch needs torch_npu and a card for it; see {_INSTALL_NPU}")
        return Found(version=str(torch.__version__), devices=devices, compilers=_compilers(), notes=tuple(notes))

    def prepare(self, device: Device, seed: int) -> None:
        name = _TORCH_DEVICE[device]
        if device == "ascend" and not _import_npu():
            raise MissingDeviceError("torch runs on Ascend through torch_npu, which is not installed", tip=_INSTALL_NPU)
        if device != "cpu" and not torch.get_device_module(name).is_available():
            raise MissingDeviceError(f"torch {torch.__version__} finds no {device}", tip="run `python cli.py doctor`")
        self._device = torch.device(name)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        _clear_books()

    def device_name(self) -> str:
        return "cpu" if self._device.type == "cpu" else str(self._module().get_device_name())

    def check_model(self, model: Any) -> str | None:
        if isinstance(model, torch.nn.Module):
            return None
        return f"a {type(model).__name__}; the torch backend needs a torch.nn.Module"

    def place(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, (torch.nn.Module, torch.Tensor)) else value

    def compile(self, model: Any, config: Config) -> Callable[..., Any]:
        step: Callable[..., Any] = apply(model, config)
        return step

    def inference(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def synchronise(self) -> None:
        # On a CPU a call returns with its result; torch.cuda.synchronize() there would be an error.
        if self._device.type != "cpu":
            self._module().synchronize()

    def to_array(self, value: Any) -> NDArray[Any] | None:
        if not isinstance(value, torch.Tensor):
            return None
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        dense = dense.resolve_conj().resolve_neg().cpu()
        array: NDArray[Any] = (dense.float() if dense.dtype is torch.bfloat16 else dense).numpy()
        return array

    def like(self, array: NDArray[Any], original: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype=original.dtype, device=original.device)

    def spec(self, value: Any) -> TensorSpec | None:
        if not isinstance(value, torch.Tensor):
            return None
        return TensorSpec(shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."))

    def parameters(self, model: Any) -> Sequence[tuple[str, TensorSpec]]:
        named = [*model.named_parameters(), *model.named_buffers()]
        return [(name, spec) for name, tensor in named if (spec := self.spec(tensor)) is not None]

    def widen(self, value: Any, dtype: WideType) -> Any:
        # Not `.to(dtype)`: that would cast a Module's complex parameters too, and lose their imaginary part.
        if isinstance(value, torch.nn.Module) or (isinstance(value, torch.Tensor) and value.is_floating_point()):
            return value.double() if dtype == "float64" else value.float()
        return value

    def active_dropout(self, model: Any) -> list[str]:
        named = ((name, each, _dropped_share(each)) for name, each in model.named_modules())
        return [f"{type(each).__name__} {name or '(the model)'!r} (p={p:g})" for name, each, p in named if p]

    def random_state(self) -> bytes:
        states = [torch.get_rng_state()]
        if self._device.type != "cpu":
            states.append(self._module().get_rng_state())
        return b"".join([*(state.numpy().tobytes() for state in states), python_random_state()])

    def reset_peak_memory(self) -> None:
        self._module().reset_peak_memory_stats()

    def peak_memory_bytes(self) -> int | None:
        return None if self._device.type == "cpu" else int(self._module().max_memory_allocated())

    def cache_variables(self, folder: str) -> dict[str, str]:
        """Inductor keeps its AOTAutograd and FX graph caches under its own folder; Triton has one of its own."""
        home = Path(folder)
        return {"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"), "TRITON_CACHE_DIR": str(home / "triton")}

    def classify(self, error: BaseException) -> Reason | None:
        chain = _causes(error)
        if any(isinstance(each, torch.OutOfMemoryError) for each in chain):
            return Reason.OUT_OF_MEMORY
        # The CPU allocator has no type of its own: it raises RuntimeError with this text (c10/core/CPUAllocator).
        if any(isinstance(e, RuntimeError) and "DefaultCPUAllocator: can't allocate" in str(e) for e in chain):
            return Reason.OUT_OF_MEMORY
        return None

    def program(self, model: Any, config: Config) -> str | None:
        return None

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        if compile_arguments(config) is None:
            return Diagnosis(compiled=False, num_graphs=0, graph_breaks=(), recompiles=(), cache_hits=0)
        counters = _book("counters")
        num_graphs = None if counters is None else int(counters["stats"]["unique_graphs"])
        metrics = _compilation_metrics()
        return Diagnosis(
            compiled=num_graphs != 0,
            num_graphs=num_graphs,
            graph_breaks=_graph_breaks(),
            recompiles=None if metrics is None else _recompiles(metrics),
            cache_hits=None if counters is None else _cache_hits(counters),
            note=_note(num_graphs, metrics),
        )

    def _module(self) -> Any:
        return torch.get_device_module(self._device)


def _dropped_share(module: torch.nn.Module) -> float:
    """The share that a module of PyTorch's own drops when it is called as it stands."""
    if not module.training:
        return 0.0
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return float(module.p)
    # A recurrent layer drops between its layers only.
    if isinstance(module, torch.nn.MultiheadAttention) or (
        isinstance(module, torch.nn.RNNBase) and module.num_layers > 1
    ):
        return float(module.dropout)
    return 0.0


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    """torch.compile takes an unknown backend or mode and fails only at the first call, with a long story."""
    import torch._dynamo
    import torch._inductor

    backend, mode = arguments.get("backend", "inductor"), arguments.get("mode")
    known = torch._dynamo.list_backends(exclude_tags=())
    if backend not in known:
        raise InvalidConfigError(f"knob backend: torch {torch.__version__} has no {backend!r}, only {', '.join(known)}")
    modes = torch._inductor.list_mode_options()
    if mode is not None and mode not in modes:
        raise InvalidConfigError(f"knob mode: torch {torch.__version__} has no {mode!r}, only {', '.join(modes)}")


def _import_npu() -> bool:
    """Importing torch_npu registers the device `npu` with torch: https://gitcode.com/ascend/pytorch"""
    if importlib.util.find_spec("torch_npu") is None:
        return False
    with suppress(ImportError, OSError):
        importlib.import_module("torch_npu")
        return True
    return False


def _compilers() -> dict[str, str]:
    """What inductor generates code with: a C++ compiler for CPUs, Triton for GPUs."""
    found = {"g++": shutil.which("g++") or shutil.which("clang++") or "missing: inductor cannot compile for CPUs"}
    if importlib.util.find_spec("triton") is not None:
        found["triton"] = str(importlib.import_module("triton").__version__)
    return found


def _causes(error: BaseException) -> list[BaseException]:
    """The exception and those it came from: dynamo wraps what its backends raise."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        inner = getattr(current, "inner_exception", None)
        current = inner or current.__cause__ or current.__context__
    return chain


def _book(name: str) -> Any:
    """One of dynamo's books, None where this release has no such name or dynamo was never imported."""
    import torch._dynamo.utils

    return getattr(torch._dynamo.utils, name, None)


def _clear_books() -> None:
    """A forked or repeated use of the process must not count what was compiled before."""
    import sys

    if "torch._dynamo" not in sys.modules:
        return
    torch._dynamo.reset()
    for name in ("counters", "graph_break_reasons"):
        book = _book(name)
        if book is not None:
            book.clear()


def _compilation_metrics() -> list[Any] | None:
    read = _book("get_compilation_metrics")
    return None if read is None else list(read())


def _graph_breaks() -> tuple[GraphBreak, ...] | None:
    """Each place once, with the number of times that dynamo broke there."""
    reasons = _book("graph_break_reasons")
    if reasons is None:
        return None
    seen: Counter[tuple[str, str | None]] = Counter()
    for each in reasons:
        if getattr(each, "graph_break", True):
            seen[_first_line(each.reason), _user_line(each.user_stack)] += 1
    return tuple(GraphBreak(reason=r, location=place, count=n) for (r, place), n in seen.items())


def _user_line(stack: Any) -> str | None:
    """`file:line` of the innermost user frame (dynamo lists the innermost last)."""
    frames = list(stack or ())
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _recompiles(metrics: list[Any]) -> tuple[Recompile, ...]:
    """A compilation whose id is N/k with k > 0 compiled the code of frame N again; its reason is the failed guard."""
    again = [each for each in metrics if getattr(each, "recompile_reason", None)]
    return tuple(
        Recompile(
            reason=_first_line(each.recompile_reason),
            location=f"{each.co_filename}:{each.co_firstlineno}" if each.co_filename else None,
        )
        for each in again
    )


def _cache_hits(counters: Any) -> int:
    return int(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])


def _note(num_graphs: int | None, metrics: list[Any] | None) -> str | None:
    """What silently did not happen: nothing captured, or a frame given up and run eagerly."""
    if num_graphs == 0:
        return "torch.compile captured nothing: the model ran eagerly"
    failed = [each.fail_reason for each in metrics or () if getattr(each, "fail_reason", None)]
    return f"ran eagerly in part: {_first_line(failed[0])}" if failed else None


def _first_line(text: str, max_chars: int = 300) -> str:
    return str(text).strip().splitlines()[0].strip()[:max_chars] if str(text).strip() else ""
