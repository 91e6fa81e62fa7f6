"""How noisy the machine is: the untuned model against itself before the search, and again and again during it."""

from __future__ import annotations

import shutil

from autotune.bench.many_devices import ManyDevices
from autotune.command_line import asked
from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.measure.statistics import spread_of_pairs
from autotune.study.records import DriftCheck, NoiseFloor
from autotune.study.study import Study
from autotune.tuning.busy_machine import BusyMachine
from autotune.tuning.events import DriftChecked, DriftCheckStarted, NoiseFloorMeasured, NoiseFloorStarted
from autotune.tuning.session import Session, harness_error


def measure_noise_floor(session: Session) -> NoiseFloor | None:
    """The untuned model in two live processes, in two blocks, the starting order swapped; None if the time was up.

    What the two differ by is what a single pair of processes of any config shows by chance. Their outputs are compared
    with the reference as well: what differs here is the model's own nondeterminism. Raises HarnessError.
    """
    session.notify(NoiseFloorStarted())
    study = session.study
    untuned = study.manifest.space.untuned()
    folder = study.folder / "noise_floor"
    entries = [("untuned-1", 0, untuned), ("untuned-2", 0, untuned)]
    blocked = session.blocked_run(folder, entries, session.budget.noise_floor, on_block=lambda _: None)
    try:
        comparison = blocked.run(is_clear=lambda _: True)
    finally:
        shutil.rmtree(folder / "cache", ignore_errors=True)
    wrong = [failure for _, failure in blocked.mishaps if failure.reason is Reason.WRONG_RESULT]
    if failures := [*wrong, *blocked.failures.values()]:  # A process that is right does not undo one that was wrong.
        raise _failed(failures[0])
    if comparison is None:
        return None
    pairs = tuple((row[0], row[1]) for row in comparison.values)
    processes = [each for block in blocked.blocks for each in block.values()]
    errors = [each.relative_error for each in processes]
    floor = NoiseFloor(
        pairs=pairs,
        spread=spread_of_pairs(pairs),
        relative_error=max((error for error in errors if error is not None), default=0.0),
        start_s=max(each.stage_s.get(Stage.START, 0.0) + each.stage_s.get(Stage.BUILD, 0.0) for each in processes),
    )
    session.notify(NoiseFloorMeasured(floor))
    return floor


def check_drift(session: Session, quiet: BusyMachine, after: int, first_s: float) -> DriftCheck | None:
    """Time the untuned model again, briefly, after trial `after`. None if its process failed: no reading, no harm."""
    session.notify(DriftCheckStarted())
    folder, request = session.untuned_again(f"sentinel-{after:04d}")
    outcome = quiet.attempt(folder, request.sampled_by(session.budget.sentinel))
    if not isinstance(outcome, Measurement):
        return None
    sentinel = DriftCheck(after=after, latency_s=outcome.latency.p50)
    session.notify(DriftChecked(sentinel, first_s))
    return sentinel


def note_drift(session: Session, devices: ManyDevices, after: int, first_s: float) -> None:
    """Store what workers measured of the untuned model between their trials."""
    for change in devices.take_drift():
        check = DriftCheck(after=after, latency_s=first_s * change)
        Study.drift_checks.add(session.study, check)
        session.notify(DriftChecked(check, first_s))


def _failed(failure: Failure) -> HarnessError:
    if failure.reason is not Reason.WRONG_RESULT:
        return harness_error("the untuned model against itself", failure)
    return HarnessError(
        f"the untuned model gives another output in another process, nothing can be compared with it: {failure.error}",
        tip=f"fix the seeds of everything random in it, or raise {asked('tolerance')} if that much is its nature",
    )
