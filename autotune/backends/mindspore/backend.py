"""MindSpore: PyNative, graph mode or ms.jit. Supported: mindspore >= 2.3.

What a config means is in `knobs` (pure), how it is handed to the Cells that `regions` finds in `apply` (to a training
step in `training`), what the compiler did in `counters`, and what came of it in `fingerprint`. "Measured" in a comment
means: on MindSpore 2.10.0, CPU, Linux x86-64.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from numpy.typing import NDArray

from autotune.backends.contracts.runtime import DeviceReport, python_random_state
from autotune.backends.mindspore import ascend, compile_cache, proxy, regions, shapes, tensors, training
from autotune.backends.mindspore.apply import already_compiled, apply, selected_device, unfit_mode
from autotune.backends.mindspore.compiled_cell import FunctionCell, compiled_cell, records_gradients
from autotune.backends.mindspore.counters import diagnose, dump_variables, profile
from autotune.backends.mindspore.effects import effects_of
from autotune.backends.mindspore.fingerprint import program
from autotune.backends.mindspore.knobs import TARGETS, process_knobs
from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.state import attributes_of
from autotune.backends.mindspore.tensors import array_of, tensor_like
from autotune.backends.protocol import Backend
from autotune.config import Config
from autotune.environment import package_version
from autotune.errors import MissingDeviceError, MissingFrameworkError
from autotune.measure.accuracy import WideType
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import Reason, TensorSpec
from autotune.workload.workload import Device, Task

# `runtime.synchronize` and `hal.synchronize` come last: on CPU their first call returns at once (measured).
_SYNCHRONISE = first(
    "mindspore._c_expression:synchronize", "mindspore.runtime:synchronize", "mindspore.hal:synchronize"
)
_PIPELINE = first("mindspore.graph.api:_pynative_executor", "mindspore.common.api:_pynative_executor")
_PEAK_MEMORY = first("mindspore.runtime:max_memory_allocated", "mindspore.hal:max_memory_allocated")
_RESET_PEAK_MEMORY = first("mindspore.runtime:reset_peak_memory_stats", "mindspore.hal:reset_peak_memory_stats")
_CONTEXT = first("mindspore._c_expression:MSContext")

_RNG_STATE = first("mindspore:get_rng_state")
_OP_SEEDS = first("mindspore.common.seed:_KERNEL_SEED")

_BATCH_NORMS = (ms.nn.BatchNorm1d, ms.nn.BatchNorm2d, ms.nn.BatchNorm3d)

_INSTALL = "https://www.mindspore.cn/install/en"


class MindSporeBackend(Backend):
    """See `Backend`."""

    warmup_calls = 20
    """The runtime tries other threading strategies during calls 4 to 14 (measured)."""
    _has_waited = False
    """In this process, for operators that were queued."""
    evaluation_call = "model.set_train(False)"
    call_without_gradients = "call it outside of ms.grad and ms.value_and_grad"
    training = training
    shapes = shapes
    regions = regions
    compile_cache = compile_cache
    proxies = proxy
    calls_file = tensors
    compile = staticmethod(apply)
    effects = staticmethod(effects_of)
    process_settings = staticmethod(process_knobs)
    unfit_mode = staticmethod(unfit_mode)
    like = staticmethod(tensor_like)

    def find(self) -> DeviceReport:
        names = {device: _device_label(device) for device in TARGETS}
        return DeviceReport(
            version=ms.__version__,
            devices={device: name for device, name in names.items() if name is not None},
            compilers=_compilers(),
            notes=tuple(_why_absent(device) for device, name in names.items() if name is None),
        )

    def prepare(self, device: Device, seed: int) -> None:
        _refuse_numpy_2()
        _select(device)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        ms.set_seed(seed)

    def adopt(self, model: Any) -> None:
        """MindSpore computes on the device of the process, which the job has chosen."""
        _refuse_numpy_2()

    def device_name(self) -> str:
        return _device_label(selected_device()) or TARGETS[selected_device()]

    def as_model(self, given: Any) -> Any:
        return FunctionCell(given) if inspect.isroutine(given) else given

    def check_model(self, model: Any) -> str | None:
        if not isinstance(model, ms.nn.Cell):
            return f"a {type(model).__name__}; the mindspore backend needs a mindspore.nn.Cell or a function"
        return already_compiled(model)

    def records_gradients(self, model: Any, *values: Any) -> bool:
        """MindSpore does so only inside `ms.grad` and its relatives, and does not tell of what."""
        return model is not None and records_gradients()

    def synchronise(self) -> None:
        """The first time the queued operators are waited for by other means. `synchronize` looks the device up before
        it waits, and creates it if nobody has; so does the queue's thread at its first operator. They take no common
        lock: of two devices the first is freed while it is used (docs/decisions/0016-mindspore-untuned-crash.md)."""
        if not self._has_waited:
            if _PIPELINE is not None:
                _PIPELINE.sync()
            self._has_waited = True
        _SYNCHRONISE()

    def to_array(self, value: Any) -> NDArray[Any] | None:
        return array_of(value) if isinstance(value, ms.Tensor) else None

    def extremes(self, value: Any, axis: int | None = None) -> Sequence[tuple[int, int]] | None:
        return tensors.extremes_of(value, axis)

    def called(self, model: Any) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(model, "construct", model)
        return function

    def attributes(self, value: Any) -> Mapping[str, Any] | None:
        return attributes_of(value) if isinstance(value, ms.nn.Cell) else super().attributes(value)

    def spec(self, value: Any) -> TensorSpec | None:
        return TensorSpec(shape=tuple(value.shape), dtype=str(value.dtype)) if isinstance(value, ms.Tensor) else None

    def address(self, value: Any) -> Hashable | None:
        place: int | None = value.data_ptr() if value.size else None
        return place

    def is_contiguous(self, value: Any) -> bool:
        return bool(value.is_contiguous())

    def refill(self, value: Any, array: NDArray[Any]) -> bool:
        value.copy_(tensors.tensor_like(array, value))
        return True

    def is_model(self, value: Any) -> bool:
        return isinstance(value, ms.nn.Cell)

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

    def nudge(self, value: Any, share: float) -> Any:
        if isinstance(value, ms.nn.Cell):
            for _, tensor in _tensors_of(value):
                if tensor.is_floating_point():
                    tensor.set_data(self.nudge(ms.Tensor(tensor), share))
            return value
        if not isinstance(value, ms.Tensor) or not value.is_floating_point():
            return value
        array = array_of(value)
        return self.like(array * (1 + share * np.random.standard_normal(array.shape).astype(array.dtype)), value)

    def active_dropout(self, model: Any) -> list[str]:
        named = ((name, cell, training.dropped_share(cell)) for name, cell in model.cells_and_names())
        return [f"{type(cell).__name__} {name or '(the model)'!r} (p={p:g})" for name, cell, p in named if p]

    def acting_in_training(self, model: Any) -> Sequence[str]:
        """Cells of MindSpore's own; others do not show it."""
        return [
            f"{type(cell).__name__} {name or '(the model)'!r}"
            for name, cell in model.cells_and_names()
            if training.dropped_share(cell) or (cell.training and isinstance(cell, _BATCH_NORMS))
        ]

    def written_parts(self, model: Any) -> Sequence[Any]:
        return [cell for _, cell in model.cells_and_names()] if isinstance(model, ms.nn.Cell) else [model]

    def random_state(self) -> bytes:
        """The generator of `mint`, the seeds that `ops` counts up, NumPy's and Python's. A random primitive that a
        Cell holds keeps its state in its kernel, where nobody sees it (measured); a dropout layer's is one."""
        generator = b"" if _RNG_STATE is None else _RNG_STATE().asnumpy().tobytes()
        return b"".join([generator, repr(_OP_SEEDS).encode(), python_random_state()])

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        if selected_device() == "cpu" or _PEAK_MEMORY is None:
            return None
        peak = int(_PEAK_MEMORY())
        if restart:
            _RESET_PEAK_MEMORY()
        return peak

    def cache_variables(self, folder: str) -> dict[str, str]:
        """Fusion's kernels go to `akg_kernel_meta` in there, by hash. The graph cache stays off: it is keyed by the
        number of the compilation, and gave stale results for a changed shape or constant (measured). The
        compiler's last graphs are dumped beside it."""
        own = {"MS_COMPILER_CACHE_PATH": folder, **dump_variables(folder, ms.__version__)}
        return {**own, **ascend.cache_variables(folder)}

    def classify(self, error: BaseException) -> Reason | None:
        # MindSpore raises RuntimeError for all that its C++ side throws; only the text tells that memory ran out.
        text = str(error).lower()
        exhausted = isinstance(error, RuntimeError) and any(sign in text for sign in _MEMORY_SIGNS)
        return Reason.OUT_OF_MEMORY if exhausted else None

    def hint(self, error: BaseException, task: Task) -> str | None:
        lacking = _NO_KERNEL.search(str(error))
        if lacking is None:
            return None
        return (
            f"MindSpore {ms.__version__} has no kernel of the operator {lacking[1]} on {selected_device()} in "
            "PyNative: write that step with another operator, or take a release of the model's library that uses others"
        )

    def profile(self, call: Callable[[], None], num_calls: int) -> dict[str, float]:
        return profile(call, num_calls, selected_device())

    def program(self, model: Any, config: Config) -> str | None:
        return program(compiled_cell(model), config)

    def diagnose(self, model: Any, config: Config) -> Diagnosis:
        return diagnose(compiled_cell(model), config)


_MEMORY_SIGNS = ("allocate memory failed", "memory isn't enough", "out of memory", "std::bad_alloc")
"""The first one measured on CPU, the second from MindSpore's sources, the others what drivers and C++ say."""


_NO_KERNEL = re.compile(r"[Tt]he kernel (?:\[)?(\w+)(?:\])? (?:is )?(?:unregistered|not supported)")


def _tensors_of(model: Any) -> list[tuple[str, Any]]:
    # Running means and the like are Parameters here; older releases have no other buffers.
    return [*model.parameters_and_names(), *getattr(model, "named_buffers", tuple)()]


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
            ms.set_device(TARGETS[device])
        else:
            ms.set_context(device_target=TARGETS[device])
    except (RuntimeError, ValueError) as error:
        # A process that has computed something is refused even the device that it is on.
        if selected_device() == device:
            return
        reason = str(error).strip().partition("\n")[0]
        raise MissingDeviceError(f"{device}: MindSpore cannot use it: {reason}", tip=f"see {_INSTALL}") from error


def _plugin_loaded(device: Device) -> bool:
    """Known since the import; asking prints nothing, unlike `is_available` (measured)."""
    return _CONTEXT is None or bool(_CONTEXT.get_instance().is_pkg_support_device(TARGETS[device]))


def _device_label(device: Device) -> str | None:
    """The name of the first device of a kind; None if there is none."""
    if device == "cpu":
        return "CPU"
    if not _plugin_loaded(device):
        return None
    # From here on only with a GPU or an NPU, from the documentation:
    # https://www.mindspore.cn/docs/en/master/api_python/mindspore.hal.html (a plugin may load without a card).
    try:
        return str(ms.hal.get_device_name(0, TARGETS[device])) if ms.hal.device_count(TARGETS[device]) else None
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
