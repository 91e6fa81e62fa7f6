"""Calls of a model in a file of `torch.save`, or of arrays, and how they are watched."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from autotune.backends.array_file import SUFFIX, read_arrays
from autotune.errors import InputError
from autotune.files import write_whole
from autotune.workload.arguments import Arguments


class TorchCallsFile:
    """See `CallsFile`. A file holds a list of calls, each as a model's function gives its inputs. Only what
    `torch.load(weights_only=True)` takes is read: tensors, containers, numbers and texts, no code."""

    suffixes: tuple[str, ...] = (".pt", ".pth", SUFFIX)

    def read(self, path: Path) -> list[Arguments]:
        if path.suffix == SUFFIX:
            return read_arrays(path, _tensor_of)
        try:
            calls = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # Whatever its parsers raise for a file of another kind.
            first = str(error).strip().partition("\n")[0]
            raise InputError(
                f"{path}: cannot be read: {first}", tip="torch.save a list of calls of tensors, numbers and containers"
            ) from None
        if not isinstance(calls, (list, tuple)) or not calls:
            raise InputError(
                f"{path}: holds a {type(calls).__name__} and not a list of calls",
                tip="torch.save([(x1, mask1), (x2, mask2)], FILE)",
            )
        return [Arguments.of(each) for each in calls]

    def write(self, calls: Sequence[Arguments], path: Path) -> None:
        buffer = io.BytesIO()
        torch.save([(_plain(each.positional), _plain(dict(each.keyword or {}))) for each in calls], buffer)
        try:
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except pickle.UnpicklingError as error:
            raise InputError(f"the calls hold what a safe file cannot: {str(error).partition(chr(10))[0]}") from None
        write_whole(path, buffer.getvalue())


def watch_calls(model: Any, tell: Callable[[Arguments], None]) -> Callable[[], None]:
    """See `CallWatch`."""

    def before(_: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():  # A compiler that records the call shows tensors without numbers.
            tell(Arguments(args, kwargs or None))

    return model.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove  # type: ignore[no-any-return]


def _tensor_of(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """`dtype` as any framework writes it: MindSpore calls its types alike, with a capital."""
    return torch.from_numpy(array).to(getattr(torch, dtype.lower()))


def _plain(value: Any) -> Any:
    """With dicts in place of other mappings, whose classes no safe file holds."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value
