"""The code of a model's calls in `generate`: a program for each form of a call, and what is asked before it is called.

A form is what the guards of compiled code ask of a call: sizes, types and modes. Text is written by hundreds of decode
steps of one form, and what is asked at each counts: a step takes a millisecond. So a step that follows one of its form
(`Step.is_next`) is known by a look at its arguments alone. What a job may change of the model is looked at when a text
begins, in its prefill and its first step, and not at each: methods of classes (`CompiledStep.again`), types that the
cache holds (`FrozenStep.again`), and hooks of modules (`Hooks`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter, methodcaller
from types import FunctionType
from typing import Any

import torch
from torch.nn.attention import sdpa_kernel

from autotune.backends.torch import regions
from autotune.backends.torch.apply import prepare
from autotune.backends.torch.compiled_step import again
from autotune.backends.torch.knobs import Settings
from autotune.backends.torch.precision import order_of
from autotune.backends.torch.static_cache import CacheForm
from autotune.backends.torch.tensors import device_of
from autotune.backends.undo import UndoLog

Call = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """Code for one form of a call."""

    call: Call
    again: Call
    """For a call right after one of the same form, in the same text."""
    is_untuned: bool = False
    """Whether the program is the model's own call."""


class Programs:
    """The code of one phase: a program for each form of a call."""

    def __init__(self, model: Any, settings: Settings, changes: UndoLog, most: int) -> None:
        regions.chosen(model, settings.region)
        self._most = most
        self._lock = threading.Lock()
        self._made: dict[Hashable, Program] = {}
        self._around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda step: step
        own = _in_precision(model, settings, model._call_impl)
        self.eager = Program(own, own, is_untuned=own == model._call_impl)
        target, self._step = model, own
        copy = None if settings.region.is_whole else regions.copy_modules(model)
        if copy is not None:
            target, self._around = copy.model, copy.around
            self._step = _in_precision(target, settings, target._call_impl)
        # What is compiled in place, or of a copy, is kept by its modules, and its guards have to see hooks.
        self._hooks = Hooks(model) if copy is None else None
        self._seen_hooks = None if self._hooks is None else self._hooks.now()
        setup = prepare(target, settings, changes, guards_hooks=self._hooks is None)
        self._compile, self._wrap = setup.compile, setup.wrap
        if self._compile is None:
            return
        if settings.region.compiled:
            regions.compile_region(target, target, settings.region, self._compile)
            self._compile = lambda target: target
        elif settings.region.left:
            regions.compile_region(target, target, settings.region, lambda target: target)

    def of(self, form: Hashable) -> Program | None:
        """Compiled at its first call; None where there are as many as there may be."""
        if self._compile is None:
            return self.eager
        if self._hooks is not None and (now := self._hooks.now()) != self._seen_hooks:
            with self._lock:
                self._made.clear()
                self._seen_hooks = now
        program = self._made.get(form)
        if program is None:
            with self._lock:
                program = self._made.get(form)
                if program is None and len(self._made) < self._most:
                    step = self._wrap(self._compile(_of_its_own(self._step)))
                    program = Program(self._around(step), self._around(again(step)))
                    self._made[form] = program
        return program

    def clear(self) -> None:
        """Let go of all."""
        self._made.clear()


class Hooks:
    """Hooks of a model's modules. Guards of compiled code would ask each module for them at each call: 40 us of a step
    of a Llama with four layers (2.13)."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._modules: list[torch.nn.Module] = []
        self._children: list[torch.nn.Module | None] = []

    def now(self) -> list[int]:
        """Numbers of all, which PyTorch gives once each. Some 20 us where no module was replaced since."""
        if not self._modules or self._found_children() != self._children:
            self._modules = [*self._model.modules()]
            self._children = self._found_children()
        return [*chain.from_iterable(chain.from_iterable(map(_hooks, self._modules)))]

    def _found_children(self) -> list[torch.nn.Module | None]:
        return [*chain.from_iterable(map(_values, map(_children, self._modules)))]


_children, _values = attrgetter("_modules"), methodcaller("values")
_hooks = attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Step:
    """A decode step that was made, by which the next one of the same text is known."""

    def __init__(
        self, program: Program, model: Any, kwargs: dict[str, Any], *, is_open: bool, device: str, num_tokens: int
    ) -> None:
        """`is_open`: the program's sizes are. `num_tokens`: what the cache holds after it."""
        self.call = program.again
        self.num_tokens = num_tokens
        self._model = model
        self._names = list(kwargs)
        self._known = [_Facts(value, is_open) if type(value) is torch.Tensor else value for value in kwargs.values()]
        self._device = device
        self._modes = modes(device)

    def is_next(self, kwargs: dict[str, Any]) -> bool:
        """Whether a call goes to the same program, and nothing else is to be asked of it: it has the very same cache
        and other arguments, but for tensors, and those are alike in what its form has of them."""
        if torch.is_grad_enabled() or self._model.training or modes(self._device) != self._modes:
            return False
        if list(kwargs) != self._names:
            return False
        for value, known in zip(kwargs.values(), self._known, strict=True):
            if value is not known and not (type(known) is _Facts and known.hold_for(value)):
                return False
        return True


class _Facts:
    """What the form of a call has of a tensor."""

    def __init__(self, tensor: torch.Tensor, is_open: bool) -> None:
        self._shape, self._dtype, self._device = tensor.shape, tensor.dtype, tensor.device
        self._sizes = _open_sizes(tensor.shape) if is_open else None

    def hold_for(self, value: Any) -> bool:
        if type(value) is not torch.Tensor or value.dtype is not self._dtype or value.device != self._device:
            return False
        shape = value.shape
        return shape == self._shape or (self._sizes is not None and _open_sizes(shape) == self._sizes)


def of_prefill(settings: Settings, prefill: str) -> Settings:
    """The decode step's, but for what is set in the process already."""
    settings = replace(settings, num_threads=None, keeps_memory=False, matmul_precision=None, cudnn_benchmark=False)
    settings = replace(settings, fp16_accumulation=False, blas_library=None)
    if prefill == "eager":
        return Settings(compiled=False, autocast=settings.autocast, attention=settings.attention)
    return replace(settings, dynamic=prefill == "compile_dynamic")


def _in_precision(model: Any, settings: Settings, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of the model in its config's precision, with its attention kernel. `generate` widens the logits itself."""
    if settings.attention is not None:
        call = _with_kernel(order_of(settings.attention), call)
    if settings.autocast is not None:
        call = _under_autocast(device_of(model).type, getattr(torch, settings.autocast), call)
    return call


def _with_kernel(order: list[Any], call: Callable[..., Any]) -> Callable[..., Any]:
    def with_kernel(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(order, set_priority=True):
            return call(*args, **kwargs)

    return with_kernel


def _under_autocast(device: str, dtype: torch.dtype, call: Callable[..., Any]) -> Callable[..., Any]:
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            return call(*args, **kwargs)

    return under_autocast


def form_of(kwargs: dict[str, Any], cache: CacheForm | None, device: str, *, is_open: bool) -> Hashable:
    """What a program is for: its guards ask for no more. `cache`: None where its sizes are open."""
    arguments = tuple((name, _seen(value, is_open)) for name, value in kwargs.items() if name != "past_key_values")
    return (None if is_open else cache, arguments, *modes(device))


def modes(device: str) -> tuple[bool, bool]:
    """Modes in which a call is made."""
    return torch.is_inference_mode_enabled(), torch.is_autocast_enabled(device)


def _seen(value: Any, is_open: bool) -> Hashable:
    """What dynamo's guards ask of an argument; with open sizes, whether there is more than one."""
    if isinstance(value, torch.Tensor):
        return (_open_sizes(value.shape) if is_open else value.shape, value.dtype, value.device)
    if isinstance(value, dict):
        return tuple((name, _seen(entry, is_open)) for name, entry in value.items())
    return value if isinstance(value, (bool, int, type(None))) else type(value).__name__


def _open_sizes(shape: torch.Size) -> tuple[bool, ...]:
    return tuple([size > 1 for size in shape])


_NUMBERS = itertools.count()
"""Dynamo remembers sizes by a function's name and line, and would make those that it saw change dynamic."""


def _of_its_own(step: Any) -> FunctionType:
    """What calls `step` and has a code object that nothing else has: dynamo keeps what it compiled by code object."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    code = call.__code__.replace(co_name=f"version_{next(_NUMBERS)}")
    return FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
