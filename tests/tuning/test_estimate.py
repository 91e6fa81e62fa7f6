"""What trials and confirmations will take, from what trials took."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from autotune.measure.measurement import Failure, Replay, Samples
from autotune.measure.sampling import SamplingPlan
from autotune.study.budget import BlockPlan
from autotune.study.records import NoiseFloor
from autotune.tuning.estimate import (
    WARM_SHARE,
    block_times,
    live_process_s,
    process_start_s,
    trial_s,
    typical_trial_s,
)
from tests.conftest import trial_record

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def spent(measurement):
    """A measurement of a call of 10 ms with so many seconds in each stage, and half a second of warm-up."""

    def make(**stage_s):
        samples = Samples(latency_s=(0.01,) * 3, warmup_s=(0.25, 0.25), steady=True, ended_by="time")
        return measurement.model_copy(update={"samples": samples, "stage_s": stage_s, "first_call_s": 7.0})

    return make


def record(outcome, took_s=0.0):
    return trial_record(outcome, started=BEGAN, ended=BEGAN + timedelta(seconds=took_s))


def failure(reason="crash"):
    return Failure(reason=reason, stage="compile", error="gone")


def test_a_trial_takes_what_its_child_counted(spent):
    """All stages together; a child that left no count took what lies between asking and telling."""
    assert trial_s(record(spent(start=1, build=2, compile=30, check=3, run=4), took_s=99)) == 40
    assert trial_s(record(failure(), took_s=12)) == 12
    assert trial_s(record(spent(), took_s=12)) == 12


@pytest.mark.parametrize(
    ("started", "ended", "seconds"),
    [
        (datetime(2026, 3, 29, 1, 59, 50), datetime(2026, 3, 29, 3, 0, 10), 20),
        (datetime(2026, 10, 25, 2, 59, 50), datetime(2026, 10, 25, 2, 0, 10), 20),
    ],
    ids=["forward", "back"],
)
def test_clocks_that_are_put_forward_or_back_lengthen_no_trial(monkeypatch, spent, started, ended, seconds):
    """The store keeps local times: a start of an hour would let no confirmation fit any more."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        over = replace(record(failure()), started=started, ended=ended)
        assert trial_s(over) == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_typical_trial_is_the_median(spent):
    """Failures that say something about their config count as well; one that was cut off does not."""
    records = [record(spent(run=each)) for each in (10, 20, 90)]
    assert typical_trial_s(records) == 20
    assert typical_trial_s([*records, record(failure(), took_s=5)]) == 15
    assert typical_trial_s([*records, record(failure("out_of_time"), took_s=5)]) == 20


def test_a_process_starts_and_builds_the_model(spent):
    """Neither an attempt that was repeated nor a wait for a quiet machine makes the next process slower."""
    untuned = spent(start=0.1, build=1, compile=2, check=1, run=4)
    for took_s in (0, 9, 60):
        assert process_start_s(record(untuned, took_s=took_s)) == pytest.approx(1.1)
    floor = NoiseFloor(pairs=(), spread=0.1, relative_error=0.0, start_s=4.0)
    assert process_start_s(record(untuned, took_s=17), floor) == 4, "measured where the noise floor was"


def test_a_live_process_starts_compiles_checks_and_warms_up(spent):
    """Compiling and checking are cheaper with the caches of an earlier process."""
    measured = spent(start=0.1, compile=20, check=4, run=9)
    assert live_process_s(measured, 3, 1.0) == pytest.approx(3 + 24 + 0.5)
    assert live_process_s(measured, 3, 0.5) == pytest.approx(3 + 12 + 0.5)


PLAN = BlockPlan(num_rounds=8, fewest_rounds=3, max_sampling_s=15, first_look=4)


@pytest.mark.parametrize(
    ("plan", "sampling", "expected"),
    [
        (PLAN, SamplingPlan(turn_s=0.1), 8 * 2 * 0.11),
        (PLAN, SamplingPlan(turn_s=2), 15),
        (PLAN, SamplingPlan(turn_s=5), 3 * 2 * 5.01),
        (PLAN, SamplingPlan(turn_s=0.001, fewest_in_turn=4), 8 * 2 * 0.05),
    ],
)
def test_turns_take_their_rounds_within_the_block_s_time(spent, plan, sampling, expected):
    """Up to the block's time, but never fewer than the fewest rounds; each turn has one call that is not counted."""
    assert turns_s([spent(), spent()], plan, sampling) == pytest.approx(expected)


def test_a_turn_under_traffic_is_a_whole_pass(spent):
    """However short a turn is meant to be: a pass of four calls of 10 ms, and one that is not counted."""
    replay = Replay(sizes=({"seq": 1},), stream=(0,) * 4, cold_s=(1.0,) * 4, compilations=None)
    measured = spent().model_copy(
        update={"replay": replay, "samples": Samples(latency_s=(0.01,) * 8, steady=True, ended_by="time")}
    )
    sampling = SamplingPlan(turn_s=0.001, fewest_in_turn=2)
    assert turns_s([measured], PLAN, sampling) == pytest.approx(8 * (0.04 + 0.01))


def test_a_contest_compiles_cold_once_or_in_each_block(spent):
    """Four blocks up to the first look; where compiling is what is compared, every one of them compiles anew."""
    pair = [record(spent(compile=0.0)), record(spent(compile=20.0))]
    without_compiling_s = 2 * 3.5 + turns_s([spent(), spent()], PLAN, SamplingPlan())
    usual = block_times(pair, PLAN, SamplingPlan(), 3, cold=False)
    assert usual.first_s == pytest.approx(without_compiling_s + 20)
    assert usual.later_s == pytest.approx(without_compiling_s + WARM_SHARE * 20)
    assert usual.of(4) == usual.first_s + 3 * usual.later_s
    cold = block_times(pair, PLAN, SamplingPlan(), 3, cold=True)
    assert cold.of(4) == pytest.approx(4 * usual.first_s)


def test_what_has_its_caches_is_warm_from_the_first_block_on(spent):
    """A confirmation begins with copies of those that were kept; a trial that began with another one's is as short."""
    cold = spent(compile=20.0)
    warm = cold.model_copy(update={"compiled_from": 1})
    for measured, is_kept in ((cold, True), (warm, False)):
        trials = [record(measured)]
        times = block_times(trials, PLAN, SamplingPlan(), 3, cold=False, has_caches=lambda _, kept=is_kept: kept)
        assert times.first_s == times.later_s


def turns_s(measurements, plan, sampling):
    """Seconds of a block whose processes are warm at once."""
    still = [m.model_copy(update={"stage_s": {"compile": 0.0}}) for m in measurements]
    still = [m.model_copy(update={"samples": m.samples.model_copy(update={"warmup_s": ()})}) for m in still]
    return block_times([record(m) for m in still], plan, sampling, 0, cold=True).first_s
