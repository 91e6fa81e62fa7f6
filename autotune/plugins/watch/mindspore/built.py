"""A Cell that was watched, built again in a trial, with calls as the job made them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

from autotune.backends.mindspore import tensors
from autotune.plugins.watch.mindspore import cell_file
from autotune.plugins.watch.saving import define
from autotune.workload.arguments import Arguments

Call = tuple[tuple[Any, ...], dict[str, Any]]


def built(folder: Path, model: Mapping[str, Any], **sizes: int) -> Any:
    """What a model's function returns, of the description that stands in the file of the function. `sizes`: those of
    the dimensions that varied."""
    if model.get("source"):
        define(folder / model["source"])
    cell = cell_file.read(folder / model["model"])
    if cell.training != model["training"]:
        cell.set_train(model["training"])
    calls = _calls(folder, model)
    if sizes:
        return cell, _resized(calls[0], model["dimensions"], sizes)
    if model["task"] == "train":
        calls = [_by_position(cell, call) for call in calls]
        return {"model": cell, "inputs": calls[0], "more_inputs": calls[1:], "loss": any_loss}
    return (cell, calls[0], calls[1:]) if calls[1:] else (cell, calls[0])


def any_loss(model: Any, *inputs: Any) -> Any:
    """A loss of all outputs, in place of the job's own, which is not known: what is tuned with it is the model's
    forward and backward alone. MindSpore compiles it: it keeps to what that takes."""
    returned = model(*inputs)
    outputs = returned if isinstance(returned, (tuple, list)) else (returned,)
    total = 0.0
    for each in outputs:
        total = total + ms.ops.square(each.astype(ms.float32)).mean()
    return total


def _calls(folder: Path, model: Mapping[str, Any]) -> list[Call]:
    """Those that were chosen, the first to be timed."""
    found: list[Call] = []
    for name, places in model["calls"].items():
        kept = tensors.read(folder / name)
        found += [(kept[place].positional, dict(kept[place].keyword or {})) for place in places]
    return found


def _by_position(cell: ms.nn.Cell, call: Call) -> Call:
    """A step takes no names."""
    return (inspect.signature(cell.construct).bind(*call[0], **call[1]).args, {})


def _resized(call: Call, dimensions: Mapping[str, Any], sizes: Mapping[str, int]) -> Call:
    """The call with other sizes: values come again from the first on where there are more."""
    wanted = {(leaf, axis): sizes[name] for name, places in dimensions.items() for leaf, axis in places}
    leaves, number = Arguments(*call).leaves(), -1
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, ms.Tensor):
            continue
        number += 1
        array = tensors.array_of(leaf)
        for axis in range(array.ndim):
            size = wanted.get((number, axis), array.shape[axis])
            array = array.take(np.arange(size) % array.shape[axis], axis)
        leaves[place] = tensors.tensor_like(array, leaf)
    arguments = Arguments(*call).with_leaves(leaves)
    return arguments.positional, dict(arguments.keyword or {})
