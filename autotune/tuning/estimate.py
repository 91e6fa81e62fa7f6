"""What the parts of a run take, estimated from what its trials took. Pure.

One estimate for all who ask: the time budget, which stops trying configs in time for the confirmation (`time_budget`),
and the time that a run says it will still take (`TimeLeft`). Nothing else knows what a trial, a block or a confirmation
takes.

A *trial* takes what its child counted. A *block* of a confirmation starts a process for each contestant, which compiles
and checks as its trial did and warms up; then they take their turns. A process that finds the caches of an earlier one
pays `WARM_SHARE` of what its trial's compile and check took: so do all blocks but the first, and the first as well
where the trial's caches were kept. A *confirmation* is expected to end at its first look.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.measure.measurement import Measurement, Stage
from autotune.measure.objective import Objective
from autotune.measure.sampling import SamplingPlan
from autotune.study.budget import BlockPlan, Budget
from autotune.study.records import NoiseFloor, TrialRecord

WARM_SHARE = 0.5
"""Share of the time of compiling and checking that is paid again in a process that finds the caches of an earlier one:
between 0.37 and 0.67 in torch.compile, by config, 0.38 or all of it in MindSpore (docs/decisions/0024-time-left.md)."""
CALLS_OF_CHECK = 4
"""Calls of the check and of the warm-up, after the first one, at the least."""
LARGE_GAIN = 3.0
"""A gain in the search beyond which a slow call is timed once in a block."""


def trial_s(record: TrialRecord) -> float:
    """Seconds that a finished trial took: the child's own count, or from asking to telling where it left none."""
    return _asked_to_told_s(record) if record.child_s is None else record.child_s


def typical_trial_s(records: Sequence[TrialRecord]) -> float:
    """The median over the trials that said something about their config. Raises StatisticsError without any."""
    return statistics.median(trial_s(record) for record in records if record.counts)


def proof_s(ready_s: float, call_s: float, budget: Budget, objective: Objective) -> float:
    """Seconds of a run that can prove a large gain, by the untuned model's first call: until then its process took
    `ready_s`, and the call `call_s`. That trial and that of a config, and a block of both, all of them as slow; what
    compiling takes nobody knows yet."""
    plan, sampling = budget.confirmation.fit_for(objective), budget.sampling
    is_slow = call_s > sampling.slow_call_s
    # A large gain of a slow model is proven by one turn.
    num_rounds = 1 if is_slow else plan.fewest_rounds
    turn_s = call_s if is_slow else call_s + max(sampling.turn_s, sampling.fewest_in_turn * call_s)
    warm_s = ready_s + (1 + CALLS_OF_CHECK) * call_s
    samples_s = max(sampling.fewest_samples * call_s, sampling.min_sampling_s)
    return 2 * (warm_s + samples_s) + 2 * (warm_s + num_rounds * turn_s)


def process_start_s(untuned: TrialRecord, floor: NoiseFloor | None = None) -> float:
    """Seconds until a process of its own can compile, measured where the noise floor was; else what the untuned model's
    trial took to start and to build the model.

    That trial may have been forked from a process that had imported the framework already; so are those of a block.
    What lies between asking for the trial and its outcome is more: that import, a first attempt that was disturbed, and
    the wait for a quieter machine.
    """
    if floor is not None and floor.start_s is not None:
        return floor.start_s
    return setting_up_s(untuned.measurement)


def setting_up_s(measurement: Measurement) -> float:
    """Seconds that a process took to start and to build the model."""
    return measurement.stage_s.get(Stage.START, 0.0) + measurement.stage_s.get(Stage.BUILD, 0.0)


@dataclass(frozen=True)
class BlockTimes:
    """Seconds of the first block of a blocked run, and of each later one."""

    first_s: float
    later_s: float

    def of(self, num_blocks: int) -> float:
        """Seconds of so many."""
        return self.first_s + (num_blocks - 1) * self.later_s


def block_times(
    contestants: Sequence[TrialRecord],
    plan: BlockPlan,
    sampling: SamplingPlan,
    start_s: float,
    *,
    cold: bool,
    has_caches: Callable[[int], bool] = lambda _: False,
    num_at_once: int = 1,
) -> BlockTimes:
    """Blocks of these contestants, each in a process that starts in `start_s`, so many at once. `cold`: every block
    compiles anew; `has_caches` tells by a trial's number whether the first block begins with its caches."""
    turns_s = _turns_s([contestant.measurement for contestant in contestants], plan, sampling)
    first_s, later_s = [], []
    for contestant in contestants:
        measured = contestant.measurement
        # The compile of a trial that began with another's caches was a warm one itself.
        warm = 1.0 if cold or measured.compiled_from is not None else WARM_SHARE
        later_s.append(live_process_s(measured, start_s, warm))
        first_s.append(live_process_s(measured, start_s, warm if has_caches(contestant.number) else 1.0))
    return BlockTimes(_side_by_side_s(first_s, num_at_once) + turns_s, _side_by_side_s(later_s, num_at_once) + turns_s)


def block_plan(contestants: Sequence[TrialRecord], objective: Objective, budget: Budget) -> BlockPlan:
    """What is measured in a block of these, the untuned model's trial first.

    Where a call of the untuned model is slow and all others are many times as fast, there is one turn: what a second
    one could add is nothing beside such a gain.
    """
    plan, untuned = budget.confirmation.fit_for(objective), contestants[0].measurement
    gains = [objective.value(untuned) / objective.value(record.measurement) for record in contestants[1:]]
    is_slow = untuned.steady_call_s > budget.sampling.slow_call_s
    if not is_slow or min(gains, default=0.0) < LARGE_GAIN:
        return plan
    return plan.model_copy(update={"num_rounds": 1, "fewest_rounds": 1})


def confirmation_times(
    contestants: Sequence[TrialRecord],
    floor: NoiseFloor | None,
    objective: Objective,
    budget: Budget,
    *,
    has_caches: Callable[[int], bool] = lambda _: False,
    num_at_once: int = 1,
) -> BlockTimes:
    """Blocks of a confirmation of these, the untuned model's trial first."""
    plan, start_s = block_plan(contestants, objective, budget), process_start_s(contestants[0], floor)
    cold = objective.compiles_cold
    return block_times(
        contestants, plan, budget.sampling, start_s, cold=cold, has_caches=has_caches, num_at_once=num_at_once
    )


def _side_by_side_s(processes_s: Sequence[float], num_at_once: int) -> float:
    """Seconds until all of them are warm."""
    return max(max(processes_s, default=0.0), sum(processes_s) / num_at_once)


def live_process_s(measurement: Measurement, start_s: float, share: float) -> float:
    """Seconds until a live process is warm: start, `share` of what compiling and checking took, and the warm-up."""
    calls_s = measurement.stage_s.get(Stage.COMPILE, measurement.first_call_s) + measurement.stage_s.get(Stage.CHECK, 0)
    return start_s + share * calls_s + sum(measurement.samples.warmup_s)


def _turns_s(contestants: Sequence[Measurement], plan: BlockPlan, sampling: SamplingPlan) -> float:
    """Seconds of all turns of one block."""
    round_s = sum(_turn_s(measured, sampling) for measured in contestants)
    return min(plan.num_rounds * round_s, max(plan.max_sampling_s, plan.fewest_rounds * round_s))


def _turn_s(measured: Measurement, sampling: SamplingPlan) -> float:
    """Seconds of one turn. It has one call more than it counts, unless it is a single slow one."""
    if measured.passes.is_slow(measured.steady_call_s, sampling.slow_call_s):
        return measured.steady_call_s
    return measured.steady_call_s + max(sampling.turn_s, _fewest_s(measured, sampling))


def _fewest_s(measurement: Measurement, sampling: SamplingPlan) -> float:
    """Seconds of the fewest calls of a turn: of some, or of a whole pass of the stream."""
    return measurement.passes.fewest_calls(sampling.fewest_in_turn) * measurement.steady_call_s


def _asked_to_told_s(record: TrialRecord) -> float:
    """The store keeps local times without a zone: between two of them clocks may have been put forward or back."""
    if record.started is None or record.ended is None:
        return 0.0
    started, ended = record.started, record.ended
    if ended < started:  # In the hour that comes twice.
        ended = ended.replace(fold=1)
    return max(ended.timestamp() - started.timestamp(), 0.0)
