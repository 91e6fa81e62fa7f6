"""A model under a config: what a trial runs, and what `autotune.load(...).apply(model)` gives a job.

Everything is checked before anything is set. Some settings are the whole process's (threads, float32 matmul precision,
allocator, freezing), and some change the model in place (its memory format, its element type, modules compiled alone).
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from autotune.ailment import Ailment
from autotune.backends import torch_regions
from autotune.backends.torch_settings import Settings, compile_arguments, settings_of
from autotune.backends.torch_threads import Entry, ThreadSettings
from autotune.changes import Changes
from autotune.config import Config
from autotune.errors import InvalidConfigError

_INDUCTOR, _DYNAMO, _FUNCTORCH = "torch._inductor.config", "torch._dynamo.config", "torch._functorch.config"
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3), from malloc.h: https://man7.org/linux/man-pages/man3/mallopt.3.html"""
_TRIM_THRESHOLD, _MMAP_MAX = 128 * 1024, 65536
"""Their values when a process starts."""


def apply(model: torch.nn.Module, config: Config, changes: Changes) -> Any:
    """The model under `config`, compiled at its first call; the very same object where nothing wraps it, as where parts
    of it are compiled.

    What is changed in the process and in the model is noted in `changes`. Raises InvalidConfigError for what this
    release or system does not take, before anything is changed.
    """
    settings = settings_of(config)
    torch_regions.check(model, settings.region)
    arguments = prepare(model, settings, changes)
    step: Any = adapted(model, settings)
    if arguments is not None:
        step = torch_regions.compile_region(model, step, settings, arguments, changes)
    scope = inference_scope(settings)
    step = step if scope is None else WithoutGradients(step, scope)
    return ThreadSettings(entries_of_threads(settings)).around(step)


def prepare(model: torch.nn.Module, settings: Settings, changes: Changes) -> dict[str, Any] | None:
    """Set what holds for the process and change the model in place. Returns torch.compile's arguments, None for eager.

    Raises like `apply`, before anything is changed.
    """
    arguments = _arguments(settings)
    _set_in_process(settings, changes)
    _change_in_place(model, settings, changes)
    return arguments


def capture_despite(ailment: Ailment, changes: Changes) -> None:
    """See `Backend.capture_despite`: dynamo's own switches, so far as this release has them."""
    dynamo = importlib.import_module(_DYNAMO)
    for name in _CAPTURES.get(ailment, ()):
        if hasattr(dynamo, name):
            changes.set_attribute(dynamo, name, True)
    if ailment is Ailment.PRINT:
        # Printed after the graph, in the same order; a logger's methods are left out of the compiled code.
        reordered, left_out = ({print, warnings.warn}, {getattr(logging.Logger, name) for name in _LOGS})
        for name, functions in (("reorderable_logging_functions", reordered), (_IGNORED, left_out)):
            if hasattr(dynamo, name):
                changes.set_attribute(dynamo, name, getattr(dynamo, name) | functions)


_CAPTURES: dict[Ailment, tuple[str, ...]] = {
    Ailment.SCALAR: ("capture_scalar_outputs",),
    # A count of elements that is taken out of a tensor comes along with the shape.
    Ailment.DATA_SHAPE: ("capture_dynamic_output_shape_ops", "capture_scalar_outputs"),
}
_IGNORED = "ignore_logger_methods"
_LOGS = ("debug", "info", "warning", "error", "critical", "exception")


class Around(torch.nn.Module):
    """A model with something done around its calls; parameters, modes and attributes are those of the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        # Not `self.train(...)`: that would set all modules inside, and a model may keep some of them in another mode.
        self.training = model.training

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


class Adapted(Around):
    """A model whose calls are in another precision. Outputs stay in the type in which the model gives them.

    It is compiled together with the model: entering autocast and casting inputs then cost nothing at a call (0.19 ms
    in place of 0.21 for a small MLP under autocast, 0.16 in place of 0.20 frozen and cast).
    """

    def __init__(self, model: torch.nn.Module, cast: torch.dtype | None, autocast: torch.dtype | None) -> None:
        super().__init__(model)
        self._cast = cast
        self._autocast = autocast
        self._device_type = device_of(model).type

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._cast is not None:
            args, kwargs = _cast(args, self._cast), _cast(kwargs, self._cast)
        if self._autocast is None:
            return self.model(*args, **kwargs)
        with torch.autocast(self._device_type, dtype=self._autocast):
            return self.model(*args, **kwargs)


class WithoutGradients(Around):
    """A step that is always called without recording gradients, whatever the job has set.

    Frozen code needs it: called with gradients on, dynamo would compile the model again, unfrozen.
    """

    def __init__(self, model: Any, scope: Callable[[], Any]) -> None:
        super().__init__(model)
        self._scope = scope

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._scope():
            return self.model(*args, **kwargs)


def mode_options(mode: str | None) -> dict[str, Any]:
    """Inductor's entries behind a mode. Raises InvalidConfigError if this release has no such mode."""
    import torch._inductor

    modes = torch._inductor.list_mode_options()
    if mode is not None and mode not in modes:
        raise InvalidConfigError(f"knob mode: torch {torch.__version__} has no {mode!r}, only {', '.join(modes)}")
    return dict(modes[mode]) if mode is not None else {}


def _arguments(settings: Settings) -> dict[str, Any] | None:
    """Arguments of torch.compile, None for eager; all that can be refused is refused here."""
    _refuse_unknown_entries(settings)
    if settings.keeps_memory and not _has_mallopt():
        raise InvalidConfigError("knob allocator: only glibc on Linux can be told to keep freed memory")
    if not settings.compiled:
        return None
    if settings.backend == "torchair":
        return {**compile_arguments(settings, {}), "backend": _torchair(settings.torchair_mode)}
    _refuse_unknown_backend(settings.backend)
    return compile_arguments(settings, mode_options(settings.mode))


def _refuse_unknown_backend(backend: str) -> None:
    """torch.compile takes any backend and fails only at the first call, with a long story."""
    import torch._dynamo

    known = torch._dynamo.list_backends(exclude_tags=())
    if backend not in known:
        raise InvalidConfigError(f"knob backend: torch {torch.__version__} has no {backend!r}, only {', '.join(known)}")


def _refuse_unknown_entries(settings: Settings) -> None:
    """Inductor's and dynamo's settings come and go between releases."""
    wanted = {
        _INDUCTOR: {**settings.options, **settings.process_options},
        _DYNAMO: settings.dynamo_options,
        _FUNCTORCH: settings.functorch_options,
    }
    for module, entries in wanted.items():
        for name in entries:
            if not _has(importlib.import_module(module), name):
                raise InvalidConfigError(f"torch {torch.__version__} has no setting {module}.{name}")


def _has(module: Any, dotted: str) -> bool:
    value = module
    for part in dotted.split("."):
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def _torchair(mode: str | None) -> Any:
    """TorchAir's compiler for Ascend: https://www.hiascend.com/document . It has no name in torch."""
    try:
        torchair = importlib.import_module("torchair")
    except (ImportError, OSError) as error:
        raise InvalidConfigError(f"knob backend: torchair cannot be imported: {error}") from None
    config = torchair.CompilerConfig()
    if mode is not None:
        config.mode = mode
    return torchair.get_npu_backend(compiler_config=config)


def _set_in_process(settings: Settings, changes: Changes) -> None:
    if settings.keeps_memory:
        changes.make(lambda: _tell_allocator(-1, 0), lambda: _tell_allocator(_TRIM_THRESHOLD, _MMAP_MAX))
    if settings.num_threads is not None:
        _set(changes, torch.set_num_threads, settings.num_threads, torch.get_num_threads())
    if settings.matmul_precision is not None:
        before = torch.get_float32_matmul_precision()
        _set(changes, torch.set_float32_matmul_precision, settings.matmul_precision, before)
    for module, name, value in entries_of_threads(settings):
        changes.set_attribute(module, name, value)


def entries_of_threads(settings: Settings) -> list[Entry]:
    """What is set for the process, or in newer releases for the thread that sets it."""
    return [
        (importlib.import_module(module), name, value)
        for module, entries in (
            (_INDUCTOR, settings.process_options),
            (_DYNAMO, settings.dynamo_options),
            (_FUNCTORCH, settings.functorch_options),
        )
        for name, value in entries.items()
    ]


def _set(changes: Changes, setter: Callable[[Any], object], value: object, before: object) -> None:
    changes.make(lambda: setter(value), lambda: setter(before))


def _has_mallopt() -> bool:
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def _tell_allocator(trim_threshold: int, mmap_max: int) -> None:
    """With -1 and 0: blocks from the heap only, never from mmap, and a heap that never shrinks: no page is faulted in
    twice."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(_M_MMAP_MAX, mmap_max) and libc.mallopt(_M_TRIM_THRESHOLD, trim_threshold)):
        raise InvalidConfigError("knob allocator: mallopt(3) refused")


def _change_in_place(model: torch.nn.Module, settings: Settings, changes: Changes) -> None:
    if settings.channels_last:
        # Its convolutions answer in the format of their weights: inputs need not be converted.
        changes.make(partial(model.to, memory_format=torch.channels_last), _Weights(model).put_back)
    if settings.cast is not None:
        # Not `.to(dtype)`: that would cast complex parameters too, and lose their imaginary part.
        weights = _Weights(model, keep=True)
        changes.make(model.bfloat16 if settings.cast == "bfloat16" else model.half, weights.put_back, weights.forget)


class _Weights:
    """Parameters and buffers as they are now. Parameters stay the same objects all the time: optimizers hold them.

    Without `keep` only types and strides are noted: put back are today's values in their old form. With it the old
    tensors themselves, which are what a cast loses bits of.
    """

    def __init__(self, model: torch.nn.Module, *, keep: bool = False) -> None:
        self._model = model
        self._forms = {name: (each.dtype, each.stride()) for name, each in self._named()}
        self._kept = {name: each.data for name, each in self._named()} if keep else {}

    def put_back(self) -> None:
        for name, each in self._named():
            old = self._kept.get(name)
            each.data = _in_form(each.data, *self._forms[name]) if old is None else old

    def forget(self) -> None:
        self._kept = {}

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._model.named_parameters()
        yield from self._model.named_buffers()


def _in_form(tensor: torch.Tensor, dtype: torch.dtype, stride: tuple[int, ...]) -> torch.Tensor:
    if tensor.dtype == dtype and tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=dtype, device=tensor.device).copy_(tensor)


def inference_scope(settings: Settings) -> Callable[[], AbstractContextManager[Any]] | None:
    """What a call is to be made in; None: in whatever the job has set."""
    if settings.inference_mode:
        return torch.inference_mode
    return torch.no_grad if settings.freezes else None


def adapted(model: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """The model in its config's precision; the very same object where that is its own."""
    if settings.cast is None and settings.autocast is None:
        return model
    cast = None if settings.cast is None else getattr(torch, settings.cast)
    autocast = None if settings.autocast is None else getattr(torch, settings.autocast)
    return Adapted(model, cast, autocast)


def device_of(model: torch.nn.Module) -> torch.device:
    """Where the model's first tensor is."""
    tensor = next(iter([*model.parameters(), *model.buffers()]), None)
    return torch.device("cpu") if tensor is None else tensor.device


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating tensors in `dtype`, in the same nesting; everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _cast(each, dtype) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_cast(each, dtype) for each in value)
    return value
