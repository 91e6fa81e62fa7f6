"""Exports put to use in every other stretch of a job's calls, to compare them with the untuned calls of the same job.
Calls of either side are made by themselves, as tuned ones are, and waited for; of training steps the first one is.

A step of training is told by calls of optimizers that have weights of the model. Until one was called it is told by
weights that have other values, as where the job changes them itself.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import mindspore as ms

from autotune.apply.config_parts import ConfigParts
from autotune.backends.mindspore import shapes
from autotune.backends.mindspore.compiled_cell import records_gradients
from autotune.backends.mindspore.tensors import array_of
from autotune.backends.registry import load_backend
from autotune.job.latency_check import NUM_TIMED
from autotune.job.policy import LoadedFile
from autotune.job.stats import StatsRecorder, recorder_of
from autotune.plugins.watch.applying import apply
from autotune.plugins.watch.mindspore import applied, calls, cell_file, kept
from autotune.plugins.watch.stretches import TUNED
from autotune.plugins.watch.trying import CallTurns, ModelInTurns, StepTurns, Trying, why_untuned

_Sides = tuple[Callable[..., Any], Callable[..., Any]]
"""The untuned and the tuned call."""


def hook(wanted: Mapping[str, Any]) -> None:
    """Apply the files from now on, in turns."""
    applied.hook(wanted)
    for kind in calls.OPTIMIZERS:
        kind.__call__ = _stepped  # type: ignore[method-assign]
    applied.use_with(partial(_alternating, Trying(wanted["folder"])))


def _alternating(trying: Trying, loaded: LoadedFile, cell: Any) -> Any:
    """What is called in place of a Cell; the very Cell where it stays as it is."""
    tuned, backend = loaded.answer, load_backend("mindspore")
    assert tuned is not None
    take_turns = _TURNS.get(tuned.workload.task, _Calls)
    num_settling = 1 if take_turns is _Steps else 1 + backend.warmup_calls + NUM_TIMED
    centre = statistics.fmean if tuned.kind.has_many_shapes else statistics.median
    model = ModelInTurns(loaded.path, type(cell).__name__, take_turns.unit, num_settling, centre)
    trying.models.append(model)
    why = why_untuned(tuned, backend, kept.num_ranks())
    if why is not None:
        model.notes = lambda: [why]
        return cell
    given = apply(loaded, cell)
    recorder = recorder_of(given)
    assert isinstance(recorder, StatsRecorder)
    model.notes = lambda: [event.message for event in recorder.events]
    if given is cell:
        return cell
    num_compiled = partial(shapes.compilations, cell, ConfigParts.of(tuned.config).settings)
    turns = CallTurns(trying, model, recorder, backend.synchronise, num_compiled)
    return take_turns(turns, cell, (backend.proxies.direct(cell), applied.marked(cell, given)))


class _Calls:
    """A callable: each call of the Cell is tuned or untuned."""

    unit: ClassVar[Literal["call", "step"]] = "call"

    def __init__(self, turns: CallTurns, cell: Any, sides: _Sides) -> None:
        del cell
        self._turns, self._call_of = turns, sides

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        turns = self._turns
        if turns.are_over:
            return self._call_of[TUNED](*args, **kwargs)
        turn, num_compiled = turns.begin(), turns.num_compiled()
        turns.synchronise()
        begun_s, is_whole = time.perf_counter(), False
        try:
            result = self._call_of[turn.side](*args, **kwargs)
            turns.synchronise()
            is_whole = True
        finally:
            took_s = time.perf_counter() - begun_s
            turns.end(turn, took_s, counts=is_whole and turns.num_compiled() == num_compiled)
        return result


class _Steps:
    """A callable: all calls of a step are tuned, or none is."""

    unit: ClassVar[Literal["call", "step"]] = "step"

    def __init__(self, turns: CallTurns, cell: Any, sides: _Sides) -> None:
        self._turns, self._cell, self._call_of = turns, cell, sides
        self._steps = StepTurns(turns, _Updates(cell).count)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._turns.are_over:
            return self._call_of[TUNED](*args, **kwargs)
        # A Cell that is to record its own calls begins that within them.
        trains = self._cell.training and (records_gradients() or self._cell.requires_grad)
        return self._call_of[self._steps.side(trains=trains)](*args, **kwargs)


_TURNS: dict[str, type[_Calls] | type[_Steps]] = {"train": _Steps}
"""What a file was tuned for -> how calls under it take turns; all others are calls."""


class _Updates:
    """Tells when the weights of a Cell are updated."""

    def __init__(self, cell: Any) -> None:
        weights = cell.trainable_params()
        self._ids = frozenset(map(id, weights))
        self._smallest = sorted(weights, key=lambda each: each.size)[:2]
        self._num_steps = 0
        _updated.add(self)

    def note(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self._num_steps += not self._ids.isdisjoint(map(id, optimizer.parameters))

    def count(self) -> object:
        """Another value after each update."""
        with cell_file.unrecorded():
            return self._num_steps or [array_of(each).tobytes() for each in self._smallest]


_updated: weakref.WeakSet[_Updates] = weakref.WeakSet()


def _stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The call of an optimizer."""
    if not calls.is_traced():
        for each in tuple(_updated):
            each.note(self)
    return ms.nn.Cell.__call__(self, *args, **kwargs)
