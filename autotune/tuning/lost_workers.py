"""Measurements on a worker that dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autotune.bench.many_devices import WorkerLostError
from autotune.study.neighbours import LOST_TRIALS
from autotune.study.study import Study
from autotune.tuning.events import Notify, TrialLost

T = TypeVar("T")


def until_no_worker_is_lost(measure: Callable[[], T]) -> T:
    """Measure again, on another worker, where one was lost. It ends: a worker that is lost twice is left out."""
    while True:
        try:
            return measure()
        except WorkerLostError:
            continue


def note_lost(study: Study, notify: Notify, number: int, lost: WorkerLostError) -> None:
    """Say that a trial was lost, and keep with the study on which worker."""
    notify(TrialLost(number, str(lost)))
    LOST_TRIALS.add(study, lost.worker)
