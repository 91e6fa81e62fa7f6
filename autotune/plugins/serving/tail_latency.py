"""The 99th percentile of a study's answer, confirmed: measured in fresh processes, each alone, after the verdict.

The confirmation's own blocks do not serve. They chose the answer, so that its figures there are the luckier ones; they
take some fifty samples in a process, of which the 99th percentile is the slowest; and an untuned model that nothing
came near took part in none.
"""

from __future__ import annotations

from autotune.errors import NoUsableTrialError, marked
from autotune.measure.measurement import Failure, Latency, Measurement, Reason
from autotune.own_folders import absolute, remove
from autotune.plugins.serving.tier_file import NOISY, Tail
from autotune.study.own_files import clear_runs
from autotune.study.records import TrialRecord
from autotune.study.slots import value_slot
from autotune.trial.folder import TrialFolder
from autotune.tuning.attempts import Attempts
from autotune.tuning.session import Session, trial_request

_TAIL = value_slot("tail", Tail)


def confirm_tail(session: Session, answer: TrialRecord) -> Tail:
    """Measure it, or recall it if this answer's was measured before.

    Within the run's time fewer processes may have to do. What they or a noisy machine gave serves for once, and is
    measured again when the study goes on. Raises NoUsableTrialError where one fails, or there is no time
    for a single one.
    """
    study = session.study
    with study.writing():
        earlier = _TAIL.read(study)
        if earlier is not None and earlier.trial == answer.number:
            return earlier
        measured = _measure(session, answer)
        tail = _tail_of(answer.number, [process.samples.latency_s for process in measured])
        if len(measured) == session.budget.tail.num_processes and tail.spread <= NOISY:
            _TAIL.write(study, tail)
        return tail


def _measure(session: Session, answer: TrialRecord) -> list[Measurement]:
    """One process after the other; the first one compiles, the others have its caches."""
    folder = session.study.folder / _TAIL.name
    clear_runs(folder)
    measured: list[Measurement] = []
    for number in range(session.budget.tail.num_processes):
        if session.deadline.left_s() <= 0:
            break
        outcome = _run(session, answer, TrialFolder(absolute(folder / f"{number + 1}")), is_first=number == 0)
        if isinstance(outcome, Measurement):
            measured.append(outcome)
        elif outcome.reason is not Reason.OUT_OF_TIME:
            raise _not_confirmed(outcome)
    if not measured:
        raise NoUsableTrialError("no time is left to confirm the 99th percentile", tip=f"give more {marked('budget')}")
    remove(folder / "cache")
    return measured


def _run(session: Session, answer: TrialRecord, folder: TrialFolder, *, is_first: bool) -> Measurement | Failure:
    request = trial_request(session.study, answer.number, answer.config, folder, session.budget)
    sampling = session.budget.tail.sampling(session.budget.sampling)
    once = request.cached_in(folder.path.parent / "cache", cold=is_first).sampled_by(sampling)
    return Attempts(session).once(folder, once)


def _not_confirmed(failure: Failure) -> NoUsableTrialError:
    return NoUsableTrialError(
        f"the 99th percentile could not be confirmed ({failure.reason} at {failure.stage}): {failure.error}",
        tip=f"full log: {failure.evidence}" if failure.evidence else None,
    )


def _tail_of(trial: int, processes: list[tuple[float, ...]]) -> Tail:
    samples = tuple(sample for process in processes for sample in process)
    together = Latency.of(samples)
    return Tail(
        trial=trial,
        num_samples=len(samples),
        p50_s=together.p50,
        p99_s=together.p99,
        process_p99_s=tuple(Latency.of(process).p99 for process in processes),
    )
