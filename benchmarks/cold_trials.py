"""Configs as trials like any other: a process of its own with empty caches, its outputs checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path

from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import SetupError
from autotune.measure.measurement import Failure, Measurement
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Workload

UNTUNED = "untuned"


def in_rounds(
    workload: Workload,
    configs: Mapping[str, Config],
    num_rounds: int,
    folder: Path,
    limits: Limits,
    *,
    tolerance: float = 1e-3,
) -> Iterator[tuple[str, Measurement, Path]]:
    """Each config once a round: its name, what was measured, and its cache, which is there until the next is asked for.

    The one named `UNTUNED` comes first: it writes the reference that all others are checked against. Raises
    SetupError where a trial failed, since there is nothing to compare then.
    """
    trial = TrialFolder(folder / "trial")
    with LocalBench({}, preload=True, log=folder / "log.txt") as runner:
        for name, config in chain.from_iterable(repeat(configs.items(), num_rounds)):
            request = TrialRequest(
                number=0,
                workload=workload,
                config=config,
                untuned=name == UNTUNED,
                tolerance=tolerance,
                reference=str(folder / "reference.npz"),
                cache=str(trial.path / "cache"),
                cold=True,
                limits=limits,
            )
            outcome = runner.run(trial, request)
            if isinstance(outcome, Failure):
                raise SetupError(f"{name}: {outcome.reason}: {outcome.error}; see {outcome.evidence}")
            yield name, outcome, Path(request.cache)
            trial.drop_leftovers()
