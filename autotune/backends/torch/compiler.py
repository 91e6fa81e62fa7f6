"""torch.compile under settings of inductor and dynamo that hold for one model alone.

Rule of this file: a setting that torch.compile does not take as an argument is set while the compiler works on this
model, in whichever thread that is, and at no other time. A switch that stays on would reach whatever else the job
compiles: freezing, for one, would make constants of another model's weights.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from autotune.backends.origin import interruption
from autotune.backends.torch.checked_loops import checks_raise
from autotune.errors import InvalidConfigError, UnsuitableCallError

Entry = tuple[Any, str, object]
"""A module of settings, a setting's name, and its value."""

Faults = list[Callable[[], UnsuitableCallError]]
"""What is wrong with code that was compiled, as far as it is known by now: why no further call is for it."""

Compile = Callable[[Any], Any]
"""Compiles a module or a function, as `torch.compile` without further arguments."""

_INDUCTOR = "inductor"
_SWITCHES = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
"""Variables that turn torch.compile off: what it returns is what it was given."""
_FORMER_NAMES = {"recompile_limit": "cache_size_limit"}
"""Setting -> its name before torch 2.7."""


def setting_name(module: Any, name: str) -> str:
    """The name that a setting has in this release."""
    former = _FORMER_NAMES.get(name, name)
    return former if not hasattr(module, name) and hasattr(module, former) else name


class CompileAttempts:
    """Compilations that may fail: the code in question runs as it is written then, where it stands, and with it all
    that would be compiled after it, until the error was taken."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self.are_over = False
        """Nothing is compiled any more: all that is new runs as it is written."""

    def take_error(self) -> Exception | None:
        """What a compilation raised since this was asked last."""
        error, self._error = self._error, None
        return error

    def around(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """Dynamo's callback, which returns what is done with a frame."""

        @functools.wraps(compile_)
        def attempt(*args: Any, **kwargs: Any) -> Any:
            if self._error is not None or self.are_over:
                return _as_written()
            try:
                return compile_(*args, **kwargs)
            except Exception as error:
                if interruption(error) is not None or not _can_run_as_written(error):
                    raise
                self._error = error
                return _as_written()

        return attempt if _takes_strategies() else compile_


def compiler(arguments: dict[str, Any], entries: Sequence[Entry], attempts: CompileAttempts | None = None) -> Compile:
    """`torch.compile(..., **arguments)` under `entries`. Raises InvalidConfigError if this release or process cannot.
    Without `attempts` a call raises what its compilation raises."""
    if off := [name for name in _SWITCHES if os.environ.get(name) == "1"]:
        raise InvalidConfigError(f"torch.compile is turned off in this process: unset {' and '.join(off)}")
    # PyTorch's own. Lightning puts a function in its place that deep-copies the arguments; not every backend can be.
    torch_compile: Callable[..., Any] = inspect.unwrap(torch.compile)
    by_inductor = arguments.get("backend", _INDUCTOR) == _INDUCTOR or callable(arguments["backend"])
    if not entries and attempts is None:
        return lambda target: torch_compile(target, **arguments)

    def context() -> Any:
        """With the one place where dynamo calls the compiler, be it for the first call, another shape or the rest of a
        broken graph. Patching around each call instead would cost it some 40 microseconds (2.13)."""
        made = getattr(torch_compile(torch.nn.Identity(), **arguments), "dynamo_ctx", None)
        if not callable(getattr(made, "callback", None)):
            raise InvalidConfigError(f"torch {torch.__version__} cannot keep compiler settings to one model")
        assert made is not None
        callback = made.callback if attempts is None else attempts.around(made.callback)
        made.callback = _under(entries, callback, checks_raise if by_inductor else nullcontext)
        return made

    made_ahead = iter([context()])  # A release that cannot is refused before anything is compiled.

    def compile_(target: Any) -> Any:
        # A context for each target, as torch.compile has it: `isolate_recompiles` keeps contexts apart.
        return (next(made_ahead, None) or context())(target)

    return compile_


class ConstantsSeen:
    """A backend for torch.compile, which tells what it makes constants of before it does."""

    def __init__(
        self, compile_graph: Callable[..., Callable[..., Any]], tell: Callable[[list[torch.Tensor]], object]
    ) -> None:
        """`compile_graph`: the backend that does it, of a graph and inputs."""
        self._compile_graph = compile_graph
        self._tell = tell

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        constants = dict(_attributes(graph))
        if any(constant.layout is not torch.strided for constant in constants.values()):
            return graph  # Inductor fails at a sparse constant (2.13): the graph runs as it was captured.
        self._tell(list(constants.values()))
        aliases = {id(constant): _alias(constant) for constant in constants.values()}
        for name, constant in constants.items():
            owner, _, attribute = name.rpartition(".")
            setattr(graph.get_submodule(owner), attribute, aliases[id(constant)])
        return self._compile_graph(graph, inputs)


def _attributes(graph: torch.fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that dynamo took into the graph: parameters, buffers, and plain attributes of modules."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            value = functools.reduce(getattr, str(node.target).split("."), graph)
            if isinstance(value, torch.Tensor):
                yield str(node.target), value


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same memory: what is compiled holds on to its constants, and a job cannot swap a tensor that
    something else holds (`torch.utils.swap_tensors`). What is made of other tensors stays itself."""
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(tensor.data, tensor.requires_grad)
    return tensor.data if type(tensor) is torch.Tensor else tensor


def _under(
    entries: Sequence[Entry], callback: Callable[..., Any], within: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    @functools.wraps(callback)  # Dynamo reads attributes of its callback.
    def compile_under(*args: Any, **kwargs: Any) -> Any:
        with _lock(), _set(entries), within():
            return callback(*args, **kwargs)

    return compile_under


def _takes_strategies() -> bool:
    """In other releases a frame that is not compiled once is not compiled for anybody else either."""
    import torch._dynamo.types as dynamo

    return "apply_to_code" in getattr(getattr(dynamo, "ConvertFrameReturn", None), "__dataclass_fields__", {})


def _as_written() -> Any:
    """Dynamo's word for: this frame runs as it is written, this time."""
    dynamo: Any = importlib.import_module("torch._dynamo.types")
    default = dynamo.FrameAction.DEFAULT
    strategy = dynamo.FrameExecStrategy(default, default)
    return dynamo.ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=False)


def _can_run_as_written(error: Exception) -> bool:
    """The beginning of what dynamo makes of a frame's rest is no Python of anybody's, as dynamo itself has it."""
    import torch._dynamo.exc

    return not isinstance(error, getattr(torch._dynamo.exc, "ResumePrologueTracingError", ()))


@contextmanager
def _set(entries: Iterable[Entry]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in entries]
    try:
        for module, name, value in entries:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def value_under(entry: Entry) -> object:
    """What a setting reads where it is set: a variable of the environment may count more."""
    module, name, _ = entry
    with _lock(), _set([entry]):
        return getattr(module, name)


def _lock() -> Any:
    """Dynamo's own: releases before 2.13 keep one value of a setting for all threads."""
    import torch._dynamo.convert_frame

    return getattr(torch._dynamo.convert_frame, "compile_lock", None) or nullcontext()
