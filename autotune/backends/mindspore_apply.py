"""A config handed over to MindSpore: the process's settings, then the Cell."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import mindspore as ms

from autotune.backends.mindspore_program import effective_isa, has_queue
from autotune.backends.mindspore_settings import TARGETS, CompileArguments, compile_arguments
from autotune.changes import Changes
from autotune.config import Config
from autotune.errors import InvalidConfigError, MissingFrameworkError
from autotune.workload import Device, Task

_log = logging.getLogger("autotune")


def apply(model: ms.nn.Cell, config: Config, changes: Changes) -> ms.nn.Cell:
    """The Cell under `config`, compiled at its first call: the very same one, untouched where the config compiles
    nothing. Mixed precision may put a Cell around it, which hands its results back in float32.

    What is changed in the process and in the Cell is noted in `changes`, but for what MindSpore takes only once.
    Raises InvalidConfigError, and MissingFrameworkError where fusion lacks its package.
    """
    arguments = prepare(config, "infer", changes)
    return change_in_place(model, arguments, changes)


def prepare(config: Config, task: Task, changes: Changes) -> CompileArguments:
    """Set what holds for the process, and return what is left to be done. Raises like `apply`."""
    device = selected_device()
    arguments = compile_arguments(config, ms.__version__, device, task)
    if device == "cpu" and "enable_graph_kernel" in arguments.context:
        _need_decorator()
    _set_process(arguments, changes)
    return arguments


def change_in_place(model: ms.nn.Cell, arguments: CompileArguments, changes: Changes) -> ms.nn.Cell:
    """The Cell, rewritten and wrapped."""
    return _change_in_place(model, lambda: _rewritten(model, arguments), changes)


def _rewritten(model: ms.nn.Cell, arguments: CompileArguments) -> ms.nn.Cell:
    cell = model if arguments.mixed_precision is None else _in_mixed_precision(model, *arguments.mixed_precision)
    _wrap(cell, arguments)
    return cell


def _change_in_place(model: ms.nn.Cell, rewrite: Callable[[], ms.nn.Cell], changes: Changes) -> ms.nn.Cell:
    """What `rewrite` does to the Cell and those in it shows in their attributes (measured: put back, a Cell computes
    as before, its layers' precision included)."""
    cells = [each for _, each in model.cells_and_names()]
    before = _attributes(cells)
    cell = rewrite()
    after = _attributes(cells)
    differ = [
        (each, name)
        for each in cells
        for name in before[each].keys() | after[each].keys()
        if not _same(before[each].get(name, _ABSENT), after[each].get(name, _ABSENT))
    ]
    changes.make(lambda: _put(after, differ), lambda: _put(before, differ))
    return cell


_ABSENT = object()
_PARTS = "_cells"
"""Where a Cell keeps those inside it, by name."""


def _attributes(cells: list[ms.nn.Cell]) -> dict[ms.nn.Cell, dict[str, Any]]:
    return {each: {**vars(each), _PARTS: each._cells.copy()} for each in cells}


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, OrderedDict) and one == other)


def _put(attributes: dict[ms.nn.Cell, dict[str, Any]], names: list[tuple[ms.nn.Cell, str]]) -> None:
    """Past Cell's own bookkeeping, which would take what it is given for a layer."""
    for cell, name in names:
        vars(cell).pop(name, None)
        if name in attributes[cell]:
            vars(cell)[name] = attributes[cell][name]


def selected_device() -> Device:
    """The device of this process."""
    target = ms.get_context("device_target")
    return next(device for device, name in TARGETS.items() if name == target)


def _set_process(arguments: CompileArguments, changes: Changes) -> None:
    for name, value in arguments.context.items():
        _set_context(name, value, changes)
    for name, value in arguments.variables.items():
        _set_variable(name, value, changes)
    for function, settings in arguments.calls.items():
        _call(function, settings)
    if arguments.context.get("pynative_synchronize") and has_queue():
        _log.warning("autotune: launch_blocking comes too late: MindSpore has run operators in this process already")


def _set_context(name: str, value: Any, changes: Changes) -> None:
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


def _set_variable(name: str, value: str, changes: Changes) -> None:
    """Settings that share a variable with others of the user's own are added to it."""
    before = os.environ.get(name)
    whole = value if before is None or name == _CAP else f"{before},{value}"
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


def _call(function: str, settings: dict[str, Any]) -> None:
    found: Any = ms
    for name in function.split("."):
        found = getattr(found, name)
    try:
        found(**settings)
    except RuntimeError as error:
        # Some hold for the whole process and are taken once only.
        if "repeatedly" not in str(error) and "together" not in str(error):
            raise
        _log.warning("autotune: mindspore.%s was called before in this process and stays as it was", function)


def _in_mixed_precision(model: ms.nn.Cell, level: str, dtype: str) -> ms.nn.Cell:
    if getattr(model, "_amp_level", None):
        raise InvalidConfigError(f"knob amp_level: the {type(model).__name__} has mixed precision of its author's own")
    cell = ms.amp.auto_mixed_precision(model, level, getattr(ms, dtype))
    # O2 and O3 put a Cell around the model.
    vars(model)[_AROUND] = cell
    return cell


def put_around(model: ms.nn.Cell, cell: ms.nn.Cell, changes: Changes) -> None:
    """Mark what is compiled in the model's place, past Cell's own bookkeeping, which would make it a child."""
    changes.make(lambda: vars(model).update({_AROUND: cell}), lambda: vars(model).pop(_AROUND))


_AROUND = "_autotune_around"


def compiled_cell(model: ms.nn.Cell) -> ms.nn.Cell:
    """The Cell that `apply` gave for this one."""
    return vars(model).get(_AROUND, model)


def _wrap(cell: ms.nn.Cell, arguments: CompileArguments) -> None:
    if arguments.jit is not None:
        # `ms.jit(cell)` is a bound method. Set as the instance's own `construct` it leaves the Cell a Cell: parameters,
        # checkpoints and use inside another Cell work as before (measured; trace cannot stand inside a graph).
        cell.construct = jitted(cell, arguments)
    elif arguments.jit_config:
        cell.set_jit_config(ms.JitConfig(**arguments.jit_config))


def jitted(what: Any, arguments: CompileArguments) -> Any:
    """A function or a Cell under ms.jit."""
    options = {"jit_config": ms.JitConfig(**arguments.jit_config)} if arguments.jit_config else {}
    return ms.jit(what, **(arguments.jit or {}), **options)


def already_compiled(model: ms.nn.Cell) -> str | None:
    """MindSpore would go on with the first graph, without a word (measured), or with the first JitConfig."""
    if "construct" in vars(model) or hasattr(type(model).construct, "__wrapped_by_jit__"):
        return f"a {type(model).__name__} whose construct is wrapped by ms.jit already"
    if getattr(model, "_jit_config_dict", None):
        return f"a {type(model).__name__} that has a JitConfig already"
    if _AROUND in vars(model):
        return f"a {type(model).__name__} that was given mixed precision already"
    return None


def _need_decorator() -> None:
    # The compiler itself (AKG, with LLVM) is in the wheel; without this package it answers "Response is empty."
    if importlib.util.find_spec("decorator") is None:
        raise MissingFrameworkError(
            "graph-kernel fusion on CPU needs the package `decorator`", tip="run: pip install decorator"
        )
