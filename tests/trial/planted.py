"""Wrong and right variants of a model whose calls give and leave behind a bit of everything, made by the hundred.

A variant is a step in place of the model's own calls, as a faulty or a merely rounding compiler would make it. It is
judged by the trial's own `OneShape` and its gate; nothing is compiled.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.backends.protocol import Backend
from autotune.config import Config
from autotune.measure.accuracy import default_tolerance
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.trial.worker.subjects import build_subject
from autotune.workload.workload import Workload

TENSORS = ("detections", "moments", "policy.mean", "policy.scale", "cache.keys", "cache.values", "ids")
"""Places of the outputs, by the names that the models give them."""


class Policy:
    """An output that is an object with slots."""

    __slots__ = ("mean", "scale")

    def __init__(self, mean: Any, scale: Any) -> None:
        self.mean, self.scale = mean, scale


class Cache:
    """An output that is an object with attributes."""

    def __init__(self, keys: Any, values: Any) -> None:
        self.keys, self.values = keys, values


@dataclass(frozen=True)
class Variant:
    """A step made of a model and its backend, with a name for messages."""

    name: str
    make: Callable[[Backend, Any], Callable[..., Any]]


class Judge:
    """The check of a study of one model."""

    def __init__(self, backend: Backend, workload: Workload) -> None:
        self._backend = backend
        self._workload = workload
        task, step = self._task(lambda _, model: model)
        self._tolerance = default_tolerance(task.dtypes)
        with task.recording():
            seen = task.observe(step, task.first(step), reference_tolerance=self._tolerance)
            task.gate.refuse_unusable(seen, self._tolerance)
            reference = task.gate.unpacked(task.gate.packed(seen))
            self.reference = task.completed(reference, step, self._tolerance)
        again, step = self._task(lambda _, model: model)
        with again.recording():
            seen = again.observe(step, again.first(step))
        self.reference = again.gate.settled(self.reference, seen, self._tolerance) or self.reference
        self.said: tuple[str, ...] = ()
        """What the latest variant's record says of what was not compared."""

    def verdict(self, variant: Variant) -> str | None:
        """Why the variant is wrong; None if it passes."""
        task, step = self._task(variant.make)
        with task.recording():
            seen = task.observe(step, task.first(step))
        self.said = task.not_varied
        try:
            task.gate.errors(self.reference, seen, self._tolerance)
        except WrongResultError as error:
            return str(error)
        return None

    def _task(self, make: Callable[[Backend, Any], Callable[..., Any]]) -> tuple[Any, Callable[..., Any]]:
        self._backend.prepare("cpu", 0)
        subject = build_subject(self._workload, self._backend)
        task: Any = OneShape(self._workload, subject, self._backend)
        task.first = subject.inputs[0].call
        task.dtypes = subject.dtypes
        return task, make(self._backend, subject.model)


EAGER = {"torch": Config({"execution": "eager"}), "mindspore": Config({"execution": "pynative"})}


def wrong_variants(num: int, seed: int = 0) -> Iterator[Variant]:
    """Of all kinds in turn."""
    generator = np.random.default_rng(seed)
    kinds = [*OF_OUTPUTS, *_OF_STATE]
    for number in range(num):
        kind = kinds[number % len(kinds)]
        name = f"{number}: {kind.__name__.strip('_')}"
        if kind in _OF_STATE:
            yield Variant(name, kind)
        else:
            place = TENSORS[int(generator.integers(len(TENSORS)))]
            yield Variant(f"{name} in {place}", _changing(place, kind, int(generator.integers(1 << 30))))


def right_variants(num: int, seed: int = 0) -> Iterator[Variant]:
    """Rounded otherwise, as code does that sums in another order or fuses."""
    generator = np.random.default_rng(seed)
    for number in range(num):
        place = TENSORS[number % (len(TENSORS) - 1)]
        yield Variant(f"{number}: rounded {place}", _changing(place, rounded, int(generator.integers(1 << 30))))


def _changing(
    place: str, change: Callable[[np.ndarray, np.random.Generator], np.ndarray | None], seed: int
) -> Callable[[Backend, Any], Callable[..., Any]]:
    """A step whose output has one tensor changed, in the same way at each call."""

    def make(backend: Backend, model: Any) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            outputs = model(*args)
            holder, name = _holder(outputs, place)
            tensor = holder[name] if isinstance(holder, dict) else getattr(holder, name)
            changed = change(backend.to_array(tensor).copy(), np.random.default_rng(seed))
            made = None if changed is None else made_like(backend, changed, tensor)
            if isinstance(holder, dict):
                holder[name] = made
            else:
                setattr(holder, name, made)
            return outputs

        return step

    return make


def made_like(backend: Backend, array: np.ndarray, like: Any) -> Any:
    """In the type of the array where that was changed."""
    made = backend.like(array, like)
    if backend.to_array(like).dtype == array.dtype:
        return made
    kind = type(like)
    module = __import__(kind.__module__.partition(".")[0])
    return made.to(getattr(module, str(array.dtype)))


def _holder(outputs: Any, place: str) -> tuple[Any, str]:
    first, _, rest = place.partition(".")
    return (outputs[first], rest) if rest else (outputs, first)


def _slice(array: np.ndarray, generator: np.random.Generator) -> tuple[Any, ...]:
    """One of the slices that are not zero anyway."""
    axis = int(generator.integers(array.ndim))
    others = tuple(each for each in range(array.ndim) if each != axis)
    choices = np.flatnonzero(np.abs(array).max(axis=others)) if others else np.flatnonzero(array)
    index: list[Any] = [slice(None)] * array.ndim
    index[axis] = int(generator.choice(choices))
    return tuple(index)


def _zero_slice(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    array[_slice(array, generator)] = 0
    return array


def _swap_channels(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    one, other = generator.choice(array.shape[1], 2, replace=False)
    array[:, [one, other]] = array[:, [other, one]]
    return array


def _add_to_a_slice(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    where = _slice(array, generator)
    array[where] += np.asarray(0.1 * np.abs(array[where]).max() + (array.dtype.kind == "i"), array.dtype)
    return array


def _scale_a_slice(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    where = _slice(array, generator)
    array[where] = (array[where] * np.asarray(1.05 if array.dtype.kind == "f" else 2)).astype(array.dtype)
    return array


def _stale_row(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    row = int(generator.integers(1, array.shape[-1]))
    array[..., row] = array[..., row - 1]
    return array


def _other_type(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    others = ("float64", "float16") if array.dtype.kind == "f" else ("int32",)
    return array.astype(str(generator.choice(others)))


def _nan(array: np.ndarray, generator: np.random.Generator) -> np.ndarray | None:
    if array.dtype.kind != "f":
        return None
    array.reshape(-1)[int(generator.integers(array.size))] = np.nan
    return array


def _missing(array: np.ndarray, generator: np.random.Generator) -> None:
    del array, generator


def rounded(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Each element by up to 1e-5 of its channel's largest value."""
    finite = np.where(np.isfinite(array), np.abs(array), 0)
    scale = finite.max(axis=tuple(each for each in range(array.ndim) if each != 1), keepdims=True)
    return (array + 1e-5 * scale * generator.uniform(-1, 1, array.shape)).astype(array.dtype)


def leave_floats(model: Any, mean: float) -> None:
    """What a call leaves in floats: of its inputs, of none, of all calls, and what no two processes share."""
    model.scale, model.gain = 1 + mean, 0.5
    model.running = 0.9 * model.running + 0.1 * (1 + mean)
    model.began = model.began or time.time()
    model.seconds += time.perf_counter()
    model.chance = random.SystemRandom().random()
    model.residual = 1e-9 * random.SystemRandom().random()


FLOATS = ("scale", "gain", "running")
"""Those of a model that say something of its calls."""


def begin_floats(model: Any) -> None:
    """Before any call."""
    for name in (*FLOATS, "began", "seconds", "chance", "residual"):
        setattr(model, name, 0.0)


def _another(name: str) -> Callable[[Backend, Any], Callable[..., Any]]:
    """A step that leaves another float in an attribute."""

    def make(backend: Backend, model: Any) -> Callable[..., Any]:
        del backend

        def step(*args: Any) -> Any:
            outputs = model(*args)
            setattr(model, name, 1.1 * getattr(model, name))
            return outputs

        return step

    make.__name__ = f"{name}_is_another"
    return make


def _input_not_written(backend: Backend, model: Any) -> Callable[..., Any]:
    return lambda x, memory, step: model(x, backend.like(backend.to_array(memory).copy(), memory), step)


def _number_baked_in(backend: Backend, model: Any) -> Callable[..., Any]:
    del backend
    return lambda x, memory, step: model(x, memory, 3 if step else step)


def _restoring(name: str) -> Callable[[Backend, Any], Callable[..., Any]]:
    """A step that leaves one attribute of the model as it was."""

    def make(backend: Backend, model: Any) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            held = getattr(model, name)
            array = backend.to_array(held)
            before = copy.copy(held) if array is None else array.copy()
            outputs = model(*args)
            if array is not None:
                model.put_back(name, before)
            else:
                setattr(model, name, before)
            return outputs

        return step

    make.__name__ = f"{name}_not_set"
    return make


OF_OUTPUTS = (_zero_slice, _swap_channels, _add_to_a_slice, _scale_a_slice, _stale_row, _other_type, _nan, _missing)
_OF_STATE = (
    _input_not_written,
    _number_baked_in,
    *map(_restoring, ("statistics", "num_calls", "last", "history")),
    *map(_another, FLOATS),
)
