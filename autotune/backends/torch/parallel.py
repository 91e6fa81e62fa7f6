"""Training by several processes: what one of them may not do alone, and what it may have been given by mistake."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from autotune.errors import UnsuitableCallError

_log = logging.getLogger("autotune")
_UNSYNCHRONISED = (
    "autotune: training_step was given the %s within a DistributedDataParallel, and its loss calls no wrapper: "
    "gradients are not synchronised, and the processes' models drift apart; give training_step the wrapper"
)
_warned: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def is_one_of_many() -> bool:
    """Others take part in this process's steps, and would wait for it in vain, or it for them."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def watched_for_synchronisation(model: torch.nn.Module, step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, whose first call warns where the model lies within a DistributedDataParallel that it does not call: no
    gradients are synchronised then, and each process trains a model of its own."""
    wrappers = _wrappers_of(model) if is_one_of_many() else []
    return _FirstStep(model, step, wrappers) if wrappers else step


class _FirstStep:
    def __init__(self, model: torch.nn.Module, step: Callable[..., Any], wrappers: list[torch.nn.Module]) -> None:
        self._model = model
        self._step = step
        self._wrappers = wrappers

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._wrappers:
            return self._step(*args, **kwargs)
        wrappers, self._wrappers, called = self._wrappers, [], []
        hooks = [wrapper.register_forward_pre_hook(lambda *_: called.append(True)) for wrapper in wrappers]
        try:
            result = self._step(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        if not called and self._model not in _warned:
            _warned.add(self._model)
            _log.warning(_UNSYNCHRONISED, type(self._model).__name__)
        return result


def _wrappers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """PyTorch keeps no list of them, so all objects of the process are looked at."""
    kind: Any = torch.nn.parallel.DistributedDataParallel
    wrappers = [value for value in gc.get_objects() if issubclass(type(value), kind) and not _is_within(value, model)]
    return [wrapper for wrapper in wrappers if _is_within(model, wrapper)]


def _is_within(part: torch.nn.Module, model: torch.nn.Module) -> bool:
    return any(module is part for module in model.modules())


def is_sharded(model: torch.nn.Module) -> bool:
    """Its weights are parts that lie in several processes."""
    tensors: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    fsdp: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    return any(isinstance(module, fsdp) for module in model.modules()) or any(
        isinstance(tensor, tensors) for tensor in (*model.parameters(), *model.buffers())
    )


class WholeWeights:
    """Calls of code that has the model's weights as constants: refused once the model is sharded, before anything of
    the call runs. Sharding changes the classes of modules, which is quick to see."""

    def __init__(self, model: torch.nn.Module, step: Callable[..., Any]) -> None:
        self._model = model
        self._step = step
        self._modules = list(model.modules())
        self._classes = list(map(type, self._modules))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        classes = list(map(type, self._modules))
        if classes != self._classes:
            if is_sharded(self._model):
                raise UnsuitableCallError(
                    "the model was sharded over several processes (FSDP) after its weights had become constants of the "
                    "tuned code",
                    lasting=True,
                )
            self._classes = classes
        return self._step(*args, **kwargs)
