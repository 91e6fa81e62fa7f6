"""`Content`: what is in a value at one moment, in containers, objects, arrays and tensors."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from autotune.backends.mindspore.attributes import Attributes, content_of
from autotune.backends.mindspore.state import is_same
from autotune.backends.mindspore.tensors import array_of


class Content:
    """Parameters apart: graphs share them."""

    def __init__(self, value: Any) -> None:
        self._value = [value]
        held = Attributes()
        self._copy = held.copied(self._value)
        tensors = (each for each in held.tensors.values() if not isinstance(each, ms.Parameter))
        arrays = (each for each in held.constants.values() if not isinstance(each, ms.Tensor))
        self._contents = [(each, bytes_of(each)) for each in (*tensors, *arrays)]

    def holds(self) -> bool:
        """The value is as it was."""
        return is_same(self._copy, self._value) and all(bytes_of(each) == then for each, then in self._contents)


def bytes_of(value: Any) -> bytes:
    """Of a tensor or an array; NumPy has no bfloat16."""
    return content_of(array_of(value) if isinstance(value, ms.Tensor) else value)
