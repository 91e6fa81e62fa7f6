"""`ManyDevices`: trials that run side by side on several devices, as the loop sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.bench.trials import LiveTrial, PreparedTrials
from autotune.errors import HarnessError
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest

UntunedAgain = Callable[[str, bool], tuple[TrialFolder, TrialRequest]]
"""Folder and request of one more run of the untuned model: told a name, and whether it is its worker's first one."""


class WorkerLostError(HarnessError):
    """The worker of a trial died, or its node did: the trial says nothing and is tried again."""

    def __init__(self, message: str, worker: str) -> None:
        super().__init__(message)
        self.worker = worker
        """Its name."""


@dataclass(frozen=True)
class Machine:
    """A host with several workers, by their names."""

    host: str
    workers: tuple[str, ...]


class ManyDevices(PreparedTrials, Protocol):
    """Trials on several devices, which run side by side; those of one machine take turns at being timed until it has
    shown that they do not disturb each other. `run`, `hold` and a live process's methods raise WorkerLostError; what
    has no worker left, HarnessError."""

    @property
    def num_workers(self) -> int:
        """Trials that run at the same time."""

    def time_untuned_by(self, untuned: UntunedAgain) -> None:
        """How a worker's own runs of the untuned model are made."""

    def crowded_machines(self) -> Sequence[Machine]:
        """Those that have several workers."""

    def hold_on(self, worker: str, folder: TrialFolder, request: TrialRequest) -> LiveTrial:
        """As `hold`, on one of several workers, and without waiting; it may be timed whatever its neighbours do."""

    def turn_beside(self, measured: LiveTrial, others: Sequence[LiveTrial], *, are_busy: bool) -> None:
        """A turn of one live process. The others are warm; they are idle all through it, or take turns too."""

    def time_side_by_side(self, workers: Sequence[str]) -> None:
        """The machine of these workers has shown that they do not disturb each other."""

    def take_drift(self) -> list[float]:
        """What workers measured of the untuned model since the last call, each as a multiple of its first reading."""
