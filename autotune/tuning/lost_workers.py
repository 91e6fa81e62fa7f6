"""Measurements on a worker that dies meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autotune.trial.runner.many_devices import WorkerLostError

T = TypeVar("T")


def until_no_worker_is_lost(measure: Callable[[], T]) -> T:
    """Measure again, on another worker, where one was lost. It ends: a worker that is lost twice is left out."""
    while True:
        try:
            return measure()
        except WorkerLostError:
            continue
