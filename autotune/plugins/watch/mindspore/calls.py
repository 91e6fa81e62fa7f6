"""The outermost calls of MindSpore's Cells in a job, as they are made.

`mindspore.nn.Cell.__call__` is one that asks whether another call is going on in this thread, as long as the job is
watched: beside an operator of PyNative that costs nothing. Cells of MindSpore's own that put a loss or an optimizer
around a model are passed over. What `ms.jit` returns for a Cell is its `construct`, which an executor calls that is
watched as well; of functions, and of those that are captured in other ways, no Cell is told.

Operators are queued: a call is waited for, so that its time is its own. Where an operator of the job's fails, that is
raised here, as it is wherever a job waits first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import get_ident
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.compiled_cell import is_graph_mode, records_gradients
from autotune.backends.mindspore.moved_names import first
from autotune.plugins.watch.layouts import layouts_of
from autotune.plugins.watch.mindspore import kept
from autotune.plugins.watch.recorder import Recorder
from autotune.plugins.watch.watching import Met, Watching

_Cell = ms.nn.Cell
ORIGINAL = _Cell.__call__
"""That of MindSpore."""
_watching = Watching(kept)
_inside = _watching.inside
is_over = _watching.is_over
_tracing = first("mindspore.graph.jit_context:jit_context", "mindspore.common.jit_context:jit_context")
_executor = first("mindspore.graph.api:_pynative_executor", "mindspore.common.api:_pynative_executor")
_sync = getattr(_executor, "sync", lambda: None)


def _classes(*places: str) -> tuple[type, ...]:
    return tuple(found for place in places if (found := first(place)) is not None)


_WRAPPERS = _classes(
    *("mindspore.nn:TrainOneStepCell", "mindspore.nn:WithLossCell", "mindspore.nn:WithEvalCell"),
    *("mindspore.nn:ForwardValueAndGrad", "mindspore.nn:WithGradCell"),
)
"""What they call is the job's model."""
OPTIMIZERS = _classes("mindspore.nn:Optimizer", "mindspore.experimental.optim:Optimizer")
_BESIDE = (
    *OPTIMIZERS,
    # A step's reducer is one of the last two.
    *_classes("mindspore.nn.loss.loss:LossBase", "mindspore.nn:DistributedGradReducer", "mindspore.nn:Identity"),
)
"""They are called beside a model."""


def is_traced() -> bool:
    """The call is recorded by a compiler, which would see what is done here."""
    return _tracing is not None and _tracing() is not None


def wait() -> None:
    """Return when all operators that were queued are done. Raises what one of them raised."""
    _sync()


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    recorder = _watching.recorder
    if recorder is None or _is_anothers(recorder):
        return ORIGINAL(self, *args, **kwargs)
    if isinstance(self, _WRAPPERS):
        if is_graph_mode():
            recorder.notes[_WHOLE_STEPS] = None
        return ORIGINAL(self, *args, **kwargs)
    return _outermost(partial(ORIGINAL, self), self, args, kwargs)


def _is_anothers(recorder: Recorder) -> bool:
    return recorder.is_over or get_ident() in _inside or is_traced()


def _outermost(call: Callable[..., Any], cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of a Cell that is within no other's call in this thread."""
    thread = get_ident()
    met = None if isinstance(cell, _BESIDE) else _met(cell, args, kwargs)
    _inside.add(thread)
    begun = time.perf_counter_ns()
    try:
        result = call(*args, **kwargs)
        if met is not None:
            wait()
        took = time.perf_counter_ns() - begun
    finally:
        _inside.discard(thread)
    if met is not None:
        _note(met, begun, took)
    return result


_WHOLE_STEPS = (
    "training steps in graph mode are compiled as a whole, with no call of the model to be seen: give a function that "
    "builds model, inputs, loss and optimizer, and use training_step"
)
_JITTED = (
    "the job compiles it already, with ms.jit: what is tuned, and called untuned, is the Cell in PyNative. A file is "
    "applied where the job calls the Cell itself"
)


def _met(cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Met | None:
    """What is remembered of a call that is about to be made. Raises what an operator that was queued raises, and what
    is the job's."""
    if (recorder := _watching.recorder) is None:
        return None
    try:
        seen = _watching.by_id.get(id(cell)) or recorder.take_in(cell, _watching.by_id)
        if seen is None:
            return None
        is_recorded = records_gradients() or bool(cell.training and cell.requires_grad)  # Within the call.
        key = (layouts_of(args, kwargs, ms.Tensor), is_recorded, cell.training, None)
    except Exception as problem:  # Whatever the job's objects raise when they are looked at.
        _watching.say(problem)
        return None
    if _watching.is_to_be_kept(seen, key):
        wait()
    try:
        return _watching.met(seen, key, args, kwargs)
    except Exception as problem:
        _watching.say(problem)
        return seen, key, None


def _note(met: Met, begun: int, took: int) -> None:
    """Count a call that was made. Raises nothing but what is the job's."""
    seen, key, _ = met
    try:
        seen.backward += key[1]
        _watching.note(met, begun, took)
    except Exception as problem:
        _watching.say(problem)


_Executor = first("mindspore.graph.api:_JitExecutor", "mindspore.common.api:_JitExecutor")
_EXECUTE = None if _Executor is None else _Executor.__call__
"""Calls what `ms.jit` has compiled from its source."""
_Capture = first("mindspore.graph._utils.pijit_context:PIJitCaptureContext")
_ENTER = getattr(_Capture, "__enter__", None)
"""What is compiled from its bytecode is called after that."""
_Tracing = first("mindspore.graph:jit_trace", "mindspore.common:jit_trace")
_BEGIN = getattr(_Tracing, "_jit_trace_begin", None)
"""What is compiled from its operators, as they are run, is called after that."""


def _executed(self: Any, *args: Any, **kwargs: Any) -> Any:
    assert _EXECUTE is not None
    recorder, cell = _watching.recorder, getattr(self, "obj", None)
    if recorder is None or _is_anothers(recorder):
        return _EXECUTE(self, *args, **kwargs)
    if not isinstance(cell, _Cell) or self.fn.__name__ != "construct":
        _note_function(recorder, self.fn.__module__, self.fn.__qualname__)
        return _EXECUTE(self, *args, **kwargs)
    result = _outermost(partial(_EXECUTE, self, cell), cell, args[1:], kwargs)
    if (seen := _watching.by_id.get(id(cell))) is not None:
        seen.notes[_JITTED] = None
    return result


def _captured(self: Any) -> Any:
    assert _ENTER is not None
    if (recorder := _watching.recorder) is not None and not _is_anothers(recorder):
        _note_function(recorder, self.fn.__module__, self.fn.__qualname__)
    return _ENTER(self)


def _traced(name: str, *args: Any, **kwargs: Any) -> Any:
    assert _BEGIN is not None
    if (recorder := _watching.recorder) is not None and not _is_anothers(recorder):
        module, _, function = name.partition("#")[0].rpartition(".")
        _note_function(recorder, module, function)
    return _BEGIN(name, *args, **kwargs)


def _note_function(recorder: Recorder, module: str | None, name: str) -> None:
    """The job calls a compiled function that tells of no Cell."""
    if not (module or "").startswith("mindspore"):
        recorder.notes[
            f"{name} of {module} is compiled by ms.jit, with no call of a model to be seen: let the job call the Cell "
            "itself while it is watched, or give a function that builds model and inputs"
        ] = None


_REPLACED: tuple[tuple[Any, str, Any, Any], ...] = (
    (_Cell, "__call__", ORIGINAL, _called),
    (_Executor, "__call__", _EXECUTE, _executed),
    (_Capture, "__enter__", _ENTER, _captured),
    (_Tracing, "_jit_trace_begin", _BEGIN, _traced),
)
"""Class or module, method, MindSpore's own, and the one in its place."""


def hook(wanted: Mapping[str, Any]) -> None:
    """See all calls from now on."""
    _watching.begin(wanted)
    for kind, name, own, ours in _REPLACED:
        if own is not None and getattr(kind, name) is own:
            setattr(kind, name, ours)


def unhook() -> None:
    """See none any more, and write what was seen. What the job has put in place of what is taken out stays."""
    for kind, name, own, ours in _REPLACED:
        if own is not None and getattr(kind, name) is ours:
            setattr(kind, name, own)
    _watching.end()
