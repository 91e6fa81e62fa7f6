"""The steps of `device.py`, by worth: each is finished within a few minutes, and its record is kept for good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.workload.workload import Device
from benchmarks.on_device import jobs, machine, paths, studies, truth
from benchmarks.on_device.records import Done, Result, StudySeen
from benchmarks.on_device.session import Session

Before = Mapping[str, Done]
"""What earlier steps left."""
PIECES = ("machine", "paths", "truth", "studies")


class NotYetError(Exception):
    """A step needs what another one leaves."""


@dataclass(frozen=True)
class Step:
    """Something to run once on a device. `expected_s` is what it usually takes at most: it is not begun with less."""

    name: str
    piece: str
    expected_s: float
    run: Callable[[Session, Before], Result]


def steps_on(device: Device, *, small: bool) -> list[Step]:
    """By worth: what the device is; studies, each with its promise in a plain script; the known answers; whether each
    path works last."""
    models = (_of_model(each, small=small) for each in studies.MODELS_BY_WORTH)
    truths = (_of_truth(each, small=small) for each in truth.TRUTHS)
    tried = [*map(_path, paths.paths_on(device)), *map(_path, jobs.jobs_on(device))]
    return [_machine(), *(step for model in models for step in model), *truths, *tried]


def _machine() -> Step:
    return Step("machine", "machine", 20.0, lambda session, _: machine.look(session))


def _path(path: paths.ExecutionPath | jobs.JobPath) -> Step:
    return Step(f"path: {path.name}", "paths", 40.0, lambda session, _: path.run(session))


def _of_truth(known: truth.Truth, *, small: bool) -> Step:
    return Step(f"truth: {known.name}", "truth", 90.0 if small else 150.0, lambda session, _: known.run(session))


def _of_model(model: studies.Model, *, small: bool) -> list[Step]:
    study = f"study: {model.name}"

    def run_plainly(session: Session, before: Before) -> Result:
        found = before[study].result if study in before else None
        if not isinstance(found, StudySeen):
            raise NotYetError(f"{study!r} has no result yet")
        return model.run_plainly(session, found)

    return [
        Step(study, "studies", 75.0 if small else 180.0, lambda session, _: model.tune(session)),
        Step(f"plain: {model.name}", "studies", 60.0 if small else 120.0, run_plainly),
    ]
