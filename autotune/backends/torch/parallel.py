"""Training by several processes: what one of them may not do alone, and what it may have been given by mistake."""

from __future__ import annotations

import gc
import logging
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from autotune.backends.origin import Origin, origin
from autotune.backends.torch.compiler import CompileAttempts
from autotune.errors import UnsuitableCallError, finish_by, let_through

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


class StoreRanks:
    """The ranks of `torch.distributed`. See `Ranks`: the notes lie in the store by which the ranks found each other."""

    def __init__(self, rank: int, num_ranks: int, store: Any, timeout_s: float | None = None) -> None:
        distributed: Any = torch.distributed
        self.rank = rank
        self.num_ranks = num_ranks
        self.timeout_s = timeout_s
        self.kept: dict[Any, Any] = {}
        self._store = distributed.PrefixStore("autotune", store)

    @property
    def first_of_host(self) -> int | None:
        """As torchrun numbers them: those of a host come one after the other."""
        of_host = os.environ.get("LOCAL_RANK", "")
        return self.rank - int(of_host) if num_local_ranks() > 1 and of_host.isdigit() else None

    def write(self, name: str, text: str) -> None:
        self._store.set(name, text)

    def are_written(self, names: Sequence[str]) -> bool:
        return bool(self._store.check(list(names)))

    def read(self, name: str) -> str:
        text: bytes = self._store.get(name)
        return text.decode()

    def settle(self, name: str, text: str) -> None:
        self._store.compare_set(name, "", text)


def ranks() -> StoreRanks | None:
    """See `Backend.ranks`. The ranks of a "fake" group, with which one process plays many, answer nobody."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() < 2:
        return None
    if distributed.get_backend() == "fake":
        return None
    group, store = distributed.distributed_c10d._get_default_group(), distributed.distributed_c10d._get_default_store()
    if group not in _ranks_of:
        _ranks_of[group] = StoreRanks(distributed.get_rank(), distributed.get_world_size(), store, _timeout_s(group))
    return _ranks_of[group]


def _timeout_s(group: Any) -> float | None:
    """So far as this release of torch tells."""
    with suppress(Exception):
        limits = [group._get_backend(device).options._timeout for device in group._device_types]
        return float(min(limit.total_seconds() for limit in limits))
    return None


_ranks_of: weakref.WeakKeyDictionary[Any, StoreRanks] = weakref.WeakKeyDictionary()
"""Default group -> its ranks."""


def num_local_ranks() -> int:
    """Ranks on this host, as launchers say it; 1 where none does."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(number)) if number.isdigit() else 1


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model within a DistributedDataParallel, whose names it has; the very same object if it is none."""
    kind: Any = torch.nn.parallel.DistributedDataParallel
    return unwrapped(model.module) if isinstance(model, kind) else model


class MadeOnce:
    """Calls of a compiled model that nobody may make twice, since other ranks would wait for the collectives of the
    second one in vain. What does not compile runs as it is written, where it stands, and so does all that is new after
    it: the ranks leave the config together."""

    def __init__(self, step: Callable[..., Any], attempts: CompileAttempts) -> None:
        self._step = step
        self._attempts = attempts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self._step(*args, **kwargs)
        except UnsuitableCallError:
            raise
        except Exception as error:
            if self._attempts.take_error() is not None or origin(error) in (Origin.JOB, Origin.HOOK):
                let_through(error)  # It ran as it is written.
            finish_by(error, None)
            raise
        failed = self._attempts.take_error()
        if failed is not None:
            self._attempts.are_over = True
            finish_by(failed, lambda: result)
            raise failed
        return result


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


def wrappers_around(model: torch.nn.Module, call: object) -> list[Any]:
    """Each DistributedDataParallel that a call may go through: within the model or the call, or around the model."""
    kind: Any = torch.nn.parallel.DistributedDataParallel
    modules = [*model.modules(), *(call.modules() if isinstance(call, torch.nn.Module) else ())]
    return [*dict.fromkeys([*(module for module in modules if isinstance(module, kind)), *_wrappers_of(model)])]


def is_waiting(model: torch.nn.Module) -> bool:
    """Its calls are known to wait for other ranks."""
    return is_sharded(model) or any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules())


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

    @property
    def again(self) -> Callable[..., Any]:
        """What it stands around has for a call that follows one like it (`FrozenStep`): no model is sharded between
        the two."""
        found: Callable[..., Any] = getattr(self._step, "again", self._step)
        return found
