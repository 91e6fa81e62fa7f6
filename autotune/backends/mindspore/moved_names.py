"""Names of MindSpore that move between releases: each is looked up once, and a missing one is None."""

from __future__ import annotations

import importlib
from typing import Any


def first(*places: str) -> Any:
    """The first `module:name` that this release has, or None."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None
