"""Exports put to use in every other stretch of a job's calls, to compare them with the untuned calls of the same job.
Calls of either side are made by themselves, as tuned ones are, and waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from autotune.apply.config_parts import ConfigParts
from autotune.backends.mindspore import shapes
from autotune.backends.registry import load_backend
from autotune.job.latency_check import NUM_TIMED
from autotune.job.policy import LoadedFile
from autotune.job.stats import StatsRecorder, recorder_of
from autotune.plugins.watch.applying import apply
from autotune.plugins.watch.mindspore import applied, kept
from autotune.plugins.watch.stretches import TUNED
from autotune.plugins.watch.trying import ModelInTurns, Trying


def hook(wanted: Mapping[str, Any]) -> bool:
    """Apply the files from now on, in turns. False: it is done already."""
    if not applied.hook(wanted):
        return False
    applied.use_with(partial(_alternating, Trying(wanted["folder"])))
    return True


def _alternating(trying: Trying, loaded: LoadedFile, cell: Any) -> Any:
    """What is called in place of a Cell; the very Cell where it stays as it is."""
    tuned, backend = loaded.answer, load_backend("mindspore")
    assert tuned is not None
    num_settling = 1 + backend.warmup_calls + NUM_TIMED
    centre = statistics.fmean if tuned.kind.has_many_shapes else statistics.median
    model = ModelInTurns(loaded.path, type(cell).__name__, "call", num_settling, centre)
    trying.models.append(model)
    why = None
    if tuned.kind.trains:
        why = "steps of MindSpore do not change sides: the job ran untuned"
    elif (num := kept.num_ranks()) > 1:
        why = f"this is one of {num} ranks, which cannot change sides each by itself: the job ran untuned"
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
    untuned = backend.proxies.direct(cell)
    return _Calls(trying, model, recorder, (untuned, given), num_compiled)


class _Calls:
    """A callable: each call of the Cell is tuned or untuned."""

    def __init__(
        self,
        trying: Trying,
        model: ModelInTurns,
        recorder: StatsRecorder,
        sides: tuple[Callable[..., Any], Callable[..., Any]],
        num_compiled: Callable[[], object],
    ) -> None:
        """`sides`: the untuned and the tuned call. `recorder`: its state is `untuned` once the guard went back to the
        untuned model for good."""
        self._trying, self._model, self._recorder = trying, model, recorder
        self._call_of = sides
        self._synchronise, self._num_compiled = load_backend("mindspore").synchronise, num_compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sides = self._model.sides
        if self._recorder.state == "untuned":
            return self._call_of[TUNED](*args, **kwargs)
        turn = sides.begin(is_settled=self._recorder.state != "settling")
        num_compiled = self._num_compiled()
        self._synchronise()
        begun_s, is_whole = time.perf_counter(), False
        try:
            result = self._call_of[turn.side](*args, **kwargs)
            self._synchronise()
            is_whole = True
        finally:
            took_s = time.perf_counter() - begun_s
            sides.end(turn, took_s, counts=is_whole and self._num_compiled() == num_compiled)
            self._trying.note(self._model)
        return result
