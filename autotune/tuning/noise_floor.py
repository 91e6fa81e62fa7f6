"""How noisy the machine is: the untuned model against itself before the search, and again and again during it."""

from __future__ import annotations

import shutil

from autotune.command_line import asked
from autotune.errors import HarnessError
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.measure.statistics import spread_of_pairs
from autotune.study.records import NoiseFloor
from autotune.tuning.attempts import Attempts
from autotune.tuning.blocks import blocked_run
from autotune.tuning.events import DriftCheckStarted, NoiseFloorMeasured, NoiseFloorStarted
from autotune.tuning.session import Session, harness_error


def measure_noise_floor(session: Session) -> NoiseFloor | None:
    """The untuned model in two live processes, in two blocks, the starting order swapped; None if the time was up.

    What the two differ by is what a single pair of processes of any config shows by chance. Their outputs are compared
    with the reference as well: what differs here is the model's own nondeterminism. Raises HarnessError.
    """
    study = session.study
    untuned = study.manifest.space.untuned()
    folder = study.folder / "noise_floor"
    entries = [("untuned-1", 0, untuned), ("untuned-2", 0, untuned)]
    plan = session.budget.noise_floor
    blocked = blocked_run(session, folder, entries, plan, on_begin=lambda: session.notify(NoiseFloorStarted()))
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


def check_drift(session: Session, attempts: Attempts, after: int) -> None:
    """Time the untuned model again, briefly, after trial `after`. Its process may fail: no reading, no harm."""
    session.notify(DriftCheckStarted())
    outcome = attempts.run(*session.untuned_again(f"sentinel-{after:04d}", is_brief=True))
    if isinstance(outcome, Measurement):
        session.note_drift(outcome.latency.p50, after)


def _failed(failure: Failure) -> HarnessError:
    if failure.reason is not Reason.WRONG_RESULT:
        return harness_error("the untuned model against itself", failure)
    return HarnessError(
        f"the untuned model gives another output in another process, nothing can be compared with it: {failure.error}",
        tip=f"fix the seeds of everything random in it, or raise {asked('tolerance')} if that much is its nature",
    )
