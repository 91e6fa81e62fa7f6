"""PyTorch: eager or torch.compile. Supported: torch >= 2.6; checked against 2.13.

What a config means is in `knobs` (pure), how it is applied in `apply`, `compiler`, `frozen`, `regions` and
`training`, what the compiler did in `counters`, and what came of it in `fingerprint`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import random
import shutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.backends.contracts.runtime import DeviceReport, python_random_state
from autotune.backends.protocol import Backend
from autotune.backends.torch import (
    compile_cache,
    counters,
    files,
    generating,
    npu,
    parallel,
    proxy,
    regions,
    shapes,
    third_party,
    training,
)
from autotune.backends.torch.apply import apply, capture_despite, captures_graphs
from autotune.backends.torch.captured_graphs import counting
from autotune.backends.torch.compile_cache import begin_compilers, cache_variables, shared_kernels
from autotune.backends.torch.compiled_step import copied
from autotune.backends.torch.fingerprint import program
from autotune.backends.torch.frozen import takes_constant_weights
from autotune.backends.torch.generation import TorchGeneration
from autotune.backends.torch.given_model import (
    FunctionModel,
    acting_in_training,
    are_recorded,
    differentiates,
    dropped_share,
    materialise,
    packs_linears,
    problem_of,
    uncompiled,
    work_of,
    written_parts,
)
from autotune.backends.torch.imported_ahead import built_once
from autotune.backends.torch.instruments import (
    CudaInstruments,
    cuda_uuid,
    lock_cpu_benchmarks,
    lock_gpu_benchmarks,
    memory_of,
    others_on_gpu,
    peak_bytes,
    require_found,
)
from autotune.backends.torch.isa_probes import answered
from autotune.backends.torch.knobs import process_knobs, require_option, settings_of
from autotune.backends.torch.pipelines import PipelineModel, watch_components
from autotune.backends.torch.recompiles import watching
from autotune.backends.torch.rehearsal import rehearse
from autotune.backends.torch.tensors import (
    array_of,
    content_of,
    device_of,
    extremes_of,
    large_sketch,
    placed,
    require_shape,
    shape_of,
    tensor_like,
)
from autotune.backends.torch.training import hint
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.environment import package_version
from autotune.measure.accuracy import WideType
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import DeviceMemory, Reason, TensorSpec
from autotune.workload.components import Pipeline
from autotune.workload.workload import Device, Task

_TORCH_DEVICE: dict[Device, str] = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}
_INSTALL = "https://pytorch.org/get-started/locally/"


class TorchBackend(Backend):
    """See `Backend`."""

    warmup_calls = 3
    """Most models are steady from the second call on; the warm-up goes on until the samples are steady anyway."""
    evaluation_call = "model.eval()"
    call_without_gradients = "call it under torch.no_grad() or torch.inference_mode()"
    training = training
    generates = TorchGeneration
    generation = generating
    shapes = shapes
    regions = regions
    compile_cache = compile_cache
    shared_kernels = staticmethod(shared_kernels)
    answered_probes = staticmethod(answered)
    begin_compilers = staticmethod(begin_compilers)
    built_once = staticmethod(built_once)
    sketch = staticmethod(large_sketch)
    proxies = proxy
    calls_file = files
    watch_components = staticmethod(watch_components)
    capture_despite = staticmethod(capture_despite)
    materialise = staticmethod(materialise)
    differentiates = staticmethod(differentiates)
    noting_operators = staticmethod(counting)
    written_parts = staticmethod(written_parts)
    process_settings = staticmethod(process_knobs)
    check_option = staticmethod(require_option)
    records_gradients = staticmethod(are_recorded)
    may_record = staticmethod(torch.is_grad_enabled)
    acting_in_training = staticmethod(acting_in_training)
    takes_constant_weights = staticmethod(takes_constant_weights)
    packs_linears = staticmethod(packs_linears)
    work_of = staticmethod(work_of)
    like = staticmethod(tensor_like)
    cache_variables = staticmethod(cache_variables)
    ranks = staticmethod(parallel.ranks)
    rehearse = staticmethod(rehearse)
    watching_recompiles = staticmethod(watching)

    def __init__(self) -> None:
        self._device = torch.device("cpu")

    @property
    def instruments(self) -> CudaInstruments | None:
        """Made when they are asked for, which begins the driver: `prepare` does not."""
        return CudaInstruments.own() if self._device.type == "cuda" else None

    def find(self) -> DeviceReport:
        devices: dict[Device, str] = {"cpu": "cpu"}
        shared: dict[Device, str] = {}
        notes = []
        if torch.cuda.is_available():
            devices["gpu"] = torch.cuda.get_device_name(0)
            others = others_on_gpu(torch.cuda)
            shared = {} if others is None else {"gpu": others}
        elif torch.version.cuda is None and torch.version.hip is None:
            notes.append(f"gpu: this torch is a CPU build; install one for your GPU: {_INSTALL}")
        else:
            notes.append("gpu: torch is built for one and finds none; check the driver (nvidia-smi)")
        label = npu.device_label()
        if label is not None:
            devices["ascend"] = label
        else:
            notes.append(f"ascend: torch needs torch_npu and a card for it; see {npu.INSTALL}")
        return DeviceReport(str(torch.__version__), devices, _compilers(), tuple(notes), shared)

    def prepare(self, device: Device, seed: int) -> None:
        name = _TORCH_DEVICE[device]
        if device == "ascend":
            npu.prepare_trial()
        if device != "cpu":
            require_found(device, name)
        self._device = torch.device(name)
        self.seed(seed)
        counters.clear()

    def seed(self, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    def adopt(self, model: Any) -> None:
        self._device = device_of(model)

    def device_name(self) -> str:
        return "cpu" if self._device.type == "cpu" else str(self._module().get_device_name(self._device))

    def device_uuid(self) -> str | None:
        return cuda_uuid(torch.cuda) if self._device.type == "cuda" else None

    def lock_benchmarks(self, taken: Callable[[], AbstractContextManager[None]]) -> bool:
        lock = lock_cpu_benchmarks if self._device.type == "cpu" else lock_gpu_benchmarks
        return lock(taken)

    def as_model(self, given: Any) -> Any:
        if isinstance(given, Pipeline):
            return PipelineModel(given)
        owner = getattr(given, "__self__", None)
        is_call = isinstance(owner, torch.nn.Module) and given == owner.__call__
        model, self.already_compiled = uncompiled(owner if is_call else given)
        return FunctionModel(model) if inspect.isroutine(model) or isinstance(model, functools.partial) else model

    def check_model(self, model: Any) -> str | None:
        return problem_of(model)

    def place(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return placed(value, self._device)
        return value.to(self._device) if isinstance(value, torch.nn.Module) else value

    def called(self, model: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = model.function if isinstance(model, FunctionModel) else model.forward
        return function

    def compile(self, model: Any, config: Config, changes: UndoLog) -> Callable[..., Any]:
        step: Callable[..., Any] = apply(model, config, changes, input_gradients=self.input_gradients)
        return step

    def inference(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def synchronise(self) -> None:
        # On a CPU a call returns with its result; torch.cuda.synchronize() there would be an error.
        if self._device.type != "cpu":
            self._module().synchronize(self._device)

    def to_array(self, value: Any) -> NDArray[Any] | None:
        return array_of(value) if isinstance(value, torch.Tensor) else None

    def extremes(self, value: Any, axis: int | None = None) -> Sequence[tuple[int, int]] | None:
        """Extremes of Python's whole numbers too, which compiled code may take for indices."""
        return extremes_of(value, axis)

    def content(self, value: Any, *, reads_weights: bool = False) -> Hashable | None:
        content = content_of(value, reads_weights=reads_weights)
        return super().content(value) if content is None else content

    def attributes(self, value: Any) -> Mapping[str, Any] | None:
        """What a plain function takes from around it counts as well. What holds the components of a pipeline does not:
        its scheduler counts steps, and tuned components take the places of others in it."""
        held = super().attributes(value)
        if held is None:
            return None
        around = value.surroundings() if isinstance(value, FunctionModel) else {}
        left_out = _OF_COMPILER | {"pipeline"} if isinstance(value, PipelineModel) else _OF_COMPILER
        return {name: attribute for name, attribute in held.items() if name not in left_out} | around

    def spec(self, value: Any) -> TensorSpec | None:
        if not isinstance(value, torch.Tensor):
            return None
        require_shape(value)
        return TensorSpec(shape=shape_of(value), dtype=str(value.dtype).removeprefix("torch."))

    def form(self, value: Any) -> str:
        layout = "" if value.layout is torch.strided else f" {str(value.layout).removeprefix('torch.')}"
        return f"{super().form(value)}{layout}{' requires_grad' if value.requires_grad else ''}"

    def storage(self, value: Any) -> Hashable | None:
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            return None
        return value.untyped_storage().data_ptr() or None

    def is_contiguous(self, value: Any) -> bool:
        return value.layout is not torch.strided or value.is_contiguous()

    def refill(self, value: Any, array: NDArray[Any]) -> bool:
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            return False
        try:
            with torch.no_grad():
                value.copy_(tensor_like(array, value))
        except RuntimeError:  # Its elements share memory, as those of an expanded dimension do.
            return False
        return True

    def keeps_nan(self, config: Config) -> bool:
        """Not where weights are frozen on a CPU, nor in another package's code: fused kernels of oneDNN, say, give 0
        for a ReLU of NaN (docs/decisions/0101-used-as-a-job-uses-it.md)."""
        settings = settings_of(config)
        return not (settings.freezes or settings.is_third_party)

    def opened(self, value: Any) -> Sequence[Any] | None:
        return value.unbind() if isinstance(value, torch.Tensor) and value.is_nested else None

    def is_model(self, value: Any) -> bool:
        return isinstance(value, torch.nn.Module)

    def parameters(self, model: Any) -> Sequence[tuple[str, TensorSpec]]:
        inner = parallel.unwrapped(model)
        named = [*inner.named_parameters(), *inner.named_buffers()]
        return [(name, spec) for name, tensor in named if (spec := self.spec(tensor)) is not None]

    def widen(self, value: Any, dtype: WideType) -> Any:
        # Not `.to(dtype)`: that would cast a Module's complex parameters too, and lose their imaginary part.
        if isinstance(value, torch.nn.Module) or (isinstance(value, torch.Tensor) and value.is_floating_point()):
            return value.double() if dtype == "float64" else value.float()
        return value

    def nudge(self, value: Any, share: float) -> Any:
        if isinstance(value, torch.nn.Module):
            with torch.no_grad():
                for tensor in (*value.parameters(), *value.buffers()):
                    if tensor.is_floating_point() and not tensor.is_inference():
                        tensor.copy_(self.nudge(tensor.detach(), share))
            return value
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout is not torch.strided:
            return value
        normal = torch.randn(value.shape, dtype=torch.float32, device=value.device)
        return value * normal.mul_(share).add_(1).to(value.dtype)

    def active_dropout(self, model: Any) -> list[str]:
        named = ((name, module, dropped_share(module)) for name, module in model.named_modules())
        return [f"{type(module).__name__} {name or '(the model)'!r} (p={p:g})" for name, module, p in named if p]

    def moves_at_calls(self, model: Any) -> bool:
        """By hooks of accelerate, at which compiled code would be broken."""
        return any(getattr(module, "_hf_hook", None) is not None for module in model.modules())

    def random_state(self) -> bytes:
        states = [torch.get_rng_state()]
        if self._device.type != "cpu":
            states.append(self._module().get_rng_state(self._device))
        return b"".join([*(state.numpy().tobytes() for state in states), python_random_state()])

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        if self._device.type == "cpu":
            return None
        peak = peak_bytes(self._module())
        if restart:
            self._module().reset_peak_memory_stats()
        return peak

    def device_memory(self) -> DeviceMemory | None:
        return None if self._device.type == "cpu" else memory_of(self._module())

    def classify(self, error: BaseException) -> Reason | None:
        return Reason.OUT_OF_MEMORY if any(map(_is_lack_of_memory, _causes(error))) else None

    def hint(self, error: BaseException, task: Task) -> str | None:
        return hint(_causes(error), task)

    def copies_outputs(self, model: Any, config: Config) -> Callable[[Any], Any] | None:
        """The first call of a CUDA graph is eager, and warms the memory pool up.
        https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html"""
        return copied if captures_graphs(model, settings_of(config)) else None

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        settings = settings_of(config)
        if not settings.compiles_anything:
            note = self.already_compiled
            return Diagnosis(compiled=False, num_graphs=0, graph_breaks=(), recompiles=(), cache_hits=0, note=note)
        said = third_party.as_told(settings, counters.diagnosis())
        if self._device.type != "cpu" and (uncaptured := counters.uncaptured_note()):
            said = said.model_copy(update={"note": "; ".join(filter(None, [said.note, uncaptured]))})
        # Several modules may run the code of one graph, so the code does not tell how many kernels a call launches.
        return said.model_copy(update={"num_kernels": None, "num_fused": None}) if settings.region.compiled else said

    profile = staticmethod(counters.break_costs)

    def program(self, model: Any, config: Config) -> str | None:
        return program(model, settings_of(config))

    def _module(self) -> Any:
        return torch.get_device_module(self._device)


_OF_COMPILER = frozenset({"_compiled_call_impl", "_is_torch_compile", "_validate_args"})
"""What `torch.compile` notes in a module, and what it turns off in the class of all distributions when it is used."""


def _compilers() -> dict[str, str]:
    """What inductor generates code with: a C++ compiler for CPUs, Triton for GPUs, its own Triton for Ascend."""
    found = {"g++": shutil.which("g++") or shutil.which("clang++") or "missing: inductor cannot compile for CPUs"}
    if importlib.util.find_spec("triton") is not None:
        found["triton"] = str(importlib.import_module("triton").__version__)
    if importlib.util.find_spec("torch_npu") is not None:
        lacking = "missing: inductor compiles for Ascend with it alone, but for npu_backend=mlir or dvm"
        found["triton-ascend"] = package_version("triton-ascend") or lacking
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


_MEMORY_SIGNS = (
    "out of memory",
    "_ALLOC_FAILED",
    "_ALLOCATION_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "DefaultCPUAllocator:",
    "Cannot allocate memory",
    "Failed to allocate memory",
    "std::bad_alloc",
    "Killed signal terminated program",
)
"""Texts of errors that have no type of their own: of drivers, Triton and torch_npu, of NVIDIA's libraries (cuDNN 9 has
INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED), of the allocator on a CPU (c10/core/CPUAllocator), of the system, of CANN
(EL0004), and of g++ whose process the kernel ended. cuBLAS that finds no room for its workspace says that it is not
initialized."""


def _is_lack_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # Exceptions of drivers (torch.AcceleratorError) and of Triton are RuntimeErrors. A user's ValueError is not meant.
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign.lower() in text for sign in _MEMORY_SIGNS)
