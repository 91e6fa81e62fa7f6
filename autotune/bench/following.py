"""`Following`: the supervisor of the next block, which imports while this block's processes become warm."""

from __future__ import annotations

from collections.abc import Callable

from autotune.bench.supervisor_process import SupervisorProcess
from autotune.errors import HarnessError

_IMPORT_LIMIT_S = 120.0


class Following:
    """One at a time; where it fails there is none, and the block goes on with the supervisor that it has."""

    def __init__(self) -> None:
        self._process: SupervisorProcess | None = None

    def begin(self, start: Callable[[], SupervisorProcess]) -> None:
        """Let it start, and do not wait for it. Raises HarnessError where no process can be started."""
        self._process = start()

    def settle(self) -> None:
        """Wait until it has imported what it needs, and rests: nothing may be timed before."""
        if self._process is None:
            return
        try:
            self._process.wait_until_ready(_IMPORT_LIMIT_S)
        except HarnessError:
            self._process = None

    def take(self) -> SupervisorProcess | None:
        """It, once it rests; it is nobody's following any more."""
        self.settle()
        process, self._process = self._process, None
        return process

    def close(self) -> None:
        """End it, and wait for that."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
