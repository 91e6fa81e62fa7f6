"""The outermost calls of MindSpore's Cells in a job, as they are made.

`mindspore.nn.Cell.__call__` is one that asks whether another call is going on in this thread, as long as the job is
watched: beside an operator of PyNative that costs nothing. Cells of MindSpore's own that put a loss or an optimizer
around a model are passed over. What `ms.jit` returns for a Cell is its `construct`, whose calls are not seen.

Operators are queued: a call is waited for, so that its time is its own. Where an operator of the job's fails, that is
raised here, as it is wherever a job waits first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import get_ident
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.apply import is_graph_mode
from autotune.backends.mindspore.compiled_cell import records_gradients
from autotune.backends.mindspore.moved_names import first
from autotune.plugins.watch import saving
from autotune.plugins.watch.layouts import layouts_of
from autotune.plugins.watch.mindspore import kept
from autotune.plugins.watch.recorder import MOST_KEPT, Recorder, Seen, Wanted

_ALWAYS_KEPT = 3
"""Calls that are kept first, whatever their shape; later ones are of new shapes."""
_Cell = ms.nn.Cell
ORIGINAL = _Cell.__call__
"""That of MindSpore."""
_inside: set[int] = set()
"""Threads that are in a call of a model."""
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


class _Watching:
    """What is watched in this process; there is one."""

    recorder: Recorder | None = None
    by_id: dict[int, Seen] = {}


def is_traced() -> bool:
    """The call is recorded by a compiler, which would see what is done here."""
    return _tracing is not None and _tracing() is not None


def wait() -> None:
    """Return when all operators that were queued are done. Raises what one of them raised."""
    _sync()


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    recorder, thread = _Watching.recorder, get_ident()
    if recorder is None or recorder.is_over or thread in _inside or is_traced():
        return ORIGINAL(self, *args, **kwargs)
    if isinstance(self, _WRAPPERS):
        if is_graph_mode():
            recorder.notes[_WHOLE_STEPS] = None
        return ORIGINAL(self, *args, **kwargs)
    met = None if isinstance(self, _BESIDE) else _met(recorder, self, args, kwargs)
    if met is not None and _is_to_be_kept(*met):
        wait()
        _keep(*met, args, kwargs)
    _inside.add(thread)
    begun = time.perf_counter_ns()
    try:
        result = ORIGINAL(self, *args, **kwargs)
        if met is not None:
            wait()
        took = time.perf_counter_ns() - begun
    finally:
        _inside.discard(thread)
    if met is not None:
        _note(recorder, *met, begun, took)
    return result


_WHOLE_STEPS = (
    "training steps in graph mode are compiled as a whole, with no call of the model to be seen: give a function that "
    "builds model, inputs, loss and optimizer, and use training_step"
)


def _met(
    recorder: Recorder, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Seen, tuple[Any, ...]] | None:
    """The model of a call that is about to be made, and what the call is counted by. Never raises."""
    try:
        seen = _Watching.by_id.get(id(cell)) or recorder.take_in(cell, _Watching.by_id)
        if seen is None:
            return None
        return seen, (layouts_of(args, kwargs, ms.Tensor), records_gradients(), cell.training, None)
    except Exception as problem:  # Whatever the job's objects raise when they are looked at.
        _say(problem)
        return None


def _is_to_be_kept(seen: Seen, key: tuple[Any, ...]) -> bool:
    num = len(seen.kept)
    return num < MOST_KEPT and (num < _ALWAYS_KEPT or key not in seen.counts)


def _keep(seen: Seen, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        saving.keep(seen, key, args, kwargs, kept)
    except Exception as problem:
        _say(problem)


def _note(recorder: Recorder, seen: Seen, key: tuple[Any, ...], begun: int, took: int) -> None:
    """Count a call that was made. Never raises."""
    try:
        seen.backward += key[1]
        recorder.note(seen, key, begun, took)
    except Exception as problem:
        _say(problem)


def hook(wanted: Mapping[str, Any]) -> bool:
    """See all calls from now on. False: they are seen already."""
    if _Watching.recorder is not None and not _Watching.recorder.is_over:
        return False
    _Watching.recorder = Recorder(Wanted(**wanted), kept)
    _Cell.__call__ = _called
    return True


def unhook() -> None:
    """See none any more, and write what was seen."""
    recorder, _Watching.recorder = _Watching.recorder, None
    _Cell.__call__ = ORIGINAL
    _Watching.by_id = {}
    if recorder is not None:
        recorder.close()


def _say(problem: Exception) -> None:
    recorder = _Watching.recorder
    if recorder is not None and len(recorder.notes) < 20:
        recorder.notes[f"a call was not looked at: {problem!r}"[:300]] = None
