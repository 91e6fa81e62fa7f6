"""A model that was watched, built again in a trial, with calls as the job made them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autotune.backends.torch import files
from autotune.nesting import with_leaves
from autotune.plugins.watch.saving import define
from autotune.workload.arguments import Arguments

Call = tuple[tuple[Any, ...], dict[str, Any]]


def built(folder: Path, model: Mapping[str, Any], **sizes: int) -> Any:
    """What a model's function returns, of the description that stands in the file of the function. `sizes`: those of
    the dimensions that varied."""
    if model.get("source"):
        define(folder / model["source"])
    module = torch.load(folder / model["model"], map_location="cpu", weights_only=False)["model"]
    module.train(model["training"])
    if model.get("autocast"):
        device, kind = model["autocast"]
        module.forward = torch.autocast(device, dtype=getattr(torch, kind))(module.forward)
    if model.get("prompts"):
        text = model["prompts"]
        return {"model": module, "generate": {**text, "prompts": [list(ids) for ids in text["prompts"]]}}
    calls = _calls(folder, model)
    if sizes:
        return module, _resized(calls[0], model["dimensions"], sizes)
    if model["task"] == "train":
        made: dict[str, Any] = {"model": module, "inputs": calls[0], "more_inputs": calls[1:]}
        return made if model.get("own_loss") else {**made, "loss": any_loss}
    return (module, calls[0], calls[1:]) if calls[1:] else (module, calls[0])


def any_loss(model: Any, *inputs: Any, **named: Any) -> Any:
    """A loss of all outputs, in place of the job's own, which is not known: what is tuned with it is the model's
    forward and backward alone."""
    returned = model(*inputs, **named)
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    outputs = returned if isinstance(returned, (tuple, list)) else (returned,)
    floats = [each for each in outputs if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return sum(each.float().square().mean() for each in floats)


def _calls(folder: Path, model: Mapping[str, Any]) -> list[Call]:
    """Those that were chosen, the first to be timed."""
    found: list[Call] = []
    for name, places in model["calls"].items():
        kept = files.read(folder / name)
        found += [(kept[place].positional, dict(kept[place].keyword or {})) for place in places]
    return found


def _resized(call: Call, dimensions: Mapping[str, Any], sizes: Mapping[str, int]) -> Call:
    """The call with other sizes: values come again from the first on where there are more."""
    wanted = {(leaf, axis): sizes[name] for name, places in dimensions.items() for leaf, axis in places}
    number = -1

    def changed(leaf: Any) -> Any:
        nonlocal number
        if not isinstance(leaf, torch.Tensor):
            return leaf
        number += 1
        for axis in range(leaf.ndim):
            size = wanted.get((number, axis))
            if size is not None and size != leaf.shape[axis]:
                leaf = leaf.index_select(axis, torch.arange(size) % leaf.shape[axis])
        return leaf

    arguments = Arguments(*call)
    positional, keyword = with_leaves((arguments.positional, dict(arguments.keyword or {})), changed)
    return positional, keyword
