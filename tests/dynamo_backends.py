"""`registered`: a backend of dynamo that a test plants in the place of PyTorch's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def registered(function: Callable[..., Any], name: str) -> Iterator[None]:
    """Within: dynamo has the backend, and it counts as one of PyTorch's, which promise more than those of packages."""
    from torch._dynamo.backends import registry

    from autotune.backends.torch import knobs

    well_known = knobs._WELL_KNOWN
    registry.register_backend(function, name=name)
    knobs._WELL_KNOWN = (*well_known, name)
    try:
        yield
    finally:
        knobs._WELL_KNOWN = well_known
        for table in ("_BACKENDS", "_COMPILER_FNS"):
            getattr(registry, table, {}).pop(name, None)
