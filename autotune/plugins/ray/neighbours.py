"""Whether the workers of one machine may be timed side by side: each machine shows it, once, before they are."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from autotune.bench.bench import Lost, Run
from autotune.bench.workers import NEIGHBOURS, Neighbours, NeighboursFound, NeighboursStarted
from autotune.measure.measurement import Measurement
from autotune.plugins.ray.members import Job, Member, Members
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest


class Crowd(Protocol):
    """A bench with several workers on a machine."""

    workers: Members

    def hold_on(self, worker: str, folder: TrialFolder, request: TrialRequest) -> Job:
        """Start a live process on a worker."""

    def turn_beside(self, measured: Job, others: Sequence[Job], *, are_busy: bool) -> None:
        """A turn of one live process, while the others are idle or take turns too."""

    def time_side_by_side(self, workers: Sequence[str]) -> None:
        """They do not disturb each other."""


class NeighbourCheck:
    """The check of one run. Until a machine has passed it, its workers take turns at being timed."""

    def __init__(self, crowd: Crowd, run: Run, has_time: Callable[[], bool]) -> None:
        self._crowd = crowd
        self._run = run
        self._has_time = has_time
        self._is_made = False

    def make(self) -> None:
        """Use what the study knows of these workers; else measure it, and store it. That waits until there is a noise
        floor to compare with."""
        if self._is_made or self._run.study.noise_floor is None:
            return
        if self._crowd.workers.sharing() and self._has_time():
            self._is_made = True
            while not all(self._is_settled(group) for group in self._crowd.workers.sharing()):
                continue  # A worker was lost: all again, with those that are there now.

    def _is_settled(self, group: Sequence[Member]) -> bool:
        """Look at the workers of one machine. False: one of them was lost meanwhile."""
        host, workers = group[0].link.facts.host, tuple(member.name for member in group)
        known = reversed(NEIGHBOURS.read(self._run.study))
        found = next((finding for finding in known if (finding.host, finding.workers) == (host, workers)), None)
        if found is None:
            self._run.notify(NeighboursStarted())
            live = self._measure(workers)
            if any(isinstance(job.outcome, Lost) for job in live):
                return False
            pairs = self._pairs(live)
            if not pairs:
                return True  # Not shown: they take turns, and the next run looks again.
            floor = self._run.study.noise_floor
            assert floor is not None, "it was looked at"
            found = Neighbours(host=host, workers=workers, pairs=pairs, noise_floor=floor.spread)
            NEIGHBOURS.write(self._run.study, [*NEIGHBOURS.read(self._run.study), found])
        if not found.disturb:
            self._crowd.time_side_by_side(workers)
        self._run.notify(NeighboursFound(found))
        return True

    @property
    def _num_pairs(self) -> int:
        return self._run.budget.noise_floor.num_rounds

    def _measure(self, workers: Sequence[str]) -> list[Job]:
        """The untuned model on each of them, after all turns; the first one is timed."""
        live: list[Job] = []
        with ExitStack() as held:
            for number, worker in enumerate(workers):
                live.append(self._crowd.hold_on(worker, *self._run.untuned_again(f"neighbour-{number:02d}")))
                held.callback(live[-1].finish)
            for number in range(self._num_pairs):
                # Each second pair in the other order: a machine that becomes slower would favour one side.
                for are_busy in (False, True) if number % 2 == 0 else (True, False):
                    self._crowd.turn_beside(live[0], live[1:], are_busy=are_busy)
        return live

    def _pairs(self, live: Sequence[Job]) -> tuple[tuple[float, float], ...]:
        """Seconds alone, and beside the others; empty where a process failed."""
        ended = [job.outcome for job in live if isinstance(job.outcome, Measurement)]
        turns = _medians_of_turns(ended[0]) if len(ended) == len(live) else []
        if len(turns) != 2 * self._num_pairs:
            return ()
        pairs = zip(turns[::2], turns[1::2], strict=True)
        return tuple((b, a) if number % 2 else (a, b) for number, (a, b) in enumerate(pairs))


def _medians_of_turns(outcome: Measurement) -> list[float]:
    """A turn in all of which the device was throttled is not among them."""
    left = iter(outcome.samples.latency_s)
    return [statistics.median([next(left) for _ in range(num)]) for num in outcome.samples.turns]
