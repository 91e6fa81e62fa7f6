"""`TrialQueue`: the trials that were asked for and not run yet. While one is timed, the next ones are compiled already.

What compiling costs is measured beside other compilations then, and steady calls alone: see docs/measurement.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from autotune.study.study import AskedTrial
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.compile_limit import CompileLimit, compile_limit
from autotune.tuning.events import TrialsCompiling
from autotune.tuning.reuse import with_reuse
from autotune.tuning.session import Session, trial_request


@dataclass(frozen=True)
class QueuedTrial:
    """A trial to run: what the study asked for, its folder, and its request."""

    asked: AskedTrial
    folder: TrialFolder
    request: TrialRequest
    is_ahead: bool = False
    """It was started already."""
    compile_limit: CompileLimit | None = None
    """Where it is stricter than the budget's."""


class TrialQueue:
    """As long as `Session.num_jobs`. What was started ahead comes out when it is ready to be timed, whichever is first;
    all else in the order in which it was put in."""

    def __init__(self, session: Session) -> None:
        self._session = session
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
        except BaseException:  # No worker is left.
            session.study.abandon(asked)
            raise
        self._queued.append(QueuedTrial(asked, folder, request, is_ahead, limit))
        if is_ahead:
            session.prepare(folder, request, longest_s)

    def _compile_limit(self, asked: AskedTrial) -> CompileLimit | None:
        session = self._session
        if not session.budget.cuts_slow_compiles:
            return None
        limits = session.budget.limits
        return compile_limit(session.study, asked.config, min(limits.compile, limits.total))

    def pop(self) -> QueuedTrial:
        """The next one; waits until it is ready, if it was started ahead."""
        ahead = [each for each in self._queued if each.is_ahead]
        if self._session.prepared_trials is None or not ahead:
            return self._queued.popleft()
        if len(ahead) > 1 and self._session.devices is None:
            self._session.notify(TrialsCompiling(tuple(each.asked.number for each in ahead)))
        ready = self._session.prepared_trials.next_ready([each.folder for each in ahead])
        queued = next(each for each in ahead if each.folder == ready)
        self._queued.remove(queued)
        return queued

    def numbers(self) -> list[int]:
        """Of the trials in it."""
        return [each.asked.number for each in self._queued]

    def drop(self) -> None:
        """End what was started, and give back what was asked for."""
        if self._queued and self._session.prepared_trials is not None:
            self._session.prepared_trials.drop_prepared()
        while self._queued:
            self._session.study.abandon(self._queued.popleft().asked)
