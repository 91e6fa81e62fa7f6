"""A plain function as a Cell: what MindSpore compiles is a Cell's `construct`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms


class FunctionCell(ms.nn.Cell):  # type: ignore[misc]
    """A Cell whose calls are those of a function. The Cell of a bound method is a part of it; tensors and Cells that a
    function takes from around it are not: they are no parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, ms.nn.Cell):
            self.owner = owner
            self.set_train(owner.training)
        self.function = function

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
