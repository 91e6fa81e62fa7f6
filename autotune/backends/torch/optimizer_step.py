"""`OptimizerStep`: the step of an optimizer under a config: fused, foreach, compiled, or as the job has it.

What a job puts in place of `optimizer.step`, before or after, is called: schedulers count steps so, libraries clip
gradients. It is looked up at each step.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from autotune.backends.torch.compiler import Compile
from autotune.backends.torch.tensors import tensors_in

_log = logging.getLogger("autotune")
_IMPLEMENTATIONS = ("foreach", "fused")
"""Flags of an optimizer's parameter groups; at most one of them is true."""


class OptimizerStep:
    """Called once in each training step."""

    def __init__(self, optimizer: torch.optim.Optimizer, implementation: str | None, compile_: Compile | None) -> None:
        self._optimizer = optimizer
        self._implementation = implementation
        self._compile = compile_
        self._class_step = type(optimizer).step
        self._compiled: tuple[Any, Callable[[], object]] | None = None
        """What stood at `optimizer.step` when it was compiled, and what came of it."""
        self._has_warned = False

    def __call__(self) -> None:
        with nullcontext() if self._implementation is None else _flags(self._optimizer, self._implementation):
            self._current()()

    def is_plain(self) -> bool:
        """Nothing but PyTorch's own, or the optimizer's own, runs: no hook and no wrapper of the job's."""
        hooks = [*self._optimizer._optimizer_step_pre_hooks, *_global_optimizer_pre_hooks]
        return not hooks and self._is_optimizers(self._optimizer.step)

    def _current(self) -> Callable[[], object]:
        step = self._optimizer.step
        if self._compile is None:
            return step
        if not self._is_optimizers(step):
            if not self._has_warned:
                self._has_warned = True
                _log.warning("autotune: the job replaced optimizer.step: it is called as it is, and not compiled")
            return step
        if self._compiled is None or self._compiled[0] != step:
            self._compiled = (step, self._compile(step))
        return self._compiled[1]

    def _is_optimizers(self, step: Any) -> bool:
        """It is what the optimizer's class had, with nothing around it but PyTorch's own, as a scheduler's count is."""
        function = getattr(step, "__func__", step)
        while function is not self._class_step:
            if not inspect.isfunction(function) or not function.__globals__["__name__"].startswith("torch."):
                return False
            function = getattr(function, "__wrapped__", None)
        return True


@contextmanager
def _flags(optimizer: torch.optim.Optimizer, implementation: str) -> Iterator[None]:
    """Within, the groups ask for this implementation. Outside, and in checkpoints, they are as the job has them."""
    wanted = {flag: flag == implementation for flag in _IMPLEMENTATIONS if flag in optimizer.defaults}
    before = [(group, {flag: group[flag] for flag in wanted if flag in group}) for group in optimizer.param_groups]
    for group, _ in before:
        group.update(wanted)
        _place_counts(optimizer, group)
    try:
        yield
    finally:
        for group, flags in before:
            group.update(flags)


def _place_counts(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """A fused step counts beside its weights, any other on the CPU; of an optimizer that has counted already."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        count = state.get("step")
        device = parameter.device if group.get("fused") else torch.device("cpu")
        if group.get("capturable") or (isinstance(count, torch.Tensor) and count.device == device):
            return  # They are alike in a group.
        if isinstance(count, torch.Tensor):
            state["step"] = count.to(device)


def place_counts(optimizer: torch.optim.Optimizer) -> None:
    """Put what an implementation counts where the groups, as the job has them, want it."""
    for group in optimizer.param_groups:
        _place_counts(optimizer, group)


def written(optimizer: torch.optim.Optimizer) -> tuple[list[float], float]:
    """Another value once a step has written anything: weights, moments, counts. It reads them all."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = [tensor for weight in weights for tensor in tensors_in(optimizer.state.get(weight, {}).values())]
    return [_sum(weight) for weight in weights], sum(map(_sum, states))


def _sum(tensor: torch.Tensor) -> float:
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return float(real.sum(dtype=torch.float64))
