"""`CompiledCell`: a Cell under a config, as a callable beside it. The job's own Cell stays as it is.

Each state of the Cell in which it is called (modes, attributes, the memory of its weights) has a graph of its own, made
at the first call in it. What a call sets in Cells that run in Python is set in the job's Cells after it; what it sets
in compiled ones, a graph does not set again, so that calls which do so each time are made untuned
(docs/decisions/0049-what-a-compiled-cell-leaves-behind.md). "Measured" means: on MindSpore 2.10.0, CPU, Linux x86-64.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.call_values import CallValues, bounded, call_key
from autotune.backends.mindspore.knobs import CompileArguments
from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.regions import Mirror, cells_of, compiled_of, copy_cells, note_compiled
from autotune.backends.mindspore.state import Snapshot, initialise
from autotune.errors import UnsuitableCallError

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
        self._values = CallValues(model) if _compiles_whole(arguments) else None
        self._set_last: list[str] = []
        """What the latest call has set in compiled Cells."""
        self._refusal: str | None = None
        """Why calls are untuned for good."""
        self._warned: set[str] = set()
        self._current = self._made()
        note_compiled(model, self)

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
            if self._refusal is not None:
                raise UnsuitableCallError(self._refusal, lasting=True)
            problem = self._follow()
            if problem is not None:
                self._warn_once(problem)
                return type(self._model).__call__(self._model, *args, **kwargs)
            if self._values is not None:
                args, kwargs = self._values.given(args, kwargs)
                if (refusal := self._values.refusal(args, kwargs)) is not None:
                    raise refusal
            result, left = self._current.call(args, kwargs)
            self._after(left)
            return result

    def _after(self, left: list[str]) -> None:
        """What the call has set is in the job's Cells by now. A compiled Cell may set something once, such as a table
        that is filled at need: the next call is compiled for the Cell as it is then."""
        compiled = [name for name in left if self._current.compiles(name)]
        if compiled and self._set_last:
            self._refusal = (
                f"each call sets {', '.join(compiled[:3])} in the {type(self._model).__name__}, which a compiled graph "
                "does only when it is made"
            )
        elif left and not compiled:
            self._current.seen = Snapshot(self._model).with_live_buffers_of(self._current.seen)
        self._set_last = compiled

    def _follow(self) -> str | None:
        """Make `_current` what the Cell is now; or say why this call is left untuned."""
        if not self._arguments.whole_graph and is_graph_mode():
            return "the process went into graph mode, which compiles what this config does not: calls stay untuned"
        if not self._current.seen.holds():
            seen = Snapshot(self._model)
            known = next((state for state in self._states if state.seen.means(seen)), None)
            if known is None and self._num_made >= MAX_STATES:
                return (
                    f"the model was changed {MAX_STATES} times since it was compiled (attributes, modes, or weights by "
                    "set_data or load_param_into_net): calls in further states stay untuned"
                )
            if known is None:
                # Weights that lie elsewhere now never come back.
                self._states = [state for state in self._states if state.seen.places == seen.places]
                known = self._made()
            known.seen = seen.with_live_buffers_of(known.seen)
            self._current = known
        return "a Cell of the model has hooks: calls stay untuned" if self._current.seen.has_hooks else None

    def _made(self) -> _State:
        initialise(self._model)
        state = _State(self._model, self._arguments, self._warn_once)
        if self._inputs is not None:
            state.cell.set_inputs(*self._inputs[0], **self._inputs[1])
        self._states.append(state)
        self._num_made += 1
        return state

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            _log.warning("autotune: %s: %s", type(self._model).__name__, problem)


class _State:
    """A shadow of the Cell as it was at one moment, compiled."""

    def __init__(self, model: ms.nn.Cell, arguments: CompileArguments, warn: Callable[[str], None]) -> None:
        self.seen = Snapshot(model)
        copies: dict[int, ms.nn.Cell] = {}
        self.cell = copy_cells(model, copies)
        self._mirror = Mirror(model, copies)
        self._compiled = _compiled_parts(model, arguments)
        if not self._compiled:
            self.seen.leave_out_buffers()
        self._was_called = False
        if arguments.mixed_precision is not None:
            level, dtype = arguments.mixed_precision
            # O2 and O3 put a Cell around it.
            self.cell = ms.amp.auto_mixed_precision(self.cell, level, getattr(ms, dtype))
        if arguments.jit is not None:
            # `ms.jit(cell)` is a bound method. As the shadow's own `construct` it shows which Cells are compiled.
            for cell in cells_of(self.cell, arguments.region):
                compiled = jitted(cell, arguments)
                cell.construct = compiled if arguments.region.is_whole else bounded(cell, compiled, warn)
        elif arguments.jit_config:
            self.cell.set_jit_config(ms.JitConfig(**arguments.jit_config))
        entry = whole_graph(self.cell) if arguments.whole_graph else self.cell
        self._call = Compiling(entry, arguments.compiling)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[str]]:
        """Returns the result, and what the call has set in Cells."""
        self._mirror.begin()
        result = self._call(*args, **kwargs)
        if not self._was_called:
            self._was_called = True
            self.seen.note_live_buffers()
        return result, self._mirror.bring_back()

    def compiles(self, name: str) -> bool:
        """An attribute, given with its Cell's path, is set by compiled code."""
        return any(name.startswith(prefix) for prefix in self._compiled)


def _compiles_whole(arguments: CompileArguments) -> bool:
    return arguments.whole_graph or (arguments.jit is not None and arguments.region.is_whole)


def _compiled_parts(model: ms.nn.Cell, arguments: CompileArguments) -> list[str]:
    """Beginnings of the names of what lies in compiled Cells."""
    if _compiles_whole(arguments):
        return [""]
    if arguments.jit is None:
        return []
    compiled = {id(cell) for cell in cells_of(model, arguments.region)}
    return [f"{path}." for path, cell in model.cells_and_names() if id(cell) in compiled]


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


_get_mode = getattr(ms.context, "_get_mode", functools.partial(ms.get_context, "mode"))


def is_graph_mode() -> bool:
    """The process is in it."""
    return bool(_get_mode() == ms.GRAPH_MODE)


def compiled_cell(model: ms.nn.Cell) -> ms.nn.Cell:
    """The Cell that is compiled in place of the model; the model itself where none is."""
    compiled = compiled_of(model)
    return model if compiled is None else compiled.cell if isinstance(compiled, CompiledCell) else compiled


class FunctionCell(ms.nn.Cell):  # type: ignore[misc]
    """A Cell whose calls are those of a function. The Cell of a bound method is a part of it; tensors and Cells that a
    function takes from around it are not: they are no parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, ms.nn.Cell):
            self.owner = owner
            self.training = owner.training
        self.function = function

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
