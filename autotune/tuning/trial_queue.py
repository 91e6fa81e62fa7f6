"""`TrialQueue`: the trials that were asked for and not run yet. While one is timed, the next ones are compiled already.

What compiling costs is measured beside other compilations then, and steady calls alone: see docs/measurement.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import psutil

from autotune.environment import num_usable_cores
from autotune.measure.measurement import Measurement
from autotune.study.study import Asked, Study
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.tuning.reuse import with_reuse
from autotune.tuning.session import Session, trial_request

MOST_JOBS = 8
SPARE_BYTES = 2**30
"""A compiler's own memory, and what the system needs, for each trial."""
MEMORY_FACTOR = 2
"""A process that compiles holds the model and what it makes of it: times the largest peak of a trial so far."""
_OF_COMPILING = ("compile", "total")


@dataclass(frozen=True)
class Queued:
    """A trial to run: what the study asked for, its folder, and its request."""

    asked: Asked
    folder: TrialFolder
    request: TrialRequest


class TrialQueue:
    """First in, first out. `num_jobs` is how many trials there may be at a time: one that is run, and those ahead."""

    def __init__(self, session: Session, num_jobs: int | None) -> None:
        self._session = session
        self._wanted = num_jobs
        self._queued: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def num_jobs(self) -> int:
        """One until the untuned model has left its reference; then as many as asked for, or as the machine can take."""
        study = self._session.study
        if study.untuned_record() is None or not may_compile_ahead(study) or self._session.prepared_trials is None:
            return 1
        return self._wanted if self._wanted is not None else fitting_jobs(_peak_bytes(study))

    def add(self, asked: Asked, longest_s: float) -> None:
        """Put a trial at the end, and start it if others run at the same time."""
        session = self._session
        folder = session.study.trial_folder(asked.number)
        request = trial_request(session.study, asked.number, asked.config, folder, session.budget)
        queued = Queued(asked, folder, with_reuse(request, session.study, session.caches))
        self._queued.append(queued)
        if self.num_jobs > 1:
            session.prepare(queued.folder, queued.request, longest_s)

    def pop(self) -> Queued:
        """The next one."""
        return self._queued.popleft()

    def numbers(self) -> list[int]:
        """Of the trials in it."""
        return [each.asked.number for each in self._queued]

    def drop(self) -> None:
        """End what was started, and give back what was asked for."""
        if self._queued and self._session.prepared_trials is not None:
            self._session.prepared_trials.drop_prepared()
        while self._queued:
            self._session.study.abandon(self._queued.popleft().asked)


def fitting_jobs(peak_bytes: int | None) -> int:
    """Trials that the machine can hold at a time: one for each core, as far as there is memory for them."""
    each_bytes = SPARE_BYTES + MEMORY_FACTOR * (peak_bytes or 0)
    return max(1, min(num_usable_cores(), psutil.virtual_memory().available // each_bytes, MOST_JOBS))


def may_compile_ahead(study: Study) -> bool:
    """Not where what compiling costs is compared, and not on a device: it was never measured there."""
    manifest = study.manifest
    bounded = {each.quantity for each in manifest.constraints}
    quantities = bounded.union(each.quantity for each in manifest.objectives)
    is_plain = manifest.workload.device == "cpu" and not manifest.others and manifest.workload.traffic is None
    return is_plain and quantities.isdisjoint(_OF_COMPILING)


def _peak_bytes(study: Study) -> int | None:
    peaks = [
        max(each.outcome.peak_memory_bytes or 0, each.outcome.compile_peak_memory_bytes or 0)
        for each in study.records()
        if isinstance(each.outcome, Measurement)
    ]
    return max(peaks, default=None)
