"""What is seen of the training steps of a model: batches that are accumulated, clipping, the optimizer, the loss.

Nothing is put into the job's backward pass. Between two calls one was made where gradients were written to. A step is
told by PyTorch's hook for all optimizers, or by weights that were written to: fused optimizers do not count as writing
(2.13), compiled ones call no hook. Of clipping PyTorch's own functions tell.
"""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autotune.plugins.watch.document import raise_of_signal

_MOST_CLIPPED = 256
"""Calls of functions that clip which are counted."""
_models: weakref.WeakSet[SeenUpdates] = weakref.WeakSet()
_held: weakref.WeakKeyDictionary[torch.optim.Optimizer, frozenset[int]] = weakref.WeakKeyDictionary()
"""Optimizer -> its weights, by their identity."""


class SeenUpdates:
    """Counts how often the weights of a model were updated: `count` gives another number after each time."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self._some = _some(model)
        self._num_steps = 0
        _models.add(self)

    def some(self) -> list[torch.Tensor]:
        """A few of the weights."""
        found = [each for held in self._some if (each := held()) is not None]
        if len(found) < len(self._some) and (model := self._model()) is not None:  # Others are in their places now.
            self._some = _some(model)
            return self.some()
        return found

    def count(self) -> int:
        """Steps, and writes to weights."""
        return self._num_steps + sum(each._version for each in self.some())

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step that has some of the weights."""
        del optimizer
        self._num_steps += 1


class SeenSteps(SeenUpdates):
    """Those of one model."""

    def __init__(self, model: torch.nn.Module, result: Any) -> None:
        """`result` is what the first call returned whose outputs were recorded for gradients."""
        super().__init__(model)
        self._own_loss = gives_loss(result)
        self._before: tuple[int, Any] | None = None
        self._num_backward = self._num_calls = 0
        """Since the step before: backward passes and calls."""
        self._counts: Counter[tuple[int, int]] = Counter()
        self._optimizers: weakref.WeakKeyDictionary[Any, Mapping[str, Any]] = weakref.WeakKeyDictionary()
        self._optimizer: Mapping[str, Any] | None = None

    def look(self) -> None:
        """After a call whose outputs were recorded."""
        gradients = [each.grad is not None and (id(each.grad), each.grad._version) for each in self.some()]
        before, self._before = self._before, (self.count(), gradients)
        if before is not None and self._before[0] != before[0]:
            self._counts[self._num_backward + 1, self._num_calls] += 1
            self._num_backward = self._num_calls = 0
        elif before is not None and gradients != before[1]:
            self._num_backward += 1
        self._num_calls += 1

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        super().note_step(optimizer)
        model = self._model()
        if model is not None and optimizer not in self._optimizers:
            has_all = not self._optimizers and _held[optimizer].issuperset(map(id, _trained(model)))
            self._optimizer = self._optimizers[optimizer] = {**_described(optimizer), "has_all": has_all}

    def described(self) -> Mapping[str, Any] | None:
        """For the document; None before the second step."""
        if not self._counts:
            return None
        (accumulated, calls), _ = self._counts.most_common(1)[0]
        return {
            "seen": self._counts.total(),
            "accumulated": accumulated,
            "calls": calls,
            "own_loss": self._own_loss,
            "clip": next((list(clip) for clip, _ in _clipped.most_common(1)), None),
            "optimizer": self._optimizer,
        }


def is_captured() -> bool:
    """A CUDA graph is being made of what is done now: no number is to be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def gives_loss(result: Any) -> bool:
    """Whether a model returns its loss, as one number by the name of `loss`, first, or alone."""
    loss = loss_in(result)
    return isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad


def loss_in(result: Any) -> Any:
    """Where a model that returns its loss has it; None: nowhere."""
    if isinstance(result, Mapping):
        return result.get("loss")
    if isinstance(result, (tuple, list)):
        return result[0] if result else None
    return getattr(result, "loss", None) if is_dataclass(result) else result


def _some(model: torch.nn.Module) -> list[weakref.ref[torch.Tensor]]:
    trained = _trained(model)
    places = sorted({0, len(trained) // 2, len(trained) - 1}) if trained else ()
    return [weakref.ref(trained[place]) for place in places]


def _trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def _described(optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
    """Class and settings, those of its largest group of weights."""
    kind, groups = type(optimizer), optimizer.param_groups
    largest = max(groups, key=lambda group: sum(weight.numel() for weight in group["params"]))
    settings = {**largest, "lr": largest.get("initial_lr", largest.get("lr"))}  # Before a schedule.
    taken = inspect.signature(kind).parameters.keys() - {"params"}
    return {
        "kind": f"{kind.__module__}.{kind.__qualname__}",
        "settings": {name: plain for name in taken & settings.keys() if _is_kept(plain := _plain(settings[name]))},
        "num_groups": len(groups),
    }


def _plain(value: Any) -> Any:
    """A list of a tuple, and a number of a tensor."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    return list(value) if isinstance(value, tuple) else value


def _is_kept(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_kept, value))
    return value is None or isinstance(value, (bool, int, float, str))


_clipped: Counter[tuple[str, float]] = Counter()
"""What was clipped in this process, and to what."""
_PLACES = (torch.nn.utils, torch.nn.utils.clip_grad)
_LIMITS = {"norm": "max_norm", "value": "clip_value"}
"""What is clipped -> the argument's name."""
_put: dict[tuple[Any, str], tuple[Any, Any]] = {}
"""Module and name -> the function of ours that stands there, and what stood there before."""


_hooks: list[Any] = []


def hook() -> None:
    """See from now on what is clipped, and steps of optimizers."""
    for what in _LIMITS:
        for place in _PLACES:
            before = getattr(place, name := f"clip_grad_{what}_")
            _put[place, name] = _counted(what, before), before
            setattr(place, name, _put[place, name][0])
    hook_optimizers()


def hook_optimizers() -> None:
    """See steps of optimizers from now on."""
    _hooks.append(register_optimizer_step_pre_hook(_before_a_step))


def unhook() -> None:
    """See none any more. What the job has put there since stays."""
    while _hooks:
        _hooks.pop().remove()
    for (place, name), (ours, before) in _put.items():
        if getattr(place, name) is ours:
            setattr(place, name, before)
    _put.clear()
    _clipped.clear()


def _before_a_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Never raises. Of a step that the job compiles nothing is left of it."""
    if torch.compiler.is_compiling() or is_captured():
        return
    try:
        if optimizer not in _held:
            _held[optimizer] = frozenset(id(weight) for group in optimizer.param_groups for weight in group["params"])
        for model in tuple(_models):
            if not _held[optimizer].isdisjoint(map(id, model.some())):
                model.note_step(optimizer)
    except Exception as problem:
        raise_of_signal(problem)


def _counted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _note_clipping(what, args[1] if len(args) > 1 else kwargs.get(_LIMITS[what]))
        return function(*args, **kwargs)

    return counted


def _note_clipping(what: str, limit: Any) -> None:
    """An infinite norm, by which some only compute it, clips nothing."""
    if isinstance(limit, (int, float)) and math.isfinite(limit) and _clipped.total() < _MOST_CLIPPED:
        _clipped[what, float(limit)] += 1
