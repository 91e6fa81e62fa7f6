"""`TrialQueue`: the trials that were asked for and not run yet. While one is timed, the next ones are compiled already.

What compiling costs is measured beside other compilations then, and steady calls alone: see docs/measurement.md.
"""

from __future__ import annotations

from collections import deque

from autotune.bench.bench import Running
from autotune.study.study import AskedTrial
from autotune.tuning.attempts import Attempts, QueuedTrial
from autotune.tuning.cache_store import with_reuse
from autotune.tuning.compile_limit import CompileLimit, compile_limit
from autotune.tuning.events import TrialsCompiling
from autotune.tuning.session import Session, trial_request


class TrialQueue:
    """As long as `Session.num_jobs`. What was started ahead comes out when it is ready to be timed, whichever is first;
    all else in the order in which it was put in."""

    def __init__(self, session: Session, attempts: Attempts) -> None:
        self._session = session
        self._attempts = attempts
        self._queued: deque[QueuedTrial] = deque()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, asked: AskedTrial, longest_s: float) -> None:
        """Put a trial at the end, and start it if others run at the same time."""
        session = self._session
        folder = session.study.trial_folder(asked.number)
        request = trial_request(session.study, asked.number, asked.config, folder, session.budget)
        limit = self._compile_limit(asked)
        if limit is not None:
            request = request.limited_to(limit.applied(request.limits))
        request = session.with_kernels(with_reuse(request, session.study, session.caches))
        try:
            is_ahead = session.num_jobs > 1
            ahead = self._attempts.start_ahead(folder, request, longest_s) if is_ahead else None
        except BaseException:
            session.study.abandon(asked)
            raise
        self._queued.append(QueuedTrial(asked, folder, request, ahead, limit))

    def _compile_limit(self, asked: AskedTrial) -> CompileLimit | None:
        session = self._session
        if not session.budget.cuts_slow_compiles:
            return None
        limits = session.budget.limits
        return compile_limit(session.study, asked.config, min(limits.compile, limits.total))

    def pop(self) -> QueuedTrial:
        """The next one; waits until it is ready, if it was started ahead."""
        bench, running = self._session.bench, self._running()
        if not running:
            return self._queued.popleft()
        if len(running) > 1 and bench.is_here:
            self._session.notify(TrialsCompiling(tuple(queued.asked.number for queued, _ in running)))
        ready = bench.first_ready([process for _, process in running])
        chosen = next(queued for queued, process in running if process is ready)
        self._queued.remove(chosen)
        return chosen

    def numbers(self) -> list[int]:
        """Of the trials in it."""
        return [queued.asked.number for queued in self._queued]

    def drop(self) -> None:
        """End what was started, and give back what was asked for."""
        if running := self._running():
            self._session.bench.drop([process for _, process in running])
        while self._queued:
            self._session.study.abandon(self._queued.popleft().asked)

    def _running(self) -> list[tuple[QueuedTrial, Running]]:
        return [(queued, queued.ahead.running) for queued in self._queued if queued.ahead is not None]
