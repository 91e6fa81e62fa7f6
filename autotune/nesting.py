"""Nested values: the leaves of containers and objects, each with its path, and the same nest with other leaves.

One walk serves all that takes inputs and outputs apart. A path is what one would write behind a name to get there:
`[0]['boxes']`, `.key_cache[3]`.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any

DEEPEST = 16
"""Containers and objects within each other that are looked into."""

Parts = list[tuple[str, Any]]
"""What a container holds, each with the end of its path."""


def parts_of(value: Any) -> Parts | None:
    """What a tuple, list, mapping, set or dataclass holds, in order; None for any other value."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", each) for name, each in zip(value._fields, value, strict=True)]
    if isinstance(value, (tuple, list, deque, Set)):
        return [(f"[{place}]", each) for place, each in enumerate(value)]
    if has_fields(value):
        return [(f".{each.name}", getattr(value, each.name, None)) for each in fields(value)]
    return None


def leaves(value: Any, path: str = "", depth: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """The path and value of all that is no container, in order. Containers that are deeper than `depth` are leaves."""
    parts = parts_of(value) if depth else None
    if parts is None:
        yield path, value
    for end, each in parts or ():
        yield from leaves(each, path + end, depth - 1)


def with_leaves(value: Any, change: Callable[[Any], Any], depth: int = DEEPEST) -> Any:
    """This nest with leaves that `change` makes of its own, called in the order of `leaves`.

    Containers keep their class, and no `__init__` of a mapping or a dataclass is called. A nest in which nothing
    changes comes back as it is.
    """
    parts = parts_of(value) if depth else None
    if parts is None:
        return change(value)
    made = [with_leaves(each, change, depth - 1) for _, each in parts]
    if all(one is other for one, (_, other) in zip(made, parts, strict=True)):
        return value
    return _filled(value, made)


def has_fields(value: Any) -> bool:
    """It is an instance of a dataclass."""
    return is_dataclass(value) and not isinstance(value, type)


def is_pythons(kind: type) -> bool:
    """It is a class of Python's own library."""
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


def _filled(container: Any, values: list[Any]) -> Any:
    """A copy of the container that holds other values, in the same order."""
    if isinstance(container, Mapping):
        return _filled_mapping(container, dict(zip(container, values, strict=True)))
    if isinstance(container, tuple):
        return container._make(values) if hasattr(container, "_make") else type(container)(values)
    if isinstance(container, list):
        made = copy.copy(container)
        made[:] = values
        return made
    if isinstance(container, (deque, Set)):
        kind: Any = type(container)
        return kind(values)
    made = copy.copy(container)
    for field, each in zip(fields(container), values, strict=True):
        object.__setattr__(made, field.name, each)
    return made


def _filled_mapping(container: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    made: Any = copy.copy(container)
    try:
        for key, each in values.items():
            made[key] = each
    except TypeError:
        return values  # One that cannot be written to, such as a `MappingProxyType`.
    if has_fields(made):  # A `ModelOutput` holds its values twice.
        for name in values.keys() & {each.name for each in fields(made)}:
            object.__setattr__(made, name, values[name])
    return made
