"""What each worker of a cluster did for a study, by the records of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.bench.workers import Neighbours
from autotune.measure.measurement import Measurement
from autotune.study.records import TrialRecord


@dataclass(frozen=True)
class WorkerShare:
    """A worker, and the trials that it measured. Which worker a failed trial ran on is not recorded."""

    name: str
    host: str
    device: str
    num_measured: int
    seconds: float
    """Of these trials, by their processes' own count."""
    untuned_s: float | None
    """Median latency of the untuned model there. None, and no host and device, where no trial of it was measured."""
    num_lost: int
    """Trials that ended with it, in this release's records."""


@dataclass(frozen=True)
class WorkerShares:
    """Of a study that ran on several workers."""

    workers: tuple[WorkerShare, ...]
    num_lost: int
    """Trials without an outcome; their configs were tried again."""
    neighbours: tuple[Neighbours, ...]
    """The last finding about each machine that had several of them."""


def worker_shares(
    records: Sequence[TrialRecord], neighbours: Sequence[Neighbours] = (), lost_trials: Sequence[str] = ()
) -> WorkerShares | None:
    """`lost_trials`: the worker of each. None for a study of one worker, or of this machine alone."""
    measured = [(each, each.outcome) for each in records if isinstance(each.outcome, Measurement)]
    by_name: dict[str, list[TrialRecord]] = {}
    for record, outcome in measured:
        if outcome.worker is not None:
            by_name.setdefault(outcome.worker.name, []).append(record)
    if len(by_name) < 2:
        return None
    return WorkerShares(
        tuple(_share(name, by_name.get(name, []), lost_trials) for name in sorted({*by_name, *lost_trials})),
        sum(each.state == "lost" for each in records),
        tuple({each.host: each for each in neighbours}.values()),
    )


def _share(name: str, records: Sequence[TrialRecord], lost_trials: Sequence[str]) -> WorkerShare:
    first = records[0].measurement if records else None
    worker = None if first is None else first.worker
    return WorkerShare(
        name=name,
        host="" if worker is None else worker.host,
        device="" if first is None else first.environment.device,
        num_measured=len(records),
        seconds=sum(each.child_s or 0.0 for each in records),
        untuned_s=None if worker is None else worker.untuned_s,
        num_lost=lost_trials.count(name),
    )
