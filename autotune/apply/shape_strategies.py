"""Shape strategies: what stands around a compiled model whose calls have many shapes. The same in a trial and in a job.

The knob `shapes` chooses one, further knobs give its numbers, and the traffic says what these come to: which sizes are
buckets. What a compiler does by itself (static, automatic, dynamic) needs nothing around the model; that is the
backend's to ask for. A call that is none of the traffic's form goes through as it is, so that a job with other
arguments gets what it would have got without a strategy.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from autotune.apply.config_parts import SHAPES
from autotune.backends.capabilities import ShapeStrategies, VaryingAxis, require
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, marked
from autotune.measure.measurement import Axis
from autotune.nesting import with_leaves
from autotune.workload.arguments import Arguments
from autotune.workload.traffic import CalledAxes, Shapes

Step = Callable[..., Any]


@dataclass(frozen=True)
class StrategyContext:
    """Where a strategy is put to use: on what `backend.compile` gave for `model`."""

    backend: Backend
    model: Any
    step: Step
    changes: UndoLog
    shapes: Shapes | None

    @property
    def tensors(self) -> ShapeStrategies:
        """What the backend does to tensors of many shapes. Raises InvalidConfigError where it does nothing."""
        return require(self.backend.shapes, f"knob {SHAPES}")

    @property
    def traffic(self) -> Shapes:
        """Raises InvalidConfigError where none is known."""
        if self.shapes is None:
            raise InvalidConfigError(
                f"knob {SHAPES}: goes by the traffic, and none is known", tip=f"tune with {marked('shapes')}"
            )
        return self.shapes


def with_strategy(place: StrategyContext, config: Config) -> Step:
    """The place's step under the config's shape strategy; the step itself where the strategy needs nothing around it.

    Raises InvalidConfigError for a strategy that this traffic, or this model, does not allow.
    """
    make = _STRATEGIES.get(str(config.get(SHAPES)))
    return place.step if make is None else make(place, config)


def sizes_in(leaves: Sequence[Any], axes: Iterable[Axis]) -> dict[str, int] | None:
    """Dimension -> its size in a call. None where an argument is missing or no tensor, or a dimension has two sizes."""
    sizes: dict[str, int] = {}
    for axis in axes:
        shape = getattr(leaves[axis.leaf], "shape", None) if axis.leaf < len(leaves) else None
        if shape is None or axis.axis >= len(shape):
            return None
        size = int(shape[axis.axis])
        if sizes.setdefault(axis.dimension, size) != size:
            return None
    return sizes


def best_buckets(shares: Mapping[int, float], num_buckets: int) -> tuple[int, ...]:
    """At most `num_buckets` of the sizes, ascending, the largest among them, so that padding each call up to the next
    bucket makes the least work: the sum of share x bucket.

    `shares` is a size's part of all calls. Dynamic programming over the sorted sizes: the best buckets for the smallest
    so many sizes are a last bucket, and the best ones for what is below its first size. Quadratic in their number.
    """
    sizes = sorted(shares)
    up_to = [0.0, *accumulate(shares[size] for size in sizes)]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(math.inf, ())] * len(sizes)]
    for _ in range(min(num_buckets, len(sizes))):
        best = [
            min(
                [best[end]]
                + [
                    (best[start][0] + sizes[end - 1] * (up_to[end] - up_to[start]), (*best[start][1], sizes[end - 1]))
                    for start in range(end)
                ]
            )
            for end in range(len(sizes) + 1)
        ]
    return best[-1][1]


def next_bucket(buckets: tuple[int, ...], size: int) -> int:
    """The smallest bucket that holds `size`; a size above all of them is its own."""
    return next((bucket for bucket in buckets if bucket >= size), size)


class _Uncompiled:
    """`ShapeStrategies.uncompiled`, which holds for the process, for calls of several threads: entered by the first of
    them, left by the last. What others call meanwhile is right, but not compiled either."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._entered = ExitStack()

    @contextmanager
    def within(self, tensors: ShapeStrategies) -> Iterator[None]:
        with self._lock:
            if self._num_inside == 0:
                self._entered.enter_context(tensors.uncompiled())
            self._num_inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_inside -= 1
                if self._num_inside == 0:
                    self._entered.close()


_UNCOMPILED: defaultdict[type[Any], _Uncompiled] = defaultdict(_Uncompiled)
"""By class of the backend: each model that is loaded has a backend of its own, and all share the process."""


class _Strategy(ABC):
    """A callable in the place of a step."""

    def __init__(self, place: StrategyContext) -> None:
        self._backend = place.backend
        self._tensors = place.tensors
        self._step = place.backend.proxies.direct(place.step)
        self._shapes = place.traffic
        self._axes = CalledAxes(self._shapes, place.backend.called(place.model))
        self._keeps_inputs = False
        """A call with tensors of the strategy's own has shown that the model does not write to them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(args, kwargs)
        axes, leaves = self._axes.with_leaves(arguments)
        sizes = sizes_in(leaves, axes)
        return arguments.call(self._step) if sizes is None else self._called(arguments, axes, sizes)

    @abstractmethod
    def _called(self, arguments: Arguments, axes: Sequence[Axis], sizes: dict[str, int]) -> Any:
        """A call of these sizes, which its axes have."""

    def _called_uncompiled(self, arguments: Arguments) -> Any:
        with _UNCOMPILED[type(self._backend)].within(self._tensors):
            return arguments.call(self._step)

    def _called_with(self, made: Arguments) -> Any:
        """A call with other tensors than the job's. What a model writes to them, as to a cache of keys and values,
        does not reach the job's own: raises InvalidConfigError where the first call writes."""
        if self._keeps_inputs:
            return made.call(self._step)
        before = self._contents(made)
        outputs = made.call(self._step)
        if self._contents(made) != before:
            raise InvalidConfigError(
                f"knob {SHAPES}: the model writes to its inputs, of which a padded call has copies"
            )
        self._keeps_inputs = True
        return outputs

    def _contents(self, arguments: Arguments) -> list[Hashable]:
        return [self._backend.content(leaf) for leaf in arguments.leaves()]

    def _padded(self, arguments: Arguments, axes: Sequence[Axis], wanted: dict[str, int]) -> Any:
        """What the step gives for a call with these dimensions brought to a size by what may be appended, and the
        outputs cut back."""
        leaves = arguments.leaves()
        sizes = {}
        for axis in axes:
            if axis.dimension in wanted:
                tensor, fill = leaves[axis.leaf], self._shapes.padding[axis.dimension]
                sizes[axis.dimension] = int(tensor.shape[axis.axis])
                leaves[axis.leaf] = self._tensors.pad(tensor, axis.axis, wanted[axis.dimension], fill)
        outputs = self._called_with(arguments.with_leaves(leaves))
        longer = [axis for axis in self._shapes.outputs if axis.dimension in wanted]

        def cut(number: int, tensor: Any) -> Any:
            for axis in longer:
                if axis.leaf == number:
                    tensor = self._tensors.cut(tensor, axis.axis, 0, sizes[axis.dimension])
            return tensor

        return _changed(self._backend, outputs, cut)


class _Marked(_Strategy):
    """Tells the compiler before each call which sizes differ from call to call, so that it compiles for any at once.

    With bounds it compiles for the traffic's sizes, and what lies outside runs uncompiled.
    """

    def __init__(self, place: StrategyContext, config: Config) -> None:
        super().__init__(place)
        traffic = self._shapes.traffic
        ranges = {name: tuple(traffic.sizes_of(name)) for name in traffic.dimensions}
        bounds = {name: (sizes[0], sizes[-1]) for name, sizes in ranges.items()}
        self._bounds = bounds if config.matches({SHAPES: "bounded"}) else {}
        self._open = {name for name, sizes in ranges.items() if len(sizes) > 1}
        self._marked = place.tensors.marker(place.model, place.changes)

    def _called(self, arguments: Arguments, axes: Sequence[Axis], sizes: dict[str, int]) -> Any:
        if any(not low <= sizes[name] <= high for name, (low, high) in self._bounds.items() if name in sizes):
            return self._called_uncompiled(arguments)
        varying = [
            VaryingAxis(axis.leaf, axis.axis, *self._bounds.get(axis.dimension, (None, None)))
            for axis in axes
            if axis.dimension in self._open
        ]
        with self._marked(arguments, varying):
            return arguments.call(self._step)


class _Bucketed(_Strategy):
    """Pads what may be padded up to the next bucket, and cuts the outputs back. Sizes above all buckets stay."""

    def __init__(self, place: StrategyContext, config: Config) -> None:
        super().__init__(place)
        traffic, num_buckets = self._shapes.traffic, _count(config, "num_buckets")
        padded = [name for name in traffic.dimensions if name in self._shapes.padding]
        if not padded:
            raise InvalidConfigError(
                f"knob {SHAPES}: bucketed needs a dimension that may be padded, and the model declares none",
                tip='declare it: "padding": {DIMENSION: VALUE}',
            )
        self._buckets = {name: best_buckets(traffic.sizes_of(name), num_buckets) for name in padded}

    def _called(self, arguments: Arguments, axes: Sequence[Axis], sizes: dict[str, int]) -> Any:
        targets = {name: next_bucket(buckets, sizes[name]) for name, buckets in self._buckets.items() if name in sizes}
        wanted = {name: bucket for name, bucket in targets.items() if bucket != sizes[name]}
        return self._padded(arguments, axes, wanted) if wanted else arguments.call(self._step)


_STRATEGIES: dict[str, Callable[[StrategyContext, Config], Step]] = {
    "marked": _Marked,
    "bounded": _Marked,
    "bucketed": _Bucketed,
}


def _count(config: Config, knob: str) -> int:
    value = config.get(knob)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfigError(f"knob {knob}: {value!r} is no whole number from 1")
    return value


def _changed(backend: Backend, outputs: Any, change: Callable[[int, Any], Any]) -> Any:
    """Outputs of the same form; each tensor is what `change` makes of it and of its number among the arrays that
    `backends.outputs.output_arrays` would make of the outputs, Python's numbers included."""
    number = -1

    def changed(leaf: Any) -> Any:
        nonlocal number
        is_plain = isinstance(leaf, (bool, int, float))
        if not is_plain and backend.spec(leaf) is None:
            return leaf
        number += 1
        return leaf if is_plain else change(number, leaf)

    return with_leaves(outputs, changed)
