"""Exports put to use in every other stretch of a job's calls, to compare them with untuned calls of the same job."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch

from autotune.backends.protocol import Backend
from autotune.backends.registry import load_backend
from autotune.job.latency_check import NUM_TIMED
from autotune.job.policy import LoadedFile
from autotune.job.stats import StatsRecorder, recorder_of
from autotune.plugins.watch.applying import apply
from autotune.plugins.watch.stretches import TUNED, CallTurn
from autotune.plugins.watch.torch import applied, calls, kept, steps
from autotune.plugins.watch.trying import CallTurns, ModelInTurns, StepTurns, Trying, why_untuned

AROUND = calls.AROUND
unhooked = calls.unhooked


def hook(wanted: Mapping[str, Any]) -> None:
    """Apply the files from now on, in turns."""
    applied.hook(wanted)
    trying = Trying(wanted["folder"])
    steps.hook_optimizers()
    applied.use_with(lambda loaded, module: _alternating(trying, loaded, module))
    for function in (_Calls.__call__, _Calls._in_turn, _Calls._own, _Texts.generate, _Steps.__call__, _uncompiled):
        calls.pass_over(function)


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
    why = why_untuned(tuned, backend, kept.num_ranks())
    if why is not None:
        model.notes = lambda: [why]
        return module
    given = apply(loaded, module)
    recorder = recorder_of(given)
    assert isinstance(recorder, StatsRecorder)
    model.notes = lambda: [event.message for event in recorder.events]
    if given is module:
        return module
    backend.adopt(module)
    turns = CallTurns(trying, model, recorder, _waiting(backend), _num_compiled, applied.is_looking)
    return take_turns(turns, module, given)


class _Calls:
    """A callable: each call of the module is tuned or untuned."""

    unit: ClassVar[Literal["call", "step", "text"]] = "call"

    def __init__(self, turns: CallTurns, module: Any, given: Any) -> None:
        self._turns, self._module, self._given = turns, module, given

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._in_turn(self._given, self._own, args, kwargs)

    def _own(self, *args: Any, **kwargs: Any) -> Any:
        return applied.own_of(self._module)(*args, **kwargs)

    def _in_turn(
        self, tuned: Callable[..., Any], own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._turns.are_over:
            return tuned(*args, **kwargs)
        compiling = calls.set_compiler(None)  # As in `_uncompiled`, without its frames.
        try:
            turn, num_compiled, begun_s = self._begun()
        finally:
            calls.set_compiler(compiling)
        num = 0
        try:
            result = tuned(*args, **kwargs) if turn.side == TUNED else own(*args, **kwargs)
            num = self._num_in(args, kwargs, result)
        finally:
            compiling = calls.set_compiler(None)
            try:
                self._over(turn, num_compiled, begun_s, num)
            finally:
                calls.set_compiler(compiling)
        return result

    def _num_in(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        """What a call is of that its time is divided by; 0: it does not count."""
        del args, kwargs, result
        return 1

    def _begun(self) -> tuple[CallTurn, object, float]:
        turn, num_compiled = self._turns.begin(), self._turns.num_compiled()
        self._turns.synchronise()
        return turn, num_compiled, time.perf_counter()

    def _over(self, turn: CallTurn, num_compiled: object, begun_s: float, num: int) -> None:
        if num:
            self._turns.synchronise()
        took_s = time.perf_counter() - begun_s
        counts = num > 0 and self._turns.num_compiled() == num_compiled
        self._turns.end(turn, took_s / max(num, 1), counts=counts)


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


class _Steps:
    """A callable: all calls of a step are tuned, or none is."""

    unit: ClassVar[Literal["call", "step", "text"]] = "step"

    def __init__(self, turns: CallTurns, module: Any, given: Any) -> None:
        self._turns, self._module, self._given = turns, module, given
        self._steps = StepTurns(turns, steps.SeenUpdates(module).count)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._turns.are_over:
            return self._given(*args, **kwargs)
        side = _uncompiled(self._side)
        call = self._given if side == TUNED else applied.own_of(self._module)
        return call(*args, **kwargs)

    def _side(self) -> int:
        return self._steps.side(trains=self._module.training and torch.is_grad_enabled())


_TURNS: dict[str, type[_Calls] | type[_Steps]] = {"train": _Steps, "generate": _Texts}
"""What a file was tuned for -> how calls under it take turns; all others are calls."""


def _uncompiled(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns. Where the job is within compiled code, it is not compiled."""
    compiling = calls.set_compiler(None)
    try:
        return function(*args)
    finally:
        calls.set_compiler(compiling)


def _waiting(backend: Backend) -> Callable[[], object]:
    """What waits for the device; on a CPU nothing does: a call returns with its result."""
    return tuple if backend.device_name() == "cpu" else backend.synchronise


def _num_compiled() -> int:
    """Graphs that PyTorch has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
