"""Starting a process, with retries while the machine has no process or memory to spare."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from autotune.errors import HarnessError

RETRY_FOR_S = 30.0
_PAUSE_S = 0.5
_NO_RESOURCES = (errno.EAGAIN, errno.ENOMEM)

Started = TypeVar("Started")


def start_when_possible(start: Callable[[], Started], retry_for_s: float | None = None) -> Started:
    """The result of `start` (a fork, a Popen), retried for `RETRY_FOR_S`. Raises HarnessError after that."""
    end = time.monotonic() + (RETRY_FOR_S if retry_for_s is None else retry_for_s)
    while True:
        try:
            return start()
        except OSError as error:
            if error.errno not in _NO_RESOURCES:
                raise
            if time.monotonic() >= end:
                raise HarnessError(
                    f"this machine can start no further process: {error.strerror}",
                    tip="stop unneeded programs, or raise the limits on processes and memory (ulimit -u, the "
                    "container's pids and memory); recorded trials are kept",
                ) from None
        time.sleep(_PAUSE_S)


def lacks_process_resources(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, says that no process or thread could be started."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EAGAIN:
            return True
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
