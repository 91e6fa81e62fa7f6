"""`CompiledCell`: a Cell under a config, as a callable beside it. The job's own Cell stays as it is.

Each state of the Cell in which it is called (modes, attributes, the memory of its weights) has a graph of its own, made
at the first call in it. "Measured" means: on MindSpore 2.10.0, CPU, Linux x86-64.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.knobs import CompileArguments
from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.proxy import copy_cells
from autotune.backends.mindspore.regions import cells_of
from autotune.backends.mindspore.state import Snapshot, initialise

_log = logging.getLogger("autotune")
_LOCK = threading.RLock()
"""MindSpore tells its executor in one variable which graph comes next: of two threads one would get the other's."""
_CALLERS: set[int] = set()
"""Threads that have called through the lock."""
_PYNATIVE = first("mindspore.graph.api:_pynative_executor", "mindspore.common.api:_pynative_executor")
MAX_STATES = 8
"""States of a Cell that are compiled. MindSpore lets go of no graph of ms.jit (measured)."""


class CompiledCell:
    """Called like the Cell. One call at a time in the process: see `_LOCK`."""

    def __init__(self, model: ms.nn.Cell, arguments: CompileArguments) -> None:
        self._model = model
        self._arguments = arguments
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._states: list[_State] = []
        self._num_made = 0
        self._warned: set[str] = set()
        self._current = self._made()
        _NEWEST[id(model)] = self

    @property
    def cell(self) -> ms.nn.Cell:
        """What was compiled last."""
        return self._current.cell

    def set_inputs(self, *args: Any, **kwargs: Any) -> None:
        """As `Cell.set_inputs`: from now on these sizes are open."""
        self._inputs = (args, kwargs)
        for state in self._states:
            state.cell.set_inputs(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _LOCK:
            _CALLERS.add(threading.get_ident())
            problem = self._follow()
            if problem is None:
                return self._current.call(args, kwargs)
            self._warn_once(problem)
            return type(self._model).__call__(self._model, *args, **kwargs)

    def _follow(self) -> str | None:
        """Make `_current` what the Cell is now; or say why this call is left untuned."""
        if not self._current.seen.holds():
            seen = Snapshot(self._model)
            known = next((each for each in self._states if each.seen.means(seen)), None)
            if known is None and self._num_made >= MAX_STATES:
                return (
                    f"the model was changed {MAX_STATES} times since it was compiled (attributes, modes, or weights by "
                    "set_data or load_param_into_net): calls in further states stay untuned"
                )
            if known is None:
                # Weights that lie elsewhere now never come back.
                self._states = [each for each in self._states if each.seen.places == seen.places]
                known = self._made()
            known.seen = seen
            self._current = known
        return "a Cell of the model has hooks: calls stay untuned" if self._current.seen.has_hooks else None

    def _made(self) -> _State:
        initialise(self._model)
        state = _State(self._model, self._arguments)
        if self._inputs is not None:
            state.cell.set_inputs(*self._inputs[0], **self._inputs[1])
        self._states.append(state)
        self._num_made += 1
        return state

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            _log.warning("autotune: %s: %s", type(self._model).__name__, problem)


_NEWEST: weakref.WeakValueDictionary[int, CompiledCell | ms.nn.Cell] = weakref.WeakValueDictionary()
"""By the identity of a Cell, which what is compiled keeps alive."""


def compiled_of(model: ms.nn.Cell) -> CompiledCell | ms.nn.Cell | None:
    """What was compiled last for this Cell, if anybody still holds it."""
    return _NEWEST.get(id(model))


def note_compiled(model: ms.nn.Cell, cell: ms.nn.Cell) -> None:
    """This Cell is compiled in the model's place."""
    _NEWEST[id(model)] = cell


class _State:
    """A shadow of the Cell as it was at one moment, compiled."""

    def __init__(self, model: ms.nn.Cell, arguments: CompileArguments) -> None:
        self.seen = Snapshot(model)
        self.cell = copy_cells(model)
        if arguments.mixed_precision is not None:
            level, dtype = arguments.mixed_precision
            # O2 and O3 put a Cell around it.
            self.cell = ms.amp.auto_mixed_precision(self.cell, level, getattr(ms, dtype))
        if arguments.jit is not None:
            # `ms.jit(cell)` is a bound method. As the shadow's own `construct` it shows which Cells are compiled.
            for each in cells_of(self.cell, arguments.region):
                each.construct = jitted(each, arguments)
        elif arguments.jit_config:
            self.cell.set_jit_config(ms.JitConfig(**arguments.jit_config))
        self._call = Compiling(_entry(self.cell, arguments), arguments.compiling)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._call(*args, **kwargs)


def _entry(cell: ms.nn.Cell, arguments: CompileArguments) -> Callable[..., Any]:
    return whole_graph(cell) if arguments.whole_graph else cell


def whole_graph(cell: ms.nn.Cell) -> Callable[..., Any]:
    """The Cell's call as in graph mode, in a process that is not in it: the mode would hold for all Cells."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get("MS_JIT") == "0":
            return cell(*args, **kwargs)
        if kwargs:
            bound = cell._construct_sig.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        cell._self_check()
        return cell.compile_and_run(*args, **kwargs)

    return call


def jitted(what: Any, arguments: CompileArguments) -> Any:
    """A function or a Cell under ms.jit."""
    options = {"jit_config": ms.JitConfig(**arguments.jit_config)} if arguments.jit_config else {}
    return ms.jit(what, **(arguments.jit or {}), **options)


def call_exclusively(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The call, while nothing else is called that was compiled here: beside a graph's call one of PyNative in another
    thread can wait for ever (measured).

    Where several threads call, each waits for its own operators: PyNative raises an error of one in whichever thread
    it finds waiting.
    """
    with _LOCK:
        _CALLERS.add(threading.get_ident())
        result = call(*args, **kwargs)
        if len(_CALLERS) > 1 and _PYNATIVE is not None:
            _PYNATIVE.sync()
        return result


class Compiling:
    """A callable whose compilations, and nothing else, happen under settings of the process."""

    def __init__(self, call: Callable[..., Any], settings: dict[str, Any]) -> None:
        self._call = call
        self._settings = settings
        self._compiled: set[Hashable] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _LOCK:
            key = (call_key(args), call_key(kwargs), records_gradients()) if self._settings else None
            is_new = bool(self._settings) and key not in self._compiled
            with context_settings(self._settings) if is_new else nullcontext():
                result = self._call(*args, **kwargs)
            if is_new:
                self._compiled.add(key)
            return result


@contextmanager
def context_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Within: these hold for the process."""
    before = {name: ms.get_context(name) for name in settings}
    ms.set_context(**settings)
    try:
        yield
    finally:
        ms.set_context(**before)


def records_gradients() -> bool:
    """PyNative records what is called, to take gradients of it."""
    return bool(_PYNATIVE is not None and _PYNATIVE.requires_grad())


def call_key(value: Any) -> Hashable:
    """Equal for arguments that MindSpore has one graph for: shapes and types of tensors, values of what is none."""
    if isinstance(value, ms.Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(call_key, value))
    if isinstance(value, dict):
        return tuple((name, call_key(each)) for name, each in value.items())
    kind: Any = type(value)
    return (kind, value) if isinstance(value, (bool, int, float, str, type(None))) else kind
