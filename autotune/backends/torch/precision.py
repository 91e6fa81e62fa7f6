"""In which precision a model computes, and with which attention kernels: the parts of a config around its calls.

PyTorch has two APIs for what float32 operators may be computed in (TF32, bfloat16) since 2.9:
`torch.set_float32_matmul_precision` and `allow_tf32`, and `fp32_precision` of each backend
(https://docs.pytorch.org/docs/2.13/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices). Where a model's
file has used the second, the getters of the first raise RuntimeError (2.13). So the second is read wherever it exists;
its getter never raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only

from autotune.backends.torch.knobs import Settings
from autotune.backends.torch.tensors import device_of
from autotune.backends.undo import UndoLog
from autotune.errors import InvalidConfigError

_OPERATORS = ("matmul", "conv", "rnn")
_BACKENDS = ("cuda", "mkldnn")
_INHERITED = "none"
"""Takes the value of the whole backend (`all`), which may take the generic one. Read back, it says that none of the
three is set: then operators compute in float32, as under `_PLAIN`."""
_PLAIN = "ieee"


def current_precisions() -> dict[str, Any]:
    """What each kind of operator may be computed in, for comparison only: the names are those of the release's API."""
    read = precision_getter()
    if read is not None:
        named = {f"{backend}.{operator}": read(backend, operator) for backend in _BACKENDS for operator in _OPERATORS}
        return {name: _PLAIN if value == _INHERITED else value for name, value in named.items()}
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "cuda.matmul": torch.backends.cuda.matmul.allow_tf32,
        "cudnn": torch.backends.cudnn.allow_tf32,
    }


def set_matmul_precision(value: str, changes: UndoLog) -> None:
    """`torch.set_float32_matmul_precision(value)`, undone to what holds now, by whichever API it was set."""
    changes.make(lambda: torch.set_float32_matmul_precision(value), _restorer())


def sum_in_float16(changes: UndoLog) -> None:
    """Let cuBLAS sum products of float16 matrices in float16. Raises InvalidConfigError before PyTorch 2.7."""
    if not hasattr(torch.backends.cuda.matmul, _IN_FLOAT16):
        raise InvalidConfigError(f"knob fp16_accumulation: torch {torch.__version__} has no {_IN_FLOAT16}")
    changes.set_attribute(torch.backends.cuda.matmul, _IN_FLOAT16, True)


def libraries_of_products() -> list[Any]:
    """What decides which of CUDA's libraries multiplies matrices, and how it sums, for comparison only."""
    return [getattr(torch.backends.cuda.matmul, _IN_FLOAT16, None), str(torch.backends.cuda.preferred_blas_library())]


_IN_FLOAT16 = "allow_fp16_accumulation"


def precision_getter() -> Callable[[str, str], str] | None:
    """Backend and operator to what is in force; None before 2.9."""
    found: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
    return found


def _restorer() -> Callable[[], object]:
    """Both APIs write to the same state: the first is restored before the second, which is the finer one."""
    legacy, read = None, precision_getter()
    with suppress(RuntimeError):  # The second API was used in a way that the first cannot express.
        legacy = torch.get_float32_matmul_precision()
    finer = {} if read is None else {backend: _own_value(read, backend) for backend in _BACKENDS}

    def restore() -> None:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)
        for backend, value in finer.items():
            torch._C._set_fp32_precision_setter(backend, "matmul", value)

    return restore


def _own_value(read: Callable[[str, str], str], backend: str) -> str:
    """What to set so that matrix multiplications have the value of now. One that equals the backend's is inherited, and
    goes on to follow it."""
    value = read(backend, "matmul")
    return _INHERITED if value == read(backend, "all") else value


# Which kernel `scaled_dot_product_attention` takes: knob `sdpa`.
#
# cuDNN's kernel was 1.7 to 2.3 times as fast as the others at training shapes on a Hopper GPU, and slower on an A100
# (https://github.com/huggingface/transformers/pull/48163); PyTorch takes it last. Not measured on a device here.

_KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Value of the knob -> PyTorch's name, in the order in which they are tried after the chosen one."""
_ENABLED: dict[str, Callable[[], bool]] = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}


def require_order() -> None:
    """Raises InvalidConfigError for a release that cannot be told an order."""
    if "set_priority" not in inspect.signature(sdpa_kernel).parameters:
        raise InvalidConfigError(f"knob sdpa: torch {torch.__version__} takes no order of attention kernels")


def order_of(first: str) -> list[SDPBackend]:
    """The chosen kernel, then the others that the job has not switched off: not every kernel takes every input."""
    others = [name for name, is_enabled in _ENABLED.items() if name != first and is_enabled()]
    return [_KERNELS[name] for name in (first, *others)]


def with_precision(model: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """The model in its config's precision, with its attention kernel; the very same object where both are its own."""
    chosen = with_attention(model, settings)
    return chosen if settings.autocast is None else Autocast(chosen, getattr(torch, settings.autocast))


def with_attention(model: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """The model with its config's attention kernel; the very same object where none is chosen."""
    return model if settings.attention is None else Attention(model, settings.attention)


class ModelWrapper(torch.nn.Module):
    """A model with something done around its calls; parameters, modes and attributes are those of the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        # Not `self.train(...)`: that would set all modules inside, and a model may keep some of them in another mode.
        self.training = model.training

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


class Autocast(ModelWrapper):
    """A model whose calls are under autocast. Outputs of the narrow type come back in the type of the model's weights,
    as without autocast: a caller saves them, sends them or puts them beside others.

    It is compiled together with the model: entering autocast then costs nothing at a call (0.19 ms in place of 0.21 for
    a small MLP).
    """

    def __init__(self, model: torch.nn.Module, autocast: torch.dtype) -> None:
        super().__init__(model)
        self._autocast = autocast
        self._device_type = device_of(model).type
        self._own = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._device_type, dtype=self._autocast):
            outputs = self.model(*args, **kwargs)
        return tree_map_only(torch.Tensor, self._in_own_type, outputs)

    def _in_own_type(self, output: torch.Tensor) -> torch.Tensor:
        return output.to(self._own) if output.dtype is self._autocast else output


class Attention(ModelWrapper):
    """A model whose calls of `scaled_dot_product_attention` try one kernel before the others.

    PyTorch keeps the order for the whole process; a compiler that captures this with the model decides while it
    compiles, and nothing is set at a call.
    """

    def __init__(self, model: torch.nn.Module, first: str) -> None:
        super().__init__(model)
        self._order = order_of(first)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(self._order, set_priority=True):
            return self.model(*args, **kwargs)
