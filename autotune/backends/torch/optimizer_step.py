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
from autotune.errors import InputError

_log = logging.getLogger("autotune")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_IMPLEMENTATIONS = ("foreach", "fused")
"""Flags of an optimizer's parameter groups; at most one of them is true."""


class OptimizerStep:
    """Called once in each training step."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        plain: Callable[[], object],
        implementation: str | None,
        compile_: Compile | None,
        *,
        with_closure: bool,
    ) -> None:
        """`plain` is the step as the job has it; `with_closure`: it gives the optimizer one, and cannot be compiled."""
        self._optimizer = optimizer
        self._plain = plain
        self._implementation = implementation
        self._compile = compile_
        self._with_closure = with_closure
        self._compiled: tuple[Any, Callable[[], object]] | None = None
        """What stood at `optimizer.step` when it was compiled, and what came of it."""
        self._has_warned = False

    def __call__(self) -> None:
        with nullcontext() if self._implementation is None else _flags(self._optimizer, self._implementation):
            self._current()()

    def _current(self) -> Callable[[], object]:
        if self._compile is None:
            return self._plain
        step = self._optimizer.step
        if self._with_closure or not _is_its_own(self._optimizer, step):
            if not self._has_warned:
                self._has_warned = True
                why = "takes a closure" if self._with_closure else "was replaced by the job"
                _log.warning("autotune: optimizer.step %s: it is called as it is, and not compiled", why)
            return self._plain
        if self._compiled is None or self._compiled[0] != step:
            self._compiled = (step, self._compile(step))
        return self._compiled[1]


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Nothing but PyTorch's own, or the optimizer's own, runs in a step: no hook and no wrapper of the job's."""
    hooks = [*optimizer._optimizer_step_pre_hooks, *_global_optimizer_pre_hooks]
    return not hooks and _is_its_own(optimizer, optimizer.step)


def _is_its_own(optimizer: torch.optim.Optimizer, step: Any) -> bool:
    """It is what the optimizer's class has, with nothing around it but PyTorch's own, as a scheduler's count is."""
    function = getattr(step, "__func__", step)
    while function is not type(optimizer).step:
        if not inspect.isfunction(function) or not function.__globals__["__name__"].startswith("torch."):
            return False
        function = getattr(function, "__wrapped__", None)
    return True


# What an optimizer's step takes. Its class is asked: what stands at `optimizer.step` may be a function around it, as a
# scheduler's is, whose signature is that of the class's function, or anything.


def require_steps(optimizer: Any) -> None:
    """Raises InputError for an object that is no optimizer at all."""
    lacking = [name for name in ("step", "zero_grad") if not callable(getattr(optimizer, name, None))]
    if lacking:
        raise InputError(
            f"training_step() was given as the optimizer a {type(optimizer).__name__}, which has no {lacking[0]}()",
            tip="call it as training_step(model, loss, optimizer)",
        )


def needed_by_step(optimizer: Any) -> list[str]:
    """Names of what a step cannot do without, as LBFGS's closure."""
    return [each.name for each in _taken(optimizer) if each.default is each.empty and each.kind in _POSITIONAL]


def takes_closure(optimizer: Any) -> bool:
    """It needs one; or there is room for one, it is not PyTorch's own, and nobody knows what it does without."""
    if needed_by_step(optimizer):
        return True
    module = getattr(getattr(type(optimizer), "step", None), "__module__", None) or ""
    has_room = any(each.name == "closure" or each.kind is each.VAR_POSITIONAL for each in _taken(optimizer))
    return has_room and not module.startswith("torch.")


def _taken(optimizer: Any) -> list[inspect.Parameter]:
    own = getattr(type(optimizer), "step", None)
    try:
        if own is None:  # It hands on what it is asked for, bound.
            return list(inspect.signature(optimizer.step, follow_wrapped=False).parameters.values())
        return list(inspect.signature(own).parameters.values())[1:]
    except (TypeError, ValueError):  # It is no function of Python.
        return []


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
