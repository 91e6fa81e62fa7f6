"""`Ticker`: the second hand of a display, which stands still whenever something is timed."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ticker:
    """Calls `tick` once a second in a thread of its own, from `start` to `stop`, while it is allowed to.

    While it is not, the thread sleeps without a time limit, so that it takes nothing from what is timed.
    """

    def __init__(self, tick: Callable[[], None], every_s: float = 1.0) -> None:
        self._tick = tick
        self._every_s = every_s
        self._changed = threading.Condition()
        self._may = self._is_over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; nothing is called before `allow`."""
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)
        self._thread.start()

    def allow(self, may: bool) -> None:
        """When this returns after a no, no tick is under way, and none comes."""
        with self._changed:
            if self._may != may:
                self._may = may
                self._changed.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_over:
                was_told = self._changed.wait(self._every_s if self._may else None)
                if not was_told and self._may and not self._is_over:
                    try:
                        self._tick()
                    except Exception:  # A terminal that went away: the next line of the run itself says so.
                        return
