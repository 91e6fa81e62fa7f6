"""What is kept of a Cell and its calls in the folder."""

from __future__ import annotations

import hashlib
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore.communication import GlobalComm, get_group_size

from autotune.backends import array_file
from autotune.backends.mindspore.apply import already_compiled, selected_device
from autotune.backends.mindspore.compiled_cell import is_graph_mode
from autotune.backends.mindspore.tensors import array_of
from autotune.environment import num_usable_cores, threads_said
from autotune.plugins.watch import saving
from autotune.plugins.watch.mindspore import cell_file
from autotune.plugins.watch.recorder import Recorder, Seen

if TYPE_CHECKING:
    from autotune.workload.arguments import Arguments

SUFFIX, CALLS_SUFFIX = ".pickle", array_file.SUFFIX
_UNRECORDED = "make them outside of ms.grad and ms.value_and_grad"


def seen_of(cell: ms.nn.Cell) -> Seen:
    """The record of a model that was met now."""
    seen = Seen(type(cell).__name__, structure_of(cell))
    seen.model = weakref.ref(cell)
    if is_graph_mode():
        seen.notes[
            "the job calls it in graph mode, and a study compares with PyNative: a file is applied where the job "
            "leaves graph mode, or says load(FILE).apply(MODEL, process_settings=True)"
        ] = None
    return seen


def structure_of(cell: ms.nn.Cell) -> str:
    """A digest of the names, shapes and types of Parameters: equal for models of one code."""
    digest = hashlib.sha256(type(cell).__qualname__.encode())
    for name, parameter in cell.parameters_and_names():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
    return digest.hexdigest()[:12]


class CopiedTensor:
    """A tensor as it was."""

    def __init__(self, tensor: ms.Tensor) -> None:
        self.array = np.array(array_of(tensor))
        self.dtype = str(tensor.dtype)


def tensor_bytes(leaf: Any) -> int | None:
    """See `ModelFiles`."""
    return leaf.size * leaf.itemsize if isinstance(leaf, ms.Tensor) else None


def copied(tensor: ms.Tensor) -> Any:
    """See `ModelFiles`."""
    with cell_file.unrecorded():
        return CopiedTensor(tensor)


def save(recorder: Recorder, seen: Seen) -> None:
    """See `saving.save`."""
    saving.save(recorder, seen, sys.modules[__name__])


def why_not(cell: ms.nn.Cell) -> str | None:
    """See `ModelFiles`."""
    compiled = already_compiled(cell)
    return (
        None if compiled is None else f"it is {compiled}, and a study would compile that; take it out, and watch again"
    )


def size_bytes(cell: ms.nn.Cell) -> int:
    """See `ModelFiles`."""
    return sum(parameter.size * parameter.itemsize for parameter in cell.get_parameters())


def write_model(cell: ms.nn.Cell, path: Path) -> Mapping[str, Sequence[str]]:
    """See `ModelFiles`."""
    return cell_file.write(cell, path)


def write_calls(calls: Sequence[Arguments], path: Path) -> None:
    """See `ModelFiles`."""

    def taken(value: Any) -> tuple[Any, str] | None:
        return (value.array, value.dtype) if isinstance(value, CopiedTensor) else None

    array_file.write_arrays(calls, path, taken)


def describe_process() -> Mapping[str, Any]:
    """What of MindSpore's own holds for all calls of this process."""
    return {
        "framework": "mindspore",
        "release": ms.__version__,
        "threads": threads_said(os.environ) or num_usable_cores(),
        "device": selected_device(),
        "ranks": num_ranks(),
        "unrecorded": _UNRECORDED,
    }


def num_ranks() -> int:
    """The processes of the distributed job that this is one of; 1: it is alone."""
    return int(get_group_size()) if GlobalComm.INITED else 1
