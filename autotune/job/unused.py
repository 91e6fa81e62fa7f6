"""A tuned model that no call comes through is told of once, when the process ends: the job calls something else.

It calls the model that it gave, or parts or methods of it that are not called through the model; or it dropped what
`apply` returned. A process that was forked is not told: its children may have made the calls.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from functools import partial

_log = logging.getLogger("autotune")
_uncalled: set[str] = set()
"""Files whose config was applied, and of which no model was called so far."""


def expect_calls(path: str) -> Callable[[], None]:
    """A model was given the config in this file. Returns what is to be called at its first call."""
    _uncalled.add(path)
    return partial(_uncalled.discard, path)


def _tell() -> None:
    for path in sorted(_uncalled):
        _log.warning(
            "autotune: %s: no call came to the model that apply() returned: only calls of that object are tuned, not "
            "those of the model that it was made of, nor of its parts",
            path,
        )


atexit.register(_tell)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_uncalled.clear)
