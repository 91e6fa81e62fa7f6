"""A second Cell with all that a job's own holds: what the job has in its place while its calls are compiled.

"Measured" means: on MindSpore 2.10.0, CPU, Linux x86-64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.compiled_cell import FunctionCell, call_exclusively
from autotune.backends.mindspore.regions import empty_cell
from autotune.backends.proxy_object import function_of, original, proxy_of
from autotune.backends.undo import UndoLog

__all__ = ["direct", "original", "proxy"]


def proxy(model: ms.nn.Cell, step: Any, call: Callable[..., Any], changes: UndoLog, method: str | None = None) -> Any:
    """See `ModelProxies`. It shares the model's `__dict__`."""
    if isinstance(model, FunctionCell):
        return function_of(model.function, getattr(model.function, "__name__", "function"), call)

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert method is not None
        return call(*args, **kwargs) if self is other else getattr(type(model), method)(self, *args, **kwargs)

    def entered(*args: Any, **kwargs: Any) -> Any:
        if method is not None:
            return model(*args, **kwargs)
        if not other.requires_grad:
            return call(*args, **kwargs)
        # Gradients of this very Cell are being taken: MindSpore has its call marked by the Cell (measured).
        other._call_pre_process(*args, **kwargs)
        output = call(*args, **kwargs)
        other._call_post_process(output, *args, **kwargs)
        return output

    # The graphs that a Cell frees at its end are the model's.
    methods: dict[str, Any] = {"__del__": lambda _self: None} | ({} if method is None else {method: replaced})
    other: ms.nn.Cell = proxy_of(model, entered, partial(empty_cell, model=model), **methods)
    return other


def direct(step: Any) -> Callable[..., Any]:
    """See `ModelProxies`."""
    return partial(call_exclusively, partial(type(step).__call__, step))
