"""PyTorch: eager or torch.compile. Supported: torch >= 2.6; checked against 2.13.

Beside the bundled models, torch is imported here and in the modules named `torch_*`: what a config means
(`torch_settings`, pure), how it is applied (`torch_apply`, `torch_compiler`, `torch_copy`, `torch_frozen`,
`torch_regions`, `torch_training`), what the compiler did (`torch_books`) and what came of it (`torch_program`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.backends.protocol import Found, Varying, Versions, python_random_state, variables_set
from autotune.backends.torch import counters, regions, shapes, training
from autotune.backends.torch.apply import apply, capture_despite, device_of
from autotune.backends.torch.fingerprint import program
from autotune.backends.torch.knobs import process_knobs, settings_of
from autotune.backends.torch.model_copy import ModelCopy
from autotune.backends.torch.per_shape import versions
from autotune.backends.torch.profile import profile
from autotune.backends.torch.proxy import original, twin
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.environment import package_version
from autotune.errors import MissingDeviceError
from autotune.measure.accuracy import WideType
from autotune.measure.diagnosis import BreakKind, Compilations, Diagnosis
from autotune.measure.measurement import Reason, TensorSpec
from autotune.measure.profile import Profile
from autotune.workload.arguments import Arguments
from autotune.workload.regions import Region
from autotune.workload.workload import Device

_TORCH_DEVICE: dict[Device, str] = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}
_INSTALL = "https://pytorch.org/get-started/locally/"
_INSTALL_NPU = "https://gitcode.com/ascend/pytorch"


class TorchBackend:
    """See `Backend`."""

    warmup_calls = 3
    """Convolution and attention models are steady from the second call on, tiny ones take some more: the warm-up
    goes on until the samples are steady anyway."""
    regions_rewrite = True
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
        counters.clear()

    def adopt(self, model: Any) -> None:
        self._device = device_of(model)

    def device_name(self) -> str:
        return "cpu" if self._device.type == "cpu" else str(self._module().get_device_name())

    def check_model(self, model: Any) -> str | None:
        if isinstance(model, torch.nn.Module):
            return None
        return f"a {type(model).__name__}; the torch backend needs a torch.nn.Module"

    def modules(self, model: Any) -> Mapping[str, Any]:
        return regions.modules(model)

    def check_region(self, model: Any, region: str) -> None:
        regions.check(model, Region.parse(region))

    def place(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, (torch.nn.Module, torch.Tensor)) else value

    def compile(self, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
        step: Callable[..., Any] = apply(model, config, changes)
        return step

    def process_settings(self, config: Config) -> tuple[str, ...]:
        return process_knobs(config)

    def copy_modules(self, model: Any) -> ModelCopy:
        return ModelCopy(model)

    def original(self, model: Any) -> Any:
        return original(model)

    def versions(self, model: Any, config: Config, changes: UndoLog) -> Versions | None:
        return versions(model, config, changes)

    def capture_despite(self, ailment: BreakKind, changes: UndoLog) -> None:
        capture_despite(ailment, changes)

    def marker(self, model: Any, varying: Sequence[Varying], changes: UndoLog) -> Callable[[Arguments], None]:
        return shapes.marker(varying)

    def uncompiled(self) -> AbstractContextManager[Any]:
        eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return eager

    def pad(self, tensor: Any, axis: int, size: int, fill: float) -> Any:
        return shapes.pad(tensor, axis, size, fill)

    def cut(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        return shapes.cut(tensor, axis, start, stop)

    def join(self, tensors: Sequence[Any], axis: int) -> Any:
        return torch.cat(list(tensors), axis)

    def direct(self, step: Any) -> Callable[..., Any]:
        called: Callable[..., Any] = step
        return called

    def stand_in(self, model: Any, step: Any, call: Callable[..., Any], changes: UndoLog) -> Any:
        return twin(model, call)

    def inference(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def check_optimizer(self, optimizer: Any) -> str | None:
        if isinstance(optimizer, torch.optim.Optimizer):
            return None
        return f"a {type(optimizer).__name__}; the torch backend needs a torch.optim.Optimizer"

    def set_training(self, model: Any) -> None:
        if not model.training:
            model.train()

    def training_step(
        self, model: Any, loss: Callable[..., Any], optimizer: Any, config: Config, changes: UndoLog
    ) -> Callable[..., Any]:
        return training.training_step(model, loss, optimizer, config, changes)

    def keep(self, model: Any, optimizer: Any) -> Callable[[], None]:
        return training.kept(model, optimizer)

    def weights(self, optimizer: Any) -> list[NDArray[Any]]:
        return [self._array(each).copy() for each in training.trained(optimizer)]

    def gradients(self, optimizer: Any) -> list[NDArray[Any]]:
        return training.gradients(optimizer, self._array)

    def synchronise(self) -> None:
        # On a CPU a call returns with its result; torch.cuda.synchronize() there would be an error.
        if self._device.type != "cpu":
            self._module().synchronize()

    def to_array(self, value: Any) -> NDArray[Any] | None:
        return self._array(value) if isinstance(value, torch.Tensor) else None

    def _array(self, value: torch.Tensor) -> NDArray[Any]:
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

    def compile_cache(self, folder: Path, key: str) -> AbstractContextManager[Any]:
        """The whole folder, not what `torch.compiler.save_cache_artifacts` gives: that leaves the compiled C++ out, and
        nothing at all remains of frozen code (docs/decisions/0013-cache-artifact.md)."""
        return variables_set(self.cache_variables(str(folder)))

    def build_tools(self) -> dict[str, str]:
        versions = {name: package_version(name) for name in ("triton", "torch-npu", "torchair")}
        tools = {"C++ compiler": _cpp_compiler(), "CUDA": torch.version.cuda, "ROCm": torch.version.hip, **versions}
        return {name: version for name, version in tools.items() if version is not None}

    def classify(self, error: BaseException) -> Reason | None:
        chain = _causes(error)
        if any(isinstance(each, torch.OutOfMemoryError) for each in chain):
            return Reason.OUT_OF_MEMORY
        # The CPU allocator has no type of its own: it raises RuntimeError with this text (c10/core/CPUAllocator).
        if any(isinstance(e, RuntimeError) and "DefaultCPUAllocator: can't allocate" in str(e) for e in chain):
            return Reason.OUT_OF_MEMORY
        return None

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        settings = settings_of(config)
        if not settings.compiles_anything:
            return Diagnosis(compiled=False, num_graphs=0, graph_breaks=(), recompiles=(), cache_hits=0)
        said = counters.diagnosis()
        # Several modules may run the code of one graph, so the code does not tell how many kernels a call launches.
        return said.model_copy(update={"num_kernels": None, "num_fused": None}) if settings.region.compiled else said

    def compilations(self, model: Any, config: Config) -> Compilations | None:
        if not settings_of(config).compiles_anything:
            return Compilations(num_graphs=0, num_given_up=0)
        return counters.compilations()

    def profile(self, call: Callable[[], None], num_calls: int, trace: Path) -> Profile:
        return profile(call, num_calls, trace, self._device.type)

    def program(self, model: Any, config: Config) -> str | None:
        return program(model, settings_of(config))

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


def _cpp_compiler() -> str | None:
    """What the compiler that inductor would call says of itself."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        with suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30, check=True)
            return told.stdout.partition("\n")[0]
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """The exception and those it came from: dynamo wraps what its backends raise."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        inner = getattr(current, "inner_exception", None)
        current = inner or current.__cause__ or current.__context__
    return chain
