"""What float32 operators may be computed in: TF32, bfloat16.

PyTorch has two APIs for it since 2.9: `torch.set_float32_matmul_precision` and `allow_tf32`, and `fp32_precision` of
each backend (https://docs.pytorch.org/docs/2.13/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices). Where
a model's file has used the second, the getters of the first raise RuntimeError (2.13). So the second is read wherever
it exists; its getter never raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autotune.backends.undo import UndoLog

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
        named = {f"{backend}.{each}": read(backend, each) for backend in _BACKENDS for each in _OPERATORS}
        return {name: _PLAIN if value == _INHERITED else value for name, value in named.items()}
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "cuda.matmul": torch.backends.cuda.matmul.allow_tf32,
        "cudnn": torch.backends.cudnn.allow_tf32,
    }


def set_matmul_precision(value: str, changes: UndoLog) -> None:
    """`torch.set_float32_matmul_precision(value)`, undone to what holds now, by whichever API it was set."""
    changes.make(lambda: torch.set_float32_matmul_precision(value), _restorer())


def precision_getter() -> Callable[[str, str], str] | None:
    """Backend and operator to what is in force; None before 2.9."""
    found: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
    return found


def _restorer() -> Callable[[], object]:
    """Both APIs write to the same state: the first is restored before the second, which is the finer one."""
    legacy, read = _legacy(), precision_getter()
    finer = {} if read is None else {backend: _own_value(read, backend) for backend in _BACKENDS}

    def restore() -> None:
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)
        for backend, value in finer.items():
            torch._C._set_fp32_precision_setter(backend, "matmul", value)

    return restore


def _legacy() -> str | None:
    """None where the second API was used in a way that the first cannot express."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _own_value(read: Callable[[str, str], str], backend: str) -> str:
    """What to set so that matrix multiplications have the value of now. One that equals the backend's is inherited, and
    goes on to follow it."""
    value = read(backend, "matmul")
    return _INHERITED if value == read(backend, "all") else value
