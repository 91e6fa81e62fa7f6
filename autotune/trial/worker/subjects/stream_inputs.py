"""Traffic and a model brought together: which axes of its inputs are which dimension, and inputs of every shape.

The model's function is called with every dimension at its largest size; its inputs of any other shape are cut from
these. Which axes to cut is seen from the inputs of one more call for each dimension, with that one at its smallest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from autotune.backends.outputs import output_arrays
from autotune.backends.protocol import Backend
from autotune.errors import InputError, marked
from autotune.measure.measurement import Axis
from autotune.workload.arguments import Arguments, named, parameter_names
from autotune.workload.build import Built, build
from autotune.workload.kinds.stream import Stream
from autotune.workload.traffic import Shapes, Sizes, Traffic
from autotune.workload.workload import Workload

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StreamInputs(Stream):
    """The calls that a trial replays: `sizes` and `inputs` of each shape, and for each call an index into them."""

    shapes: Shapes
    sizes: tuple[Sizes, ...]
    inputs: tuple[Arguments, ...]
    calls: tuple[int, ...]
    checked: tuple[Arguments, ...]
    """The inputs of the most frequent, the smallest and the largest of these shapes, each once."""

    @classmethod
    def of_shapes(cls, workload: Workload, largest: Arguments, shapes: Shapes, backend: Backend) -> Self:
        """The seeded stream of the workload's traffic, with inputs cut from the largest ones."""
        traffic = shapes.traffic
        loads = traffic.stream(workload.stream_calls, workload.seed)
        called = sorted(set(loads))
        sizes = tuple(traffic.loads[load].sizes for load in called)
        inputs = tuple(cut(largest, shapes.inputs, shape, backend) for shape in sizes)
        calls = tuple(called.index(load) for load in loads)
        return cls(shapes, sizes, inputs, calls, tuple(inputs[index] for index in _notable(sizes, calls)))


def find_shapes(workload: Workload, built: Built, model: Any, largest: Arguments, backend: Backend) -> Shapes:
    """Where the dimensions of the workload's traffic show. `model` and `largest`, its inputs, are on the device.

    Raises InputError for a dimension that shows nowhere, or in another way than as the size of an axis.
    """
    assert workload.traffic is not None
    traffic = workload.traffic
    looked_at = [VaryingDimension.of(name, traffic) for name in traffic.dimensions if len(traffic.sizes_of(name)) > 1]
    names = parameter_names(backend.called(model))
    inputs = tuple(
        axis.model_copy(update={"name": named(axis.name or "", names)})
        for dimension in looked_at
        for axis in _input_axes(dimension, workload, largest, backend)
    )
    padding = {
        dimension.name: built.padding[dimension.name] for dimension in looked_at if dimension.name in built.padding
    }
    outputs: tuple[Axis, ...] = ()
    if padding:

        def shapes_at(sizes: Sizes) -> list[Shape]:
            with nullcontext() if backend.input_gradients else backend.inference():
                returned = cut(largest, inputs, sizes, backend).call(model)
            return [array.shape for array in output_arrays(backend, returned)]

        large = shapes_at(traffic.largest)
        outputs = tuple(
            axis
            for dimension in looked_at
            if dimension.name in padding
            for axis in _output_axes(
                dimension, workload.model, large, shapes_at({**traffic.largest, **dimension.at_smallest})
            )
        )
    return Shapes(traffic=traffic, inputs=inputs, outputs=outputs, padding=padding)


@dataclass(frozen=True)
class VaryingDimension:
    """One that varies, with its largest and its smallest size."""

    name: str
    largest: int
    smallest: int

    @classmethod
    def of(cls, name: str, traffic: Traffic) -> VaryingDimension:
        sizes = traffic.sizes_of(name)
        return cls(name, max(sizes), min(sizes))

    @property
    def at_smallest(self) -> Sizes:
        return {self.name: self.smallest}

    def axes(self, what: str, large: Shape | None, small: Shape | None) -> list[int]:
        """In which the shapes of a tensor at either size differ. Raises InputError unless that is by the sizes."""
        if large is None or small is None or len(large) != len(small):
            raise InputError(f"{what} has shape {large} at {self.largest} and {small} at {self.smallest}")
        differing = [axis for axis, sizes in enumerate(zip(large, small, strict=True)) if sizes[0] != sizes[1]]
        for axis in differing:
            if (large[axis], small[axis]) != (self.largest, self.smallest):
                raise InputError(
                    f"{what} has shape {large} at {self.largest} and {small} at {self.smallest}",
                    tip="the size of an axis must be that of the dimension itself",
                )
        return differing


def cut(largest: Arguments, axes: Sequence[Axis], sizes: Sizes, backend: Backend) -> Arguments:
    """The beginning of each input along its axes, as many as `sizes` says: copies."""
    leaves = largest.leaves()
    for number in {axis.leaf for axis in axes}:
        array = backend.to_array(leaves[number])
        assert array is not None
        kept = [slice(None)] * array.ndim
        for axis in axes:
            if axis.leaf == number:
                kept[axis.axis] = slice(sizes[axis.dimension])
        leaves[number] = backend.like(array[tuple(kept)], leaves[number])
    return largest.with_leaves(leaves)


def _notable(sizes: Sequence[Sizes], calls: Sequence[int]) -> list[int]:
    """The most frequent shape, the smallest and the largest, by how much they hold; each once."""
    order = sorted(range(len(sizes)), key=lambda index: np.prod(list(sizes[index].values())))
    most_frequent = Counter(sorted(calls)).most_common(1)[0][0]
    return list(dict.fromkeys([most_frequent, order[0], order[-1]]))


def _input_axes(dimension: VaryingDimension, workload: Workload, largest: Arguments, backend: Backend) -> list[Axis]:
    """Where the inputs differ that the workload's function gives with the dimension at its smallest size."""
    arguments = {**workload.arguments, **dimension.at_smallest}
    other = build(workload.model_copy(update={"arguments": arguments})).inputs.leaves()
    named = largest.named_leaves()
    who = f"{marked('shapes', dimension.name)}: the inputs of {workload.model}"
    if len(other) != len(named):
        raise InputError(f"{who} are {len(named)} at {dimension.largest} and {len(other)} at {dimension.smallest}")
    axes = []
    for number, ((name, large), small) in enumerate(zip(named, other, strict=True)):
        if _is_plain(large) and _is_plain(small) and large != small:
            raise InputError(
                f"{who}: {name} is {large!r} at {dimension.largest} and {small!r} at {dimension.smallest}",
                tip="what varies must be a tensor's axis; let the model read the size from it",
            )
        shapes = _shape(large, backend), _shape(small, backend)
        if shapes[0] != shapes[1]:
            axes += [
                Axis(dimension=dimension.name, leaf=number, axis=axis, name=name)
                for axis in dimension.axes(f"{who}: {name}", *shapes)
            ]
    if not axes:
        raise InputError(f"{who} have the same shapes whatever it is", tip="is it a dimension of an input?")
    return axes


def _output_axes(dimension: VaryingDimension, model: str, large: Sequence[Shape], small: Sequence[Shape]) -> list[Axis]:
    """Where the outputs of the model as it is differ: what was appended to the inputs has to be cut off there."""
    who = f"padding of {dimension.name}: the outputs of {model}"
    if len(small) != len(large):
        raise InputError(f"{who} are {len(large)} at {dimension.largest} and {len(small)} at {dimension.smallest}")
    return [
        Axis(dimension=dimension.name, leaf=number, axis=axis)
        for number, shapes in enumerate(zip(large, small, strict=True))
        for axis in dimension.axes(f"{who}: number {number + 1}", *shapes)
    ]


def _shape(value: Any, backend: Backend) -> Shape | None:
    spec = backend.spec(value)
    return None if spec is None else spec.shape


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
