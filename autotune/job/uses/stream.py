"""`UseOfStream`: calls of many shapes, any that lies within the traffic that a study compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.apply.shape_strategies import sizes_in
from autotune.backends.protocol import Backend
from autotune.job.mismatch import inputs_differ
from autotune.job.uses.calls import UseOfCalls
from autotune.measure.measurement import Axis
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.stream import Stream
from autotune.workload.traffic import CalledAxes, Shapes, Traffic


class UseOfStream(UseOfCalls):
    """See the module. The recorded latency is that of a mixture of shapes, and the first calls are another one."""

    kind = Stream
    is_of_one_latency = False
    takes_shapes = False

    def _difference(self, backend: Backend) -> Callable[[Arguments], str | None]:
        then, called = self._applying.tuned.workload.signature.inputs, self._called_axes(backend)
        traffic = self._shapes.traffic

        def difference(arguments: Arguments) -> str | None:
            axes, leaves = called.with_leaves(arguments)
            return _size_out_of_range(traffic, leaves, axes) or inputs_differ(then, backend, leaves, axes)

        return difference

    def _open_axes(self, backend: Backend) -> Callable[[Arguments], Sequence[Axis]]:
        return self._called_axes(backend).of

    def _called_axes(self, backend: Backend) -> CalledAxes:
        return CalledAxes(self._shapes, backend.called(self.model))

    @property
    def _shapes(self) -> Shapes:
        shapes = self._applying.tuned.shapes
        assert shapes is not None, "they make the file one of a stream"
        return shapes


def _size_out_of_range(traffic: Traffic, leaves: Sequence[Any], axes: Sequence[Axis]) -> str | None:
    """The first dimension whose size none of the traffic had, or what lies between its sizes."""
    for dimension, size in (sizes_in(leaves, axes) or {}).items():
        sizes = list(traffic.sizes_of(dimension))
        smallest, largest = sizes[0], sizes[-1]
        if not smallest <= size <= largest:
            return f"calls with {dimension} from {smallest} to {largest}, here {size}"
    return None
