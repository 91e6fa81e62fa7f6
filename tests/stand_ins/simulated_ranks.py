"""Ranks of a job that are threads of the test's process, on a clock that nobody waits for.

One of them runs at a time, until it sleeps or ends; then the clock goes on to the first one that is to wake. So what a
rank waits is a figure of the protocol's, and a case comes out alike each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore

from autotune.backends.torch.backend import TorchBackend
from autotune.backends.torch.parallel import StoreRanks
from autotune.job import board
from autotune.job import ranks as job_ranks
from tests.stand_ins.ranks import Outcome


class SimulatedTime:
    """Stands for the module `time` in what the ranks' threads call."""

    def __init__(self, num_ranks: int) -> None:
        self.now_s = 0.0
        self._wakes = dict.fromkeys(range(num_ranks), 0.0)
        self._running = 0
        self._changed = threading.Condition()
        self._local = threading.local()

    @property
    def rank(self) -> int:
        """Of this thread."""
        rank: int = self._local.rank
        return rank

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        with self._changed:
            self._wakes[self.rank] = self.now_s + seconds
            self._go_on()
            self._changed.wait_for(lambda: self._running == self.rank)

    def run(self, rank: int, call: Callable[[], None]) -> None:
        """`call` as this rank's thread."""
        self._local.rank = rank
        with self._changed:
            self._changed.wait_for(lambda: self._running == rank)
        try:
            call()
        finally:
            with self._changed:
                del self._wakes[rank]
                self._go_on()

    def _go_on(self) -> None:
        if self._wakes:
            self._running = min(self._wakes, key=lambda rank: (self._wakes[rank], rank))
            self.now_s = max(self.now_s, self._wakes[self._running])
        self._changed.notify_all()


class SimulatedRanks:
    """So many ranks. They have met in `store`, and `timeout_s` is that of their collectives."""

    def __init__(self, num_ranks: int, store: Any = None, timeout_s: float | None = None) -> None:
        self.num_ranks = num_ranks
        self.store = HashStore() if store is None else store
        self.time = SimulatedTime(num_ranks)
        self._timeout_s = timeout_s

    def run(self, case: Callable[..., Any], *args: Any) -> list[Outcome]:
        """`case(rank, time, *args)` on each rank."""
        outcomes = [Outcome() for _ in range(self.num_ranks)]
        ranks = [StoreRanks(rank, self.num_ranks, self.store, self._timeout_s) for rank in range(self.num_ranks)]

        def call(rank: int) -> None:
            try:
                outcomes[rank].value = case(rank, self.time, *args)
            except Exception as error:
                outcomes[rank].error = f"{type(error).__name__}: {error}"

        log, kept = logging.getLogger("autotune"), _Kept(self.time, outcomes)
        log.addHandler(kept)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(board, "time", self.time)
            patch.setattr(job_ranks, "time", self.time)
            patch.setattr(TorchBackend, "ranks", staticmethod(lambda: ranks[self.time.rank]))
            threads = [
                threading.Thread(target=self.time.run, args=(rank, lambda rank=rank: call(rank)), daemon=True)
                for rank in range(self.num_ranks)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        log.removeHandler(kept)
        assert not any(thread.is_alive() for thread in threads)
        return outcomes


class _Kept(logging.Handler):
    """Keeps what each rank warns of."""

    def __init__(self, time: SimulatedTime, outcomes: list[Outcome]) -> None:
        super().__init__(logging.WARNING)
        self._time = time
        self._outcomes = outcomes

    def emit(self, record: logging.LogRecord) -> None:
        self._outcomes[self._time.rank].warnings.append(record.getMessage())
