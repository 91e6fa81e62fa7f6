"""Settings of PyTorch's that each thread has for itself.

A release may keep what is set in `torch._inductor.config` and its like in context variables (2.13 does; see
torch/utils/_config_module.py): another thread begins without it. A job applies a config in one thread and may call the
model in others, which would compile it under other settings, and say nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

Entry = tuple[Any, str, object]
"""A module of settings, a setting's name, and its value."""


class ThreadSettings:
    """What a config sets, for whichever thread calls. In the thread in which this is made it stands already.

    In other threads it is set at their first call, and stays: nothing tells a thread that it was undone elsewhere.
    """

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._stands: ContextVar[bool] = ContextVar("stands", default=False)
        self._stands.set(True)

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step under these settings; itself where there are none."""
        if not self._entries:
            return step

        def within(*args: Any, **kwargs: Any) -> Any:
            if not self._stands.get():
                for module, name, value in self._entries:
                    setattr(module, name, value)
                self._stands.set(True)
            return step(*args, **kwargs)

        return within
