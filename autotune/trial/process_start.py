"""Starting a process on a machine that has no room for a further one at the moment: wait a while, then say so."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from autotune.errors import HarnessError

RETRY_FOR_S = 30.0
_PAUSE_S = 0.5
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)

Started = TypeVar("Started")


def start_when_possible(start: Callable[[], Started], patience_s: float | None = None) -> Started:
    """What `start` (a fork, a Popen) gives, as soon as it can. Raises HarnessError after `RETRY_FOR_S`."""
    end = time.monotonic() + (RETRY_FOR_S if patience_s is None else patience_s)
    while True:
        try:
            return start()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if time.monotonic() >= end:
                raise HarnessError(
                    f"this machine can start no further process: {error.strerror}",
                    tip="end what is not needed, or raise the limits on processes and memory (ulimit -u, the "
                    "container's pids and memory); nothing recorded is lost",
                ) from None
        time.sleep(_PAUSE_S)


def lacks_process_resources(error: BaseException | None) -> bool:
    """The error, or one that it came from, says that no process or thread could be started."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EAGAIN:
            return True
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
