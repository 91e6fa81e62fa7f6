"""What each worker of a cluster did for a study, by the records of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measure.measurement import Measurement
from autotune.study.neighbours import Neighbours
from autotune.study.records import TrialRecord


@dataclass(frozen=True)
class WorkerShare:
    """A worker, and the trials that it measured. Which worker a failed or lost trial ran on is not recorded."""

    name: str
    host: str
    device: str
    num_measured: int
    seconds: float
    """Of these trials, by their processes' own count."""
    untuned_s: float
    """Median latency of the untuned model there."""


@dataclass(frozen=True)
class WorkerShares:
    """Of a study that ran on several workers."""

    workers: tuple[WorkerShare, ...]
    num_lost: int
    """Trials without an outcome; their configs were tried again."""
    neighbours: tuple[Neighbours, ...]
    """The last finding about each machine that had several of them."""


def worker_shares(records: Sequence[TrialRecord], neighbours: Sequence[Neighbours] = ()) -> WorkerShares | None:
    """None for a study of one worker, or of this machine alone."""
    measured = [(each, each.outcome) for each in records if isinstance(each.outcome, Measurement)]
    names = sorted({outcome.worker.name for _, outcome in measured if outcome.worker is not None})
    if len(names) < 2:
        return None
    return WorkerShares(
        tuple(
            _share([each for each, outcome in measured if outcome.worker and outcome.worker.name == name])
            for name in names
        ),
        sum(each.state == "lost" for each in records),
        tuple({each.host: each for each in neighbours}.values()),
    )


def _share(records: Sequence[TrialRecord]) -> WorkerShare:
    first = records[0].measurement
    assert first.worker is not None
    return WorkerShare(
        name=first.worker.name,
        host=first.worker.host,
        device=first.environment.device,
        num_measured=len(records),
        seconds=sum(each.child_s or 0.0 for each in records),
        untuned_s=first.worker.untuned_s,
    )
