"""Wrong and right variants of a model that only a longer use tells apart, as a table: when a variant is wrong, where,
and how. Each is judged as a finalist is, beside the untuned model's answers; nothing is compiled.

The models of `planted_torch` and `planted_mindspore` that are meant here are named `Used`: they take values, a mask
that hides nothing, a tensor of one value and a number, and give what is made of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.backends.protocol import Backend
from autotune.measure.accuracy import default_tolerance
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import WrongResultError, check, read_reference
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.trial.worker.reference import complete_reference
from autotune.trial.worker.subjects import subject_of
from autotune.workload.workload import Workload
from tests.trial.planted import EAGER, OF_OUTPUTS, made_like, rounded

FLOATS = ("features", "pooled", "keys", "scores", "table")
PLACES = (*FLOATS, "order")
NUM_TIMED = 6
"""Calls between the check and the longer use."""


@dataclass(frozen=True)
class Call:
    """What a variant knows of a call and of those before: arrays of the inputs, and the example's."""

    number: int
    given: list[Any]
    example: list[Any]
    is_refilled: bool
    """Its tensors lie where others lay, with other values."""


When = Callable[[Call], bool]
WHEN: dict[str, When] = {
    "from call 5 on": lambda call: call.number >= 5,
    "from call 9 on": lambda call: call.number >= 9,
    "in a refilled buffer": lambda call: call.is_refilled,
    "beyond the example's range": lambda call: np.nanmax(np.abs(call.given[0])) > 1.5 * np.abs(call.example[0]).max(),
    "where the mask hides something": lambda call: not call.given[1].all(),
    "for another gain": lambda call: not np.array_equal(call.given[2], call.example[2]),
    "for another number": lambda call: call.given[3] != call.example[3],
}
SPOILED: dict[str, When] = {
    "with NaN": lambda call: bool(np.isnan(call.given[0]).any()),
    "with infinity": lambda call: bool(np.isinf(call.given[0]).any()),
}


@dataclass(frozen=True)
class Variant:
    """Made of a backend, a model and the arrays of the example."""

    name: str
    make: Callable[[Backend, Any, list[Any]], Callable[..., Any]]
    words: str = ""
    """What its refusal says."""


class UseJudge:
    """A study's untuned model, and the finalists that are held to it."""

    def __init__(self, backend: Backend, workload: Workload, folder: Path) -> None:
        self._backend, self._workload = backend, workload
        self._request = TrialRequest(
            number=0, workload=workload, config=EAGER[workload.framework], untuned=True, tolerance=None,
            cache="", cold=False, reference=str(folder / "reference.npz"), is_used=True,
        )  # fmt: skip
        calls, model, dtypes = self._calls()
        self.tolerance = default_tolerance(dtypes)
        with calls.recording():
            calls.lead_use(self._request, model)
        calls, model, _ = self._calls()
        with calls.recording():
            seen = calls.observe(model, calls.first(model, None, None, 0), reference_tolerance=self.tolerance)
            check(self._request, seen, self.tolerance, calls.gate)
            complete_reference(self._request, calls, model, self.tolerance)

    def verdict(self, variant: Variant) -> tuple[str | None, tuple[str, ...]]:
        """Why a variant is wrong, and what was not varied; the first is None where it passes."""
        calls, model, dtypes = self._calls()
        example = calls._subject.inputs[0]
        step = variant.make(self._backend, model, [_array(self._backend, leaf) for leaf in example.leaves()])
        request = self._request.model_copy(update={"untuned": False})
        with calls.recording():
            try:
                seen = calls.observe(step, calls.first(step, None, None, 0))
                calls.gate.errors(read_reference(request, calls.gate), seen, default_tolerance(dtypes))
                for _ in range(NUM_TIMED):
                    example.call(step)
                calls.require_use(request, step)
            except WrongResultError as error:
                return str(error), calls.not_varied
        return None, calls.not_varied

    def _calls(self) -> tuple[OneShape, Any, frozenset[str]]:
        self._backend.prepare("cpu", 0)
        subject = subject_of(self._request, self._backend)
        return OneShape(self._workload, subject, self._backend), subject.model, subject.dtypes


def _array(backend: Backend, leaf: Any) -> Any:
    array = backend.to_array(leaf)
    return leaf if array is None else array.copy()


def wrong(backend: Backend) -> Iterator[Variant]:
    """Each change of an output in each situation; and what is wrong with the memory of outputs."""
    for seed, (situation, when) in enumerate(WHEN.items()):
        for place in PLACES:
            for change in OF_OUTPUTS:
                name = f"{change.__name__.strip('_')} in {place} {situation}"
                yield Variant(name, _changing(place, when, change, seed))
        if "call" not in situation and "gain" not in situation:
            yield Variant(f"raises {situation}", _raising(when), "raises")
    for situation, when in SPOILED.items():
        for place in FLOATS[:4]:
            yield Variant(f"{place} finite {situation}", _changing(place, when, _finite, 0))
    for place in PLACES:
        yield Variant(f"{place} in one buffer", _one_buffer(place), f"output['{place}']")
        yield Variant(f"{place} lies otherwise", _transposed(place), "is not contiguous")
        yield Variant(f"{place} is written by the next call", _late_write(place), "changed by later calls")
    yield Variant("the model's own table", _own_table, "same memory")
    yield Variant("order of equal scores", _other_order, "equal values")


def right(backend: Backend) -> Iterator[Variant]:
    """Rounded otherwise, whenever."""
    for place in FLOATS:
        yield Variant(f"rounded {place}", _changing(place, lambda _: True, rounded, 1))
    yield Variant("as it is", lambda backend, model, example: model)


def _watching(backend: Backend, model: Any, example: list[Any], act: Callable[[Call, Any], Any]) -> Callable[..., Any]:
    """A step that lets `act` change what the model gives."""
    held: list[tuple[Any, Any]] = []
    number = 0

    def step(*args: Any) -> Any:
        nonlocal number
        number += 1
        arrays = [_array(backend, leaf) for leaf in args]
        is_refilled = any(known is args[0] and not np.array_equal(was, arrays[0]) for known, was in held)
        held[:] = [*held[-3:], (args[0], arrays[0])]
        return act(Call(number, arrays, example, is_refilled), lambda: model(*args))

    return step


def _changing(place: str, when: When, change: Callable[..., Any], seed: int) -> Callable[..., Callable[..., Any]]:
    def make(backend: Backend, model: Any, example: list[Any]) -> Callable[..., Any]:
        def act(call: Call, made: Callable[[], Any]) -> Any:
            outputs = made()
            if when(call):
                array = backend.to_array(outputs[place]).copy()
                outputs[place] = _tensor(backend, change(array, np.random.default_rng(seed)), outputs[place])
            return outputs

        return _watching(backend, model, example, act)

    return make


def _finite(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    del generator
    return np.nan_to_num(array)


def _raising(when: When) -> Callable[..., Callable[..., Any]]:
    def make(backend: Backend, model: Any, example: list[Any]) -> Callable[..., Any]:
        def act(call: Call, made: Callable[[], Any]) -> Any:
            if when(call):
                raise ValueError("compiled for other values")
            return made()

        return _watching(backend, model, example, act)

    return make


def _one_buffer(place: str) -> Callable[..., Callable[..., Any]]:
    """Each call gives the same memory."""

    def make(backend: Backend, model: Any, example: list[Any]) -> Callable[..., Any]:
        given: list[Any] = []

        def act(call: Call, made: Callable[[], Any]) -> Any:
            outputs = made()
            given.append(outputs[place])
            backend.refill(given[0], backend.to_array(outputs[place]).copy())
            outputs[place] = given[0]
            return outputs

        return _watching(backend, model, example, act)

    return make


def _late_write(place: str) -> Callable[..., Callable[..., Any]]:
    """A call takes the memory that the call before gave for its own work."""

    def make(backend: Backend, model: Any, example: list[Any]) -> Callable[..., Any]:
        given: list[Any] = []

        def act(call: Call, made: Callable[[], Any]) -> Any:
            if given:
                backend.refill(given[-1], np.zeros_like(backend.to_array(given[-1])))
            outputs = made()
            given[:] = [outputs[place]]
            return outputs

        return _watching(backend, model, example, act)

    return make


def _transposed(place: str) -> Callable[..., Callable[..., Any]]:
    """The same elements in another order of memory."""

    def make(backend: Backend, model: Any, example: list[Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            outputs = model(*args)
            turned = np.ascontiguousarray(np.swapaxes(backend.to_array(outputs[place]), 0, 1))
            outputs[place] = backend.like(turned, outputs[place]).swapaxes(0, 1)
            return outputs

        return step

    return make


def _own_table(backend: Backend, model: Any, example: list[Any]) -> Callable[..., Any]:
    del backend, example
    return lambda *args: {**model(*args), "table": model.table}


def _other_order(backend: Backend, model: Any, example: list[Any]) -> Callable[..., Any]:
    """Of equal scores the last comes first."""
    del example

    def step(*args: Any) -> Any:
        outputs = model(*args)
        values = backend.to_array(args[0])[:, :, 0]
        turned = values.shape[1] - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable")
        outputs["order"] = backend.like(turned.astype(backend.to_array(outputs["order"]).dtype), outputs["order"])
        return outputs

    return step


def _tensor(backend: Backend, array: np.ndarray | None, like: Any) -> Any:
    return None if array is None else made_like(backend, array, like)
