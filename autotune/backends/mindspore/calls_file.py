"""Calls of a Cell in a file of arrays, and how they are watched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from numpy.typing import NDArray

from autotune.backends.array_file import SUFFIX, read_arrays, write_arrays
from autotune.backends.protocol import Backend
from autotune.workload.arguments import Arguments


class MindSporeCallsFile:
    """See `CallsFile`."""

    suffixes: tuple[str, ...] = (SUFFIX,)

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def read(self, path: Path) -> list[Arguments]:
        return read_arrays(path, _tensor_of)

    def write(self, calls: Sequence[Arguments], path: Path) -> None:
        write_arrays(calls, path, self._backend)


def watch_calls(model: Any, tell: Callable[[Arguments], None]) -> Callable[[], None]:
    """See `CallWatch`."""

    def before(_: Any, args: Any, kwargs: Any = None) -> None:
        tell(Arguments(tuple(args), kwargs or None))

    register = model.register_forward_pre_hook
    # Older releases show a hook the positional arguments alone.
    more = {"with_kwargs": True} if "with_kwargs" in inspect.signature(register).parameters else {}
    return register(before, **more).remove  # type: ignore[no-any-return]


def _tensor_of(array: NDArray[Any], dtype: str) -> ms.Tensor:
    """`dtype` as any framework writes it: PyTorch calls its types alike."""
    return ms.Tensor(array, dtype=getattr(ms, {"bool": "bool_"}.get(dtype.lower(), dtype.lower())))
