"""`Values`: a framework's tensors as data."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from numpy.typing import NDArray

from autotune.measure.accuracy import WideType
from autotune.measure.measurement import TensorSpec
from autotune.nesting import is_pythons


class Values(Protocol):
    """Tensors, and what else calls are given, give and leave behind."""

    def place(self, value: Any) -> Any:
        """A model, or an argument of a call, on the selected device. What is no tensor comes back as it is."""
        return value

    def to_array(self, value: Any) -> NDArray[Any] | None:
        """A tensor as a NumPy array, None for what is no tensor. A type that NumPy lacks comes as a wider one."""

    def like(self, array: NDArray[Any], original: Any) -> Any:
        """What `to_array` gives for a tensor as one of the same kind as `original`: its type, number of dimensions,
        layout and device, and whether it requires gradients."""

    def extremes(self, value: Any, axis: int | None = None) -> Sequence[tuple[int, int]] | None:
        """The smallest and the largest whole number in a tensor: of all, or in each slice along an axis. Quick: it is
        asked at each call of a job. None for what holds none, and what is on a device, which would be waited for."""
        return None

    def content(self, value: Any, *, reads_weights: bool = False) -> Hashable | None:
        """Another value once a tensor, or a generator of random numbers, was changed; None for what is neither. Of a
        weight, unless it is read too, the framework's count of writes may do."""
        array = self.to_array(value)
        return None if array is None else (array.shape, str(array.dtype), zlib.crc32(array.tobytes()))

    def attributes(self, value: Any) -> Mapping[str, Any] | None:
        """What a call of the model may change in an object: its attributes and those of its class, without what the
        framework notes there for itself. None for an object that has none."""
        held = getattr(value, "__dict__", None)
        if held is None:
            return None
        kind: type = type(value)
        return {**{name: getattr(kind, name, None) for name in _names_in_classes(kind)}, **held}

    def spec(self, value: Any) -> TensorSpec | None:
        """Shape and type of a tensor, None for what is no tensor. The shape may be another one than its array's."""

    def form(self, value: Any) -> str:
        """What must be equal in two tensors beside their elements: the type of these as NumPy names it, and the layout
        in memory."""
        spec = self.spec(value)
        return "" if spec is None else spec.dtype.lower()

    def storage(self, value: Any) -> Hashable | None:
        """Equal for tensors that share memory; None where that cannot be told."""
        return None

    def address(self, value: Any) -> Hashable | None:
        """Where the memory of a tensor lies: two that are alive share it if this is equal. None: it cannot be told."""
        return self.storage(value)

    def is_contiguous(self, value: Any) -> bool:
        """Whether a view of another shape can be made of a tensor, as of a new one."""
        return True

    def refill(self, value: Any, array: NDArray[Any]) -> bool:
        """Write over the elements of a tensor where it lies, as a job does that has one buffer for all of its calls.
        False where that cannot be done."""
        return False

    def opened(self, value: Any) -> Sequence[Any] | None:
        """The component tensors of a tensor that is no array, such as a nested one; None for any other value."""
        return None

    def widen(self, value: Any, dtype: WideType) -> Any:
        """A model, changed in place, or a tensor with its floating parameters, buffers or elements in `dtype`.

        What is neither, and what holds no floats, comes back as it is.
        """

    def nudge(self, value: Any, share: float) -> Any:
        """A model, changed in place, or a tensor with each floating element times 1 + `share` times a normal number.

        What is neither, and what holds no floats, comes back as it is.
        """
        return value


@cache
def _names_in_classes(kind: type) -> tuple[str, ...]:
    """Attributes of a class and its bases in which the calls of an object may keep something, such as a list."""
    return tuple(
        name
        for base in reversed(kind.__mro__)
        if not is_pythons(base)
        for name, held in vars(base).items()
        if name[:2] != "__" and isinstance(held, (bool, int, float, str, list, dict, set, deque))
    )
