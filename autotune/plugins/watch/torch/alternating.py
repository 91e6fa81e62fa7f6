"""Exports put to use in every other stretch of a job's calls, to compare them with the untuned calls of the same job.

Training changes sides between steps: where the weights were changed since the call before. A step's time is that from
its first call to the first call of the next one. So its gradients, be they accumulated over several calls, are of one
side, and optimizer and weights are the job's own at all times.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch

from autotune.backends.registry import load_backend
from autotune.job.latency_check import NUM_TIMED
from autotune.job.policy import LoadedFile
from autotune.job.stats import StatsRecorder, recorder_of
from autotune.plugins.watch.applying import apply
from autotune.plugins.watch.stretches import TUNED, CallTurn
from autotune.plugins.watch.torch import applied, calls, kept, steps
from autotune.plugins.watch.trying import ModelInTurns, Trying

AROUND = calls.AROUND
unhooked = calls.unhooked


def hook(wanted: Mapping[str, Any]) -> bool:
    """Apply the files from now on, in turns. False: it is done already."""
    if not applied.hook(wanted):
        return False
    trying = Trying(wanted["folder"])
    steps.hook_optimizers()
    applied.use_with(lambda loaded, module: _alternating(trying, loaded, module))
    for function in (_Calls.__call__, _Calls._in_turn, _Texts.generate, _Steps.__call__, _uncompiled):
        calls.pass_over(function)
    return True


def _alternating(trying: Trying, loaded: LoadedFile, module: Any) -> Any:
    """What is called in place of a module; the very module where it stays as it is."""
    tuned, backend = loaded.answer, load_backend("torch")
    assert tuned is not None
    take_turns = _TURNS.get(tuned.workload.task, _Calls)
    is_timed = take_turns is _Calls and not loaded.is_component
    num_settling = 1 + backend.warmup_calls + NUM_TIMED if is_timed else 1
    centre = statistics.fmean if tuned.kind.has_many_shapes else statistics.median
    model = ModelInTurns(loaded.path, type(module).__name__, take_turns.unit, num_settling, centre)
    trying.models.append(model)
    if (num := kept.num_ranks()) > 1:
        why = f"this is one of {num} ranks, which cannot change sides each by itself: the job ran untuned"
        model.notes = lambda: [why]
        return module
    given = apply(loaded, module)
    recorder = recorder_of(given)
    assert isinstance(recorder, StatsRecorder)
    model.notes = lambda: [event.message for event in recorder.events]
    if given is module:
        return module
    backend.adopt(module)
    return take_turns(trying, model, module, given)


class _Sides:
    """What all ways of taking turns share."""

    unit: ClassVar[Literal["call", "step", "text"]] = "call"

    def __init__(self, trying: Trying, model: ModelInTurns, module: Any, given: Any) -> None:
        self._trying, self._model = trying, model
        self._module, self._given = module, given
        self._recorder: Any = recorder_of(given)
        """Its state is `untuned` once the guard went back to the untuned model for good."""
        self._synchronise: Callable[[], None] = load_backend("torch").synchronise
        self._was_looking = applied.is_looking()

    def _begin(self) -> CallTurn:
        is_looking = applied.is_looking()
        if self._was_looking and not is_looking:  # Untuned calls were slowed down by that.
            self._model.sides.start_over()
        self._was_looking = is_looking
        return self._model.sides.begin(is_settled=self._recorder.state != "settling")

    def _end(self, turn: CallTurn, took_s: float, *, counts: bool) -> None:
        self._model.sides.end(turn, took_s, counts=counts)
        self._trying.note(self._model)


class _Calls(_Sides):
    """A callable: each call of the module is tuned or untuned."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._in_turn(self._given, applied.own_call().__get__(self._module), args, kwargs)

    def _in_turn(
        self, tuned: Callable[..., Any], own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._recorder.state == "untuned":
            return tuned(*args, **kwargs)
        begun = _uncompiled(self._begun)
        num = 0
        try:
            result = tuned(*args, **kwargs) if begun[0].side == TUNED else own(*args, **kwargs)
            num = self._num_in(args, kwargs, result)
        finally:
            _uncompiled(self._over, *begun, num)
        return result

    def _num_in(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        """What a call is of that its time is divided by; 0: it does not count."""
        del args, kwargs, result
        return 1

    def _begun(self) -> tuple[CallTurn, int, float]:
        turn, num_compiled = self._begin(), _num_compiled()
        self._synchronise()
        return turn, num_compiled, time.perf_counter()

    def _over(self, turn: CallTurn, num_compiled: int, begun_s: float, num: int) -> None:
        if num:
            self._synchronise()
        took_s = time.perf_counter() - begun_s
        self._end(turn, took_s / max(num, 1), counts=num > 0 and _num_compiled() == num_compiled)


class _Texts(_Calls):
    """What has a `generate`: each text is tuned or untuned. Its time is that for each new token."""

    unit = "text"

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's."""
        return self._in_turn(self._given.generate, self._module.generate, args, kwargs)

    def _num_in(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        """New tokens of all texts."""
        found = kept.text_of(args, kwargs, result)
        if found is None:
            return 0
        prompts, num_new = found
        if self._module.config.is_encoder_decoder:  # What it writes is without the prompt, and has a begin.
            num_new += prompts.shape[-1] - 1
        return len(prompts) * max(num_new, 0)


class _Steps(_Sides):
    """A callable: all calls of a step are tuned, or none is."""

    unit = "step"

    def __init__(self, trying: Trying, model: ModelInTurns, module: Any, given: Any) -> None:
        super().__init__(trying, model, module, given)
        self._updates = steps.SeenUpdates(module)
        self._turn: CallTurn | None = None
        """That of the current step."""
        self._begun_s = 0.0
        self._at_begin = (0, 0)
        """How often the weights had been changed, and what had been compiled, when it began."""
        self._is_like_others = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._recorder.state == "untuned":
            return self._given(*args, **kwargs)
        side = _uncompiled(self._side)
        call = self._given if side == TUNED else applied.own_call().__get__(self._module)
        return call(*args, **kwargs)

    def _side(self) -> int:
        """The side of the call that comes."""
        if not (self._module.training and torch.is_grad_enabled()):  # A validation between two steps.
            self._is_like_others = False
            return TUNED if self._turn is None else self._turn.side
        num_changes = self._updates.count()
        if self._turn is None or num_changes != self._at_begin[0]:
            return self._next(num_changes).side
        return self._turn.side

    def _next(self, num_changes: int) -> CallTurn:
        """A step ends, if there was one, and the next begins."""
        self._synchronise()
        num_compiled = _num_compiled()
        if self._turn is not None:
            counts = self._is_like_others and num_compiled == self._at_begin[1]
            self._end(self._turn, time.perf_counter() - self._begun_s, counts=counts)
        turn = self._turn = self._begin()
        self._at_begin, self._is_like_others = (num_changes, num_compiled), True
        self._begun_s = time.perf_counter()
        return turn


_TURNS: dict[str, type[_Calls] | type[_Steps]] = {"train": _Steps, "generate": _Texts}
"""What a file was tuned for -> how calls under it take turns; all others are calls."""


def _uncompiled(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns. Where the job is within compiled code, it is not compiled."""
    compiling = calls.set_compiler(None)
    try:
        return function(*args)
    finally:
        calls.set_compiler(compiling)


def _num_compiled() -> int:
    """Graphs that PyTorch has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
