"""`rehearse`: a first forward and backward pass of a job's model or step, which leaves everything as it was.

Gradients are computed beside the weights (`torch.autograd.grad`), where no hook that waits for them acts: neither the
averaging of a DistributedDataParallel, nor an optimizer that steps within the backward pass. Weights that are sharded
need the pass as it is, in which all ranks take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from autotune.backends.torch.forward_state import attributes_of, generators_of
from autotune.backends.torch.parallel import is_sharded, is_waiting, wrappers_around
from autotune.backends.torch.tensors import device_of, tensors_in

_instead: ContextVar[Callable[[torch.Tensor], None] | None] = ContextVar("gradients_instead", default=None)


def gradients_instead() -> Callable[[torch.Tensor], None] | None:
    """What a step does with its loss in a rehearsal, in place of its backward pass and update; None in any other."""
    return _instead.get()


def rehearse(
    model: torch.nn.Module,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    turn: AbstractContextManager[None],
) -> None:
    """See `Rehearse`. Nothing goes through a wrapper of a static graph, whose first pass is not like the others."""
    wrappers = wrappers_around(model, call)
    if any(wrapper.static_graph for wrapper in wrappers):
        return
    gradients = [(weight, weight.grad) for weight in model.parameters()]
    moved = [*model.buffers(), *tensors_in((args, kwargs))]
    put_back = [generators_of(device_of(model)), _as_they_were(moved), *map(attributes_of, model.modules())]
    given = _instead.set(partial(_differentiate, model))
    try:
        with ExitStack() as around:
            if not wrappers and not is_waiting(model):
                around.enter_context(turn)
            for wrapper in wrappers:
                around.enter_context(_unsynchronised(wrapper))
            for weight, _ in gradients:
                weight.grad = None
            result = call(*args, **kwargs)
            outputs = [output for output in tensors_in((result,)) if output.requires_grad]
            if outputs and torch.is_grad_enabled():
                _differentiate(model, sum(output.abs().sum() for output in outputs))
    finally:
        _instead.reset(given)
        for weight, gradient in gradients:
            weight.grad = gradient
        for restore in put_back:
            restore()


def _differentiate(model: torch.nn.Module, value: Any) -> None:
    if is_sharded(model):
        value.backward()
        return
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if weights:
        torch.autograd.grad(value, weights, allow_unused=True)


@contextmanager
def _unsynchronised(wrapper: Any) -> Iterator[None]:
    """Within: its backward passes average nothing. It brings buffers together before its next forward pass, as ever."""
    brings_together = wrapper.require_forward_param_sync
    with wrapper.no_sync():
        yield
    wrapper.require_forward_param_sync = brings_together


def _as_they_were(tensors: list[torch.Tensor]) -> Callable[[], None]:
    """Copy what is in them. Returns what puts it back where it was written to."""
    written = [tensor for tensor in tensors if not tensor.is_inference()]
    before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in written]

    def put_back() -> None:
        with torch.no_grad():
            for tensor, version, content in before:
                if tensor._version != version:
                    tensor.copy_(content)

    return put_back
