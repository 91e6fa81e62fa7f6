"""Configs as trials like any other: a process of its own with empty caches, its outputs checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.trial.runner.runner import Runner
from autotune.workload.workload import Workload

UNTUNED = "untuned"


def cold_request(
    workload: Workload,
    config: Config,
    trial: TrialFolder,
    reference: Path,
    limits: Limits,
    *,
    untuned: bool,
    tolerance: float = 1e-3,
) -> TrialRequest:
    """What is asked of the trial; the untuned one writes the reference that all others are checked against."""
    return TrialRequest(
        number=0,
        workload=workload,
        config=config,
        untuned=untuned,
        tolerance=tolerance,
        reference=str(reference),
        cache=str(trial.path / "cache"),
        cold=True,
        limits=limits,
    )


def in_rounds(
    workload: Workload, configs: Mapping[str, Config], num_rounds: int, folder: Path, limits: Limits
) -> Iterator[tuple[str, Measurement, Path]]:
    """Each config once a round, the one named `UNTUNED` first of all: its name, what was measured, and its cache.

    The cache is there until the next one is asked for. Raises RuntimeError where a trial failed: there is nothing to
    compare then.
    """
    with Runner(workload.framework, {}, preload=True, log=folder / "log.txt") as runner:
        for _ in range(num_rounds):
            for name, config in configs.items():
                trial = TrialFolder(folder / "trial")
                untuned = name == UNTUNED
                request = cold_request(workload, config, trial, folder / "reference.npz", limits, untuned=untuned)
                outcome = runner.run(trial, request)
                if isinstance(outcome, Failure):
                    raise RuntimeError(f"{name}: {outcome.reason}: {outcome.error}; see {outcome.evidence}")
                yield name, outcome, Path(request.cache)
                trial.drop_leftovers()
