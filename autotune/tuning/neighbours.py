"""Whether the workers of one machine may be timed side by side: each machine shows it, once, before they are."""

from __future__ import annotations

import statistics
from contextlib import ExitStack, suppress

from autotune.bench.many_devices import Machine, ManyDevices, WorkerLostError
from autotune.bench.trials import LiveTrial
from autotune.measure.measurement import Measurement
from autotune.study.neighbours import NEIGHBOURS, Neighbours
from autotune.tuning.events import NeighboursFound, NeighboursStarted
from autotune.tuning.lost_workers import until_no_worker_is_lost
from autotune.tuning.session import Session


class NeighbourCheck:
    """Of one run, on several devices. Until a machine has passed it, its workers take turns at being timed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_made = False

    @property
    def is_due(self) -> bool:
        """There are neighbours, and a noise floor to compare with."""
        if self._is_made or self._session.devices is None or self._session.study.noise_floor is None:
            return False
        return bool(self._session.devices.crowded_machines())

    def make(self) -> None:
        """Use what the study knows of these workers; else measure it, and store it."""
        self._is_made = True
        until_no_worker_is_lost(self._make)

    def _make(self) -> None:
        session = self._session
        assert session.devices is not None, "the check is due"
        for machine in session.devices.crowded_machines():
            found = _known(session, machine)
            if found is None:
                session.notify(NeighboursStarted())
                found = _measure(session, session.devices, machine)
                if found is None:
                    continue  # Not shown: they take turns, and the next run looks again.
                NEIGHBOURS.add(session.study, found)
            if not found.disturb:
                session.devices.time_side_by_side(machine.workers)
            session.notify(NeighboursFound(found))


def _known(session: Session, machine: Machine) -> Neighbours | None:
    """The last finding about just these workers."""
    found = NEIGHBOURS.read(session.study)
    return next((e for e in reversed(found) if (e.host, e.workers) == (machine.host, machine.workers)), None)


def _measure(session: Session, devices: ManyDevices, machine: Machine) -> Neighbours | None:
    """None where a process failed. Raises WorkerLostError."""
    num_pairs, floor = session.budget.noise_floor.num_rounds, session.study.noise_floor
    assert floor is not None, "the check is due"
    live: list[LiveTrial] = []
    with ExitStack() as held:
        for number, worker in enumerate(machine.workers):
            live.append(devices.hold_on(worker, *session.untuned_again(f"neighbour-{number:02d}")))
            held.callback(_finish, live[-1])
        for number in range(num_pairs):
            # Each second pair in the other order: a machine that becomes slower would favour one side.
            for are_busy in (False, True) if number % 2 == 0 else (True, False):
                devices.turn_beside(live[0], live[1:], are_busy=are_busy)
    ended = [each.outcome for each in live if isinstance(each.outcome, Measurement)]
    turns = _medians_of_turns(ended[0]) if len(ended) == len(live) else []
    if len(turns) != 2 * num_pairs:
        return None
    pairs = zip(turns[::2], turns[1::2], strict=True)
    return Neighbours(
        host=machine.host,
        workers=machine.workers,
        pairs=tuple((b, a) if number % 2 else (a, b) for number, (a, b) in enumerate(pairs)),
        noise_floor=floor.spread,
    )


def _finish(live: LiveTrial) -> None:
    with suppress(WorkerLostError):  # Its processes died with it.
        live.finish()


def _medians_of_turns(outcome: Measurement) -> list[float]:
    """A turn in all of which the device was throttled is not among them."""
    left = iter(outcome.samples.latency_s)
    return [statistics.median([next(left) for _ in range(num)]) for num in outcome.samples.turns]
