"""A training step under a config: forward, loss, backward, and the optimizer's step.

What is compiled is the model, or the model with the loss; AOTAutograd makes the backward of it. A step as one graph is
not to be had: dynamo breaks at `backward()`, and with `trace_autograd_ops` at what the loss returns (2.13; three graphs
either way, and no faster). The optimizer's step is a graph of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from numpy.typing import NDArray

from autotune.backends.torch.apply import device_of, prepare, with_attention
from autotune.backends.torch.compiler import Compile
from autotune.backends.torch.knobs import Settings, require_for_training, settings_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError

_IMPLEMENTATIONS = ("foreach", "fused")
"""Flags of an optimizer's parameter groups; at most one of them is true."""


def training_step(
    model: torch.nn.Module,
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    config: Config,
    changes: UndoLog,
) -> Callable[..., torch.Tensor]:
    """See `Training.training_step`. Gradients are cleared before they are computed, so they can be read afterwards."""
    settings = settings_of(config)
    require_for_training(settings)
    _require_implementation(optimizer, settings)
    setup = prepare(model, settings, changes)
    if settings.optimizer_impl is not None:
        _choose_implementation(optimizer, settings.optimizer_impl, changes)
    forward: Callable[..., torch.Tensor] = setup.wrap(_forward(model, loss, settings, setup.compile))
    update: Callable[[], object] = torch.compile(optimizer.step) if settings.optimizer_compiled else optimizer.step

    def step(*args: Any, **kwargs: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = forward(*args, **kwargs)
        value.backward()  # type: ignore[no-untyped-call]
        update()
        return value.detach()

    return step


def snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """See `Training.snapshot`. What the optimizer holds is left as it is: its gradients can be read without."""
    tensors = [*dict.fromkeys([*model.parameters(), *model.buffers(), *trained_parameters(optimizer)])]
    copies = [each.detach().clone() for each in tensors]

    def restore() -> None:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)

    return restore


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups, in order."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def set_weights(optimizer: torch.optim.Optimizer, arrays: Iterable[NDArray[Any]]) -> None:
    """See `Training.set_weights`."""
    with torch.no_grad():
        for parameter, array in zip(trained_parameters(optimizer), arrays, strict=True):
            parameter.copy_(torch.as_tensor(array))


def gradients(optimizer: torch.optim.Optimizer, to_array: Callable[[Any], NDArray[Any]]) -> list[NDArray[Any]]:
    """Of all that is trained; zeros where a step gave none."""
    found = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained_parameters(optimizer)]
    return [to_array(each).copy() for each in found]


def _forward(
    model: torch.nn.Module, loss: Callable[..., torch.Tensor], settings: Settings, compile_: Compile | None
) -> Callable[..., torch.Tensor]:
    """The loss of a batch, under autocast as a whole: a loss must not be computed in bfloat16."""
    called: Any = with_attention(model, settings)
    if compile_ is not None and settings.scope == "model":
        called = compile_(called)
    dtype = None if settings.autocast is None else getattr(torch, settings.autocast)
    device = device_of(model).type

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        with nullcontext() if dtype is None else torch.autocast(device, dtype=dtype):
            return loss(called, *args, **kwargs)

    return compile_(forward) if compile_ is not None and settings.scope == "loss" else forward


def _require_implementation(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    impl = settings.optimizer_impl
    if impl is not None and impl not in optimizer.defaults:
        raise InvalidConfigError(f"knob optimizer_impl: {type(optimizer).__name__} has no {impl} implementation")


def _choose_implementation(optimizer: torch.optim.Optimizer, impl: str, changes: UndoLog) -> None:
    wanted = {flag: flag == impl for flag in _IMPLEMENTATIONS if flag in optimizer.defaults}
    before = [{flag: group[flag] for flag in wanted} for group in optimizer.param_groups]
    changes.make(
        lambda: _set_flags(optimizer, [wanted] * len(before)),
        lambda: _set_flags(optimizer, before),
    )


def _set_flags(optimizer: torch.optim.Optimizer, flags: list[dict[str, Any]]) -> None:
    # The job may have added groups since, which have the flags that it gave them.
    for group, each in zip(optimizer.param_groups, flags, strict=False):
        group.update(each)
        for parameter in group["params"]:
            _place_count(optimizer.state.get(parameter, {}), group, parameter)


def _place_count(state: dict[str, Any], group: dict[str, Any], parameter: torch.Tensor) -> None:
    """A fused step counts beside its weights, any other on the CPU; of an optimizer that has counted already."""
    if isinstance(state.get("step"), torch.Tensor) and not group.get("capturable"):
        state["step"] = state["step"].to(parameter.device if group.get("fused") else "cpu")
