"""A model that was watched, built again in a trial, with calls as the job made them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch

from autotune.backends.capabilities import USUAL_LEARNING_RATE
from autotune.backends.torch import files
from autotune.nesting import with_leaves
from autotune.plugins.watch.saving import define
from autotune.plugins.watch.torch.steps import loss_in
from autotune.workload.arguments import Arguments

Call = tuple[tuple[Any, ...], dict[str, Any]]


def built(folder: Path, model: Mapping[str, Any], *, accumulate: int = 1, **sizes: int) -> Any:
    """What a model's function returns, of the description that stands in the file of the function. `accumulate`: the
    batches of a training step; `sizes`: those of the dimensions that varied."""
    if model.get("source"):
        define(folder / model["source"])
    module = _loaded(folder / model["model"])
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
        loss = own_loss if model.get("own_loss") else any_loss
        if accumulate > 1:
            loss = _accumulated(loss, module, accumulate)
        made = {"model": module, "inputs": calls[0], "more_inputs": calls[1:], "loss": loss}
        return {**made, "optimizer": _optimizer(module, model)}
    return (module, calls[0], calls[1:]) if calls[1:] else (module, calls[0])


def _loaded(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=False)["model"]
    except ModuleNotFoundError as problem:
        where = "the model is of a module of the job's: run this command where the job runs, or name that in PYTHONPATH"
        raise ModuleNotFoundError(f"{problem}: {where}", name=problem.name) from None


def any_loss(model: Any, *inputs: Any, **named: Any) -> Any:
    """A loss of all outputs, in place of the job's own, which is not known: what is tuned with it is the model's
    forward and backward alone."""
    returned = model(*inputs, **named)
    if isinstance(returned, Mapping) or is_dataclass(returned):
        returned = tuple((returned if isinstance(returned, Mapping) else vars(returned)).values())
    outputs = returned if isinstance(returned, (tuple, list)) else (returned,)
    floats = [each for each in outputs if isinstance(each, torch.Tensor) and each.is_floating_point()]
    return sum(each.float().square().mean() for each in floats)


def own_loss(model: Any, *inputs: Any, **named: Any) -> Any:
    """The loss that the model returns."""
    return loss_in(model(*inputs, **named))


class _Held(torch.autograd.Function):
    """A number whose gradients were computed before. A step differentiates its loss itself, so nothing scales them."""

    @staticmethod
    def forward(ctx: Any, value: Any, gradients: list[Any], *weights: Any) -> Any:
        del weights
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return None, None, *ctx.gradients


def _accumulated(loss: Callable[..., Any], module: torch.nn.Module, num: int) -> Callable[..., Any]:
    """The mean loss of one batch that is given so many times, one after the other: no two graphs are held at a time."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]

    def of_all(model: Any, *inputs: Any, **named: Any) -> Any:
        def of_one() -> Any:
            return loss(model, *inputs, **named) / num

        if not torch.is_grad_enabled():
            return sum(of_one() for _ in range(num))
        before, total = [weight.grad for weight in weights], 0.0
        for weight in weights:
            weight.grad = None
        try:
            for _ in range(num - 1):
                value = of_one()
                value.backward(inputs=weights)
                total = total + value.detach()
            held = [weight.grad for weight in weights]
        finally:
            for weight, gradient in zip(weights, before, strict=True):
                weight.grad = gradient
        return of_one() + _Held.apply(total, held, *weights)  # type: ignore[no-untyped-call]

    return of_all


def _optimizer(module: torch.nn.Module, model: Mapping[str, Any]) -> torch.optim.Optimizer:
    """As the job has it, which clips gradients before a step where the job does."""
    kind, settings = model.get("optimizer") or ("torch.optim.AdamW", {"lr": USUAL_LEARNING_RATE})
    place, _, name = kind.rpartition(".")
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer: torch.optim.Optimizer = getattr(importlib.import_module(place), name)(weights, **settings)
    if model.get("clip"):
        what, limit = model["clip"]
        clip: Callable[..., object] = getattr(torch.nn.utils, f"clip_grad_{what}_")

        def before_a_step(*_: Any) -> None:
            clip(weights, limit)

        optimizer.register_step_pre_hook(before_a_step)
    return optimizer


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
