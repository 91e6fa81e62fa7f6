"""What trials and confirmations will take, estimated from what trials took. Pure.

The figures need not be exact: they decide when a run with a time budget stops trying configs and begins to confirm.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from autotune.measure.measurement import Measurement, Stage
from autotune.measure.sampling import SamplingPlan
from autotune.study.budget import BlockPlan
from autotune.study.records import NoiseFloor, TrialRecord

WARM_SHARE = 0.5
"""Of the first call's and the check's time in a process that finds the caches of an earlier one, where a time budget
rests on it: between 0.2 and 0.6 in torch.compile, by config (`warm_compile`)."""


def trial_s(record: TrialRecord) -> float:
    """Seconds that a finished trial took: the child's own count, or from asking to telling where it left none."""
    return _asked_to_told_s(record) if record.child_s is None else record.child_s


def typical_trial_s(records: Sequence[TrialRecord]) -> float:
    """The median over the trials that said something about their config. Raises StatisticsError without any."""
    return statistics.median(trial_s(each) for each in records if each.counts)


def process_start_s(untuned: TrialRecord, floor: NoiseFloor | None) -> float:
    """The same as `fresh_start_s`, measured where the noise floor was."""
    return floor.start_s if floor is not None and floor.start_s is not None else fresh_start_s(untuned)


def fresh_start_s(untuned: TrialRecord) -> float:
    """Seconds until a process of its own can compile: all that the untuned model's trial took but for its calls.

    The trial may have been forked from a process that had imported the framework already; it was the first one, so that
    the importing lies between asking and telling all the same.
    """
    calls_s = sum(untuned.measurement.stage_s.get(stage, 0.0) for stage in (Stage.COMPILE, Stage.CHECK, Stage.RUN))
    return max(_asked_to_told_s(untuned) - calls_s, _setting_up_s(untuned.measurement))


def blocked_run_s(
    contestants: Sequence[Measurement], plan: BlockPlan, sampling: SamplingPlan, start_s: float, *, cold: bool
) -> float:
    """Seconds of a blocked run that ends at its first look. `cold`: every block compiles anew, not the first alone."""
    shares = [(1.0, 1.0 if cold else WARM_SHARE)] * len(contestants)
    first_s, later_s = block_times_s(contestants, plan, sampling, start_s, shares)
    return first_s + (plan.first_look - 1) * later_s


def block_times_s(
    contestants: Sequence[Measurement],
    plan: BlockPlan,
    sampling: SamplingPlan,
    start_s: float,
    shares: Sequence[tuple[float, float]],
) -> tuple[float, float]:
    """Seconds of the first block, and of each later one. `shares`: of its compile, what each contestant pays in the
    first and in a later block."""
    turns_s = sampling_s(contestants, plan, sampling)
    pairs = list(zip(contestants, shares, strict=True))
    first_s = sum(live_process_s(each, start_s, first) for each, (first, _) in pairs)
    later_s = sum(live_process_s(each, start_s, later) for each, (_, later) in pairs)
    return first_s + turns_s, later_s + turns_s


def live_process_s(measurement: Measurement, start_s: float, share: float) -> float:
    """Seconds until a live process is warm: start, `share` of what compiling and checking took, and the warm-up."""
    calls_s = measurement.stage_s.get(Stage.COMPILE, measurement.first_call_s) + measurement.stage_s.get(Stage.CHECK, 0)
    return start_s + share * calls_s + sum(measurement.samples.warmup_s)


def sampling_s(contestants: Sequence[Measurement], plan: BlockPlan, sampling: SamplingPlan) -> float:
    """Seconds of all turns of one block. A turn has one call more than it counts."""
    round_s = sum(each.steady_call_s + max(sampling.turn_s, _fewest_s(each, sampling)) for each in contestants)
    return min(plan.num_rounds * round_s, max(plan.max_sampling_s, plan.fewest_rounds * round_s))


def _fewest_s(measurement: Measurement, sampling: SamplingPlan) -> float:
    """Seconds of the fewest calls of a turn: of some, or of a whole pass of the stream."""
    num_calls = sampling.fewest_in_turn if measurement.replay is None else len(measurement.replay.stream)
    return num_calls * measurement.steady_call_s


def _asked_to_told_s(record: TrialRecord) -> float:
    """The store keeps local times without a zone: between two of them clocks may have been put forward or back."""
    if record.started is None or record.ended is None:
        return 0.0
    started, ended = record.started, record.ended
    if ended < started:  # In the hour that comes twice.
        ended = ended.replace(fold=1)
    return max(ended.timestamp() - started.timestamp(), 0.0)


def _setting_up_s(measurement: Measurement) -> float:
    return measurement.stage_s.get(Stage.START, 0.0) + measurement.stage_s.get(Stage.BUILD, 0.0)
