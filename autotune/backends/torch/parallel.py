"""Training by several processes: what one of them may not do alone, and what it may have been given by mistake."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from typing import Any

import torch

_log = logging.getLogger("autotune")
_warned: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def is_one_of_many() -> bool:
    """Others take part in this process's steps, and would wait for it in vain, or it for them."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def warn_if_unsynchronised(model: torch.nn.Module) -> None:
    """Once for a model that lies within a DistributedDataParallel: only calls of that one synchronise gradients."""
    if not is_one_of_many() or model in _warned or not _is_wrapped(model):
        return
    _warned.add(model)
    _log.warning(
        "autotune: the %s given to training_step is the module within a DistributedDataParallel: gradients are "
        "synchronised only where the loss calls that wrapper; give training_step the wrapper",
        type(model).__name__,
    )


def _is_wrapped(model: torch.nn.Module) -> bool:
    """PyTorch keeps no list of wrappers, so all objects of the process are looked at."""
    kind: Any = torch.nn.parallel.DistributedDataParallel
    wrappers = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    return any(each is not model and model in each.modules() for each in wrappers if not _is_within(each, model))


def _is_within(part: torch.nn.Module, model: torch.nn.Module) -> bool:
    return any(each is part for each in model.modules())


def is_sharded(model: torch.nn.Module) -> bool:
    """Its weights are parts that lie in several processes."""
    tensors: Any = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    fsdp: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    return any(isinstance(each, fsdp) for each in model.modules()) or any(
        isinstance(each, tensors) for each in (*model.parameters(), *model.buffers())
    )
