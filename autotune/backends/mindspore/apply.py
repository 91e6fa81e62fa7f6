"""A config handed over to MindSpore: the process's settings, then the Cell."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any

import mindspore as ms

from autotune.backends.mindspore import ascend
from autotune.backends.mindspore.compiled_cell import CompiledCell, is_graph_mode
from autotune.backends.mindspore.fingerprint import effective_isa, has_queue
from autotune.backends.mindspore.knobs import (
    PYNATIVE_FUSION,
    TARGETS,
    THREADS,
    CompileArguments,
    compile_arguments,
)
from autotune.backends.mindspore.regions import cells_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.errors import InvalidConfigError, MissingFrameworkError
from autotune.workload.workload import Device, Task

_log = logging.getLogger("autotune")


def apply(model: ms.nn.Cell, config: Config, changes: UndoLog) -> Callable[..., Any]:
    """The Cell under `config`, compiled at its first call: a callable beside it, or the Cell itself where the config
    asks for nothing but settings of the process.

    Nothing is changed in the Cell. What is changed in the process is noted in `changes`, but for what MindSpore takes
    only once. Raises InvalidConfigError, and MissingFrameworkError where fusion lacks its package.
    """
    arguments = prepare(model, config, "infer", changes)
    is_as_it_was = arguments.jit is None and not arguments.whole_graph and arguments.mixed_precision is None
    return model if is_as_it_was else CompiledCell(model, arguments)


def prepare(model: ms.nn.Cell, config: Config, task: Task, changes: UndoLog) -> CompileArguments:
    """Set what holds for the process, and return what is left to be done. Raises like `apply`."""
    device = selected_device()
    arguments = compile_arguments(config, ms.__version__, device, task)
    if device == "cpu" and arguments.compiling:
        _need_decorator()
    if arguments.mixed_precision is not None and getattr(model, "_amp_level", None):
        raise InvalidConfigError(f"knob amp_level: the {type(model).__name__} has mixed precision of its author's own")
    _refuse_threads(config)
    cells_of(model, arguments.region)  # Whatever it refuses is refused before anything is set.
    ascend.refuse_late(arguments.context, arguments.variables)
    _set_process(arguments, changes)
    return arguments


def _refuse_threads(config: Config) -> None:
    """More than there are cores: a config from a larger machine, or none that was ever measured."""
    most = max(num_usable_cores(), 8 if selected_device() != "cpu" else 1)
    for knob in THREADS:
        if (number := config.get(knob)) is not None and int(number) > most:
            raise InvalidConfigError(f"knob {knob}: {number} threads are more than this machine takes: {most}")


def unfit_mode() -> tuple[str, str] | None:
    """See `Backend.unfit_mode`. Graph mode compiles whatever is called, and a study compares with PyNative."""
    return ("graph mode", "ms.set_context(mode=ms.PYNATIVE_MODE)") if is_graph_mode() else None


def selected_device() -> Device:
    """The device of this process."""
    target = ms.get_context("device_target")
    return next(device for device, name in TARGETS.items() if name == target)


def _set_process(arguments: CompileArguments, changes: UndoLog) -> None:
    if is_graph_mode():
        _set_context("mode", ms.PYNATIVE_MODE, changes)
    for name, value in arguments.context.items():
        _set_context(name, value, changes)
    for name, value in arguments.variables.items():
        _set_variable(name, value, changes)
    for function, settings in arguments.calls.items():
        ascend.call(function, settings)
    if arguments.context.get("pynative_synchronize") and has_queue():
        _log.warning("autotune: launch_blocking comes too late: MindSpore has run operators in this process already")


def _set_context(name: str, value: Any, changes: UndoLog) -> None:
    try:
        before = ms.get_context(name)
    except (ValueError, RuntimeError):
        ms.set_context(**{name: value})  # One that cannot be read: it stays.
        return
    if name == "memory_optimize_level":
        before = f"O{int(before)}"  # It reads as a number (measured).
    changes.make(lambda: ms.set_context(**{name: value}), lambda: ms.set_context(**{name: before}))


_CAP = "ONEDNN_MAX_CPU_ISA"
_ISA = {"SSE41": 0x1, "AVX": 0x3, "AVX2": 0x7, "AVX512_CORE": 0x27}
"""The numbers of oneDNN's `dnnl_cpu_isa_t`; each has the bits of those before it."""


def _set_variable(name: str, value: str, changes: UndoLog) -> None:
    """Settings that share a variable with others of the user's own are added to it."""
    before = os.environ.get(name)
    whole = value if before is None or name in (_CAP, PYNATIVE_FUSION) else f"{before},{value}"
    changes.make(lambda: _put_variable(name, whole), lambda: _put_variable(name, before))
    if name == _CAP:
        in_force = effective_isa()
        if in_force is not None and in_force & ~_ISA[value]:
            _log.warning(
                "autotune: onednn_isa=%s comes too late: oneDNN has chosen its instructions in this process already; "
                "start it with %s=%s, or apply before the first operator",
                *(value, _CAP, value),
            )


def _put_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def already_compiled(model: ms.nn.Cell) -> str | None:
    """MindSpore would go on with the first graph, without a word (measured), or with the first JitConfig."""
    if "construct" in vars(model) or hasattr(type(model).construct, "__wrapped_by_jit__"):
        return f"a {type(model).__name__} whose construct is wrapped by ms.jit already"
    if getattr(model, "_jit_config_dict", None):
        return f"a {type(model).__name__} that has a JitConfig already"
    return None


def _need_decorator() -> None:
    # The compiler itself (AKG, with LLVM) is in the wheel; without this package it answers "Response is empty."
    if importlib.util.find_spec("decorator") is None:
        raise MissingFrameworkError(
            "graph-kernel fusion on CPU needs the package `decorator`", tip="run: pip install decorator"
        )
