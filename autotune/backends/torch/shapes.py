"""Calls of many shapes: which sizes dynamo takes as open, what is appended, and code for each shape apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch

from autotune.backends.capabilities import VaryingAxis
from autotune.backends.torch import counters, instruments
from autotune.backends.torch.apply import ModelSetup, prepare
from autotune.backends.torch.knobs import settings_of
from autotune.backends.torch.precision import with_precision
from autotune.backends.torch.tensors import device_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.diagnosis import Compilations
from autotune.workload.arguments import Arguments
from autotune.workload.regions import Region

_SMALLEST_OPEN = 2
"""Dynamo takes 0 and 1 as fixed, whatever it is told, and raises where they are marked with bounds (measured)."""


def marker(
    model: torch.nn.Module, changes: UndoLog
) -> Callable[[Arguments, Sequence[VaryingAxis]], AbstractContextManager[None]]:
    """See `ShapeStrategies`. Marks the tensors of a call, for as long as it lasts: a mark is an attribute of the job's
    own tensor, and other compiled code raises where it cannot leave a marked size open (measured). 0.4 us for each
    axis, with bounds 1.3 us, and 2.7 us to take the marks off (measured)."""
    from torch import _dynamo as dynamo

    @contextmanager
    def marked(arguments: Arguments, varying: Sequence[VaryingAxis]) -> Iterator[None]:
        leaves = arguments.leaves()
        tensors = [leaves[number] for number in {axis.leaf for axis in varying}]
        before = [set(vars(tensor)) for tensor in tensors]
        for axis in varying:
            tensor = leaves[axis.leaf]
            if axis.smallest is None:
                dynamo.maybe_mark_dynamic(tensor, axis.axis)
            elif tensor.shape[axis.axis] >= _SMALLEST_OPEN:
                smallest = max(axis.smallest, _SMALLEST_OPEN)
                dynamo.mark_dynamic(tensor, axis.axis, min=smallest, max=axis.largest)
        marks = [vars(tensor).keys() - known for tensor, known in zip(tensors, before, strict=True)]
        try:
            yield
        finally:
            for tensor, names in zip(tensors, marks, strict=True):
                for name in names:
                    vars(tensor).pop(name, None)

    return marked


def pad(tensor: torch.Tensor, axis: int, size: int, fill: float) -> torch.Tensor:
    """See `ShapeStrategies`."""
    shape = [size - length if number == axis else length for number, length in enumerate(tensor.shape)]
    appended: Any = tensor.new_full(shape, fill)
    return torch.cat([tensor, appended], axis)


def cut(tensor: torch.Tensor, axis: int, start: int, stop: int) -> torch.Tensor:
    """See `ShapeStrategies`. Along the first axis a view is as dense as the tensor; elsewhere it would have gaps, and
    a job that calls `view` on its outputs would fail."""
    part = tensor.narrow(axis, start, stop - start)
    return part if axis == 0 else part.clone(memory_format=torch.preserve_format)


def uncompiled() -> AbstractContextManager[Any]:
    """See `ShapeStrategies`."""
    eager: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return eager


def compilations(model: torch.nn.Module, config: Config) -> Compilations | None:
    """See `ShapeStrategies`."""
    if not settings_of(config).compiles_anything:
        return Compilations(num_graphs=0, num_given_up=0)
    return counters.compilations()


# Versions of a PyTorch model, each compiled for one shape and apart from the others.
#
# Dynamo keeps what it compiled by code object: a model that is compiled once for each shape has all of it in one
# list, whose guards are tried one by one, which ends at a limit of 8, and from which nothing can be taken. Here each
# version is a function with a code object of its own that calls the model; dynamo inlines the model into it. A
# version has one entry with its own guards, and goes when it is dropped.

_NUMBERS = itertools.count()
"""Dynamo remembers sizes by a function's name and line, and would make those that it saw change dynamic."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def versions(model: torch.nn.Module, config: Config, changes: UndoLog) -> TorchVersions | None:
    """See `PerShape`. None where parts of the model are compiled or left, each for whatever calls it, and where a
    backend may let go of nothing that it made."""
    settings = settings_of(config)
    if not settings.compiled or settings.region != Region() or settings.is_unknown:
        return None
    # A version sees one shape alone: what would be made dynamic by itself never is.
    setup = prepare(model, settings, changes, one_shape=True)
    return TorchVersions(model, with_precision(model, settings), setup, warms=settings.backend == "inductor")


class TorchVersions:
    """See `Versions`."""

    gives_back = True
    """Guards and graphs go; inductor's modules stay loaded, with the constants of frozen ones (measured, 2.13)."""

    def __init__(self, model: torch.nn.Module, step: torch.nn.Module, setup: ModelSetup, *, warms: bool) -> None:
        """`step` is the model or stands around it. `warms`: the compiler does something once in a process."""
        assert setup.compile is not None
        self._model = model
        self._step = step
        self._compile = setup.compile
        self._wrap = setup.wrap
        self._codes: dict[Callable[..., Any], CodeType] = {}
        self._dropped: CodeType | None = None
        self._is_warm = not warms
        self._device = device_of(model)
        self.eager: Callable[..., Any] = step

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """What dynamo's guards ask about, as far as it changes from call to call."""
        return (
            _seen(args),
            _seen(kwargs) if kwargs else None,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(self._device.type),
            self._model.training,
        )

    def new(self) -> Callable[..., Any]:
        function = function_of_its_own(self._step)
        version: Callable[..., Any] = self._wrap(self._compile(function))
        self._codes[version] = function.__code__
        return version

    def warm(self) -> None:
        """A tiny function is compiled. Without, imports, workers and headers would be taken for the first version's own
        price, which is several times too high for the next one."""
        if not self._is_warm:
            torch.compile(_tiny, dynamic=False)(torch.zeros(64, device=self._device))
            self._is_warm = True

    def drop(self, version: Callable[..., Any]) -> None:
        """The one that was dropped before: a thread may just be asking this one's guards."""
        doomed, self._dropped = self._dropped, self._codes.pop(version)
        if doomed is not None:
            torch._C._dynamo.eval_frame.reset_code(doomed)

    def memory_bytes(self) -> int | None:
        if self._device.type == "cpu":
            return None
        return instruments.held_bytes(torch.get_device_module(self._device))


def _tiny(x: torch.Tensor) -> torch.Tensor:
    return x.exp() + 1


def function_of_its_own(step: Any) -> FunctionType:
    """What calls `step` and has a code object that nothing else has."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    code = call.__code__.replace(co_name=f"version_{next(_NUMBERS)}")
    return FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


def _seen(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_seen, value))
    if isinstance(value, dict):
        return tuple((name, _seen(entry)) for name, entry in value.items())
    kind: Any = type(value)
    return (kind, value) if isinstance(value, _PLAIN) else kind
