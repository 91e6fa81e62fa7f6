"""The layout of a call's arguments, which calls are counted by, and its words in a document.

A tensor's is its shape and its type, a container's begins with a text. Long texts and containers are their types: what
is counted is not to grow with what a job works on, nor to hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST_TEXT, _MOST_PARTS = 64, 256


def layout_of(value: Any, tensor: type) -> Any:
    """One argument's. `tensor`: the framework's class."""
    if isinstance(value, tensor):
        shape: Any = value.shape  # type: ignore[attr-defined]
        if type(value) is not tensor and not all(isinstance(size, int) for size in shape):
            return type(value).__name__  # A nested tensor has a size that is no number, and differs for each.
        return shape, value.dtype  # type: ignore[attr-defined]
    if value is None or isinstance(value, bool) or (isinstance(value, str) and len(value) <= _LONGEST_TEXT):
        return value
    if isinstance(value, (list, tuple, Mapping)):
        return _of_parts(value, tensor)
    return type(value).__name__


def _of_parts(value: Any, tensor: type) -> Any:
    if len(value) > _MOST_PARTS:
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, Mapping):
        return ("dict", *((_name_of(key), layout_of(each, tensor)) for key, each in value.items()))
    return (type(value).__name__, *(layout_of(each, tensor) for each in value))


def _name_of(key: Any) -> Any:
    return key if isinstance(key, (str, int)) else type(key).__name__


def layouts_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: type) -> tuple[Any, ...]:
    """Those of all arguments."""
    given = tuple([layout_of(each, tensor) for each in args])
    return (*given, *((name, layout_of(each, tensor)) for name, each in kwargs.items())) if kwargs else given


def describe_kept(key: tuple[Any, ...]) -> Mapping[str, Any]:
    """A call's arguments in words, and the sizes of its tensors in order. `key`: what it is counted by."""
    layouts = key[0]
    return {
        "signature": " ".join(_words(each) for each in layouts),
        "sizes": [list(size) for each in layouts for size in _sizes(each)],
    }


def describe_layout(key: tuple[Any, ...]) -> Mapping[str, Any]:
    """What `describe_kept` says, and the state that the call was made in."""
    _, grad, training, autocast = key
    return {**describe_kept(key), "grad": bool(grad), "training": bool(training), "autocast": autocast}


def _is_tensor(layout: Any) -> bool:
    """No container's has a type of a framework in the second place."""
    return (
        isinstance(layout, tuple)
        and len(layout) == 2
        and isinstance(layout[0], tuple)
        and not isinstance(layout[1], (bool, str, tuple, type(None)))
    )


def _words(layout: Any) -> str:
    if _is_tensor(layout):
        return f"{str(layout[1]).rpartition('.')[2].lower()}[{len(layout[0])}]"
    if isinstance(layout, tuple):
        return f"({' '.join(each if isinstance(each, str) else _words(each) for each in layout)})"
    return layout if isinstance(layout, str) else repr(layout)


def _sizes(layout: Any) -> Iterator[tuple[int, ...]]:
    if _is_tensor(layout):
        yield layout[0]
    elif isinstance(layout, tuple):
        for each in layout:
            yield from _sizes(each)
