"""Why processes of one config differ: each cause is named by what was recorded, and no other."""

from __future__ import annotations

import random

import pytest

from autotune.measure.measurement import Usage
from autotune.measure.sampling import Reading
from autotune.measure.scatter import (
    Cause,
    ProcessState,
    TimedTogether,
    given_back_s,
    gives_back_more,
    scatter_of,
    state_of,
    why_slower,
    widest,
)

FAULTS = [(27.1, 0), (27.2, 990), (27.8, 0), (31.1, 992), (34.4, 4960), (40.6, 0), (45.4, 10000), (49.3, 16700),
          (58.7, 18848), (59.0, 18112)]  # fmt: skip
"""Milliseconds and page faults a call of ten processes of one model of elementwise operations."""


def state(ms, *, faults=0.0, others=0.0, stolen=0.0):
    return ProcessState(
        latency_s=ms / 1e3, page_faults=faults, switches=5, cores=1, others=others, stolen=stolen
    )  # fmt: skip


def test_faults_are_named_by_their_price():
    """What they cost explains 0.8 of the scatter; the rest is not the faults'."""
    scatter = scatter_of([state(ms, faults=faults) for ms, faults in FAULTS])
    assert (scatter.cause, scatter.most) == (Cause.FAULTS, 18848)
    assert 0.75 < scatter.share < 0.9
    assert (scatter.low_s, scatter.high_s, scatter.num_processes) == (pytest.approx(0.0271), 0.059, 10)


@pytest.mark.parametrize(
    ("slow_ms", "faults", "cause"), [(59, 18848, Cause.FAULTS), (59, 5000, None), (28, 18848, None)]
)
def test_two_processes_are_enough_where_faults_come_to_the_difference(slow_ms, faults, cause):
    """A fault costs some microsecond; and what does not differ needs no cause."""
    scatter = scatter_of([state(27), state(slow_ms, faults=faults)])
    assert (scatter and scatter.cause) == cause


@pytest.mark.parametrize(
    ("ms", "faults", "is_so"),
    [(37.7, 14000, True), (37.7, 3000, False), (18.2, 1500, False), (15.0, 14000, False), (37.7, None, False)],
)
def test_a_process_that_gives_back_more(ms, faults, is_so):
    """It is visibly slower, and its page faults come to half of that."""
    assert gives_back_more(Reading(ms / 1e3, faults), Reading(0.017, 0)) is is_so


@pytest.mark.parametrize("cause", ["others", "stolen"])
def test_what_kept_the_cores_is_named(cause):
    """Half a core that is lacking makes the calls longer; page faults that are a few do not."""
    states = [state(10 * (1 + share), faults=number % 3, **{cause: share}) for number, share in enumerate(
        [0.0, 0.02, 0.5, 0.1, 0.3, 0.7]
    )]  # fmt: skip
    scatter = scatter_of(states)
    assert scatter.cause == {"others": Cause.OTHERS, "stolen": Cause.STOLEN}[cause]
    assert scatter.share > 0.95


@pytest.mark.parametrize(("others", "stolen", "cause"), [(0.13, 0.36, Cause.STOLEN), (0.5, 0.1, Cause.OTHERS)])
def test_of_two_that_took_cores_the_larger_is_named(others, stolen, cause):
    """They come and go together: other programs use what a quota keeps from the process. The smaller one fits a little
    better, by chance."""
    amounts = {"others": others, "stolen": stolen}
    larger = max(amounts, key=lambda each: amounts[each])
    states = [
        state(10 * (1 + is_hit), **{each: is_hit * amounts[each] * (fit if each == larger else 1) for each in amounts})
        for is_hit, fit in [(0, 1), (1, 1), (0, 1), (1, 0.8), (0, 1), (1, 1)]
    ]
    assert scatter_of(states).cause is cause


@pytest.mark.parametrize("num", [3, 4, 6, 10])
def test_what_is_unrelated_is_hardly_ever_named(num):
    """A few faults, programs and stolen time that have nothing to do with the latencies: less than one study in 20."""
    chance, named = random.Random(num), 0
    for _ in range(400):
        states = [
            state(
                10 * chance.lognormvariate(0, 0.15),
                faults=chance.choice([0, 100, 400]),
                others=chance.uniform(0, 0.4),
                stolen=chance.uniform(0, 0.2),
            )
            for _ in range(num)
        ]
        scatter = scatter_of(states)
        named += scatter is not None and scatter.cause is not None
    assert named < 20


def test_what_is_not_known_is_not_named():
    """A system that does not tell what others used."""
    states = [state(10 + number, others=None if number else 0.0) for number in range(6)]
    assert scatter_of(states).cause is None


def test_other_programs_that_were_there_are_told_though_they_explain_nothing():
    """They used as much beside the fast process as beside the slow one."""
    scatter = scatter_of([state(10, others=1.7), state(14, others=1.8)])
    assert scatter.cause is None
    assert scatter.is_beside_others
    assert not scatter_of([state(10), state(14)]).is_beside_others


def test_the_config_that_differs_most_stands_for_all():
    """Configs whose processes are alike say nothing."""
    assert widest({0: [state(10), state(10.2)], 1: [state(5)]}) is None
    number, scatter = widest({0: [state(10), state(12)], 1: [state(5), state(9)]})
    assert (number, scatter.high_s) == (1, 0.009)


UNET = [((16.83, 10.95), 16.72), ((12.61, 8.08), 12.69)]
SEGFORMER = [((6.06, 3.26), 5.93), ((6.20, 3.52), 6.15), ((5.92, 3.11), 5.81), ((4.35, 2.32), 4.29)]
"""Milliseconds of the untuned model, of a config and of the process that lives through all blocks, block by block, as
they were measured on a machine that was slower in some of them."""


def told_of(rows, *, trials=(), **told):
    """What is told of such blocks. `trials`: milliseconds of the processes of the search, by config; `told`: what the
    processes of each block recorded."""
    blocks = [
        TimedTogether({0: one / 1e3, 1: other / 1e3}, control and control / 1e3) for (one, other), control in rows
    ]
    states = {
        config: [*(state(ms) for ms in trials[config : config + 1])]
        + [
            state(row[config], **{name: amounts[at] for name, amounts in told.items()})
            for at, (row, _) in enumerate(rows)
        ]
        for config in (0, 1)
    }
    return widest(states, blocks)


@pytest.mark.parametrize(
    ("rows", "trials", "low_ms", "high_ms"),
    [(UNET, (12.79, 7.94), 8.08, 10.95), (SEGFORMER, (6.59, 3.26), 2.32, 3.52), (SEGFORMER, (6.6, 2.1), 2.32, 3.52)],
)
def test_a_machine_that_was_slower_in_some_blocks(rows, trials, low_ms, high_ms):
    """All processes went with it, so that no ratio did. What is told is what blocks differ by, though a process of the
    search may lie beyond."""
    trial, scatter = told_of(rows, trials=trials)
    assert (trial, scatter.cause, scatter.num_processes) == (1, Cause.MACHINE, len(rows))
    assert (scatter.low_s, scatter.high_s) == (pytest.approx(low_ms / 1e3), pytest.approx(high_ms / 1e3))
    assert scatter.share > 0.95


def test_a_process_of_the_search_that_differs_by_more_is_not_the_blocks_matter():
    """Half of the scatter at least has to be what blocks differ by."""
    trial, scatter = told_of(SEGFORMER, trials=(6.6, 1.0))
    assert (trial, scatter.cause, scatter.low_s) == (1, None, 0.001)


@pytest.mark.parametrize(
    "rows",
    [
        [((16.8, 8.0), 12.7), ((12.6, 8.1), 12.6), ((12.8, 8.0), 12.7)],
        [((12.6, 11.0), 12.7), ((12.6, 8.1), 12.6), ((12.8, 8.0), 12.7)],
        [((12.6, 8.0), 16.8), ((12.6, 8.1), 12.6), ((12.8, 8.0), 12.7)],
        [((16.8, 8.0), 16.7), ((12.6, 8.1), 12.6), ((12.8, 8.0), 12.7)],
        [((12.6, 11.0), 16.7), ((12.6, 8.1), 12.6), ((12.8, 8.0), 12.7)],
        [((16.8, 11.0), 12.7), ((12.6, 8.1), 12.6), ((12.8, 8.0), 12.7)],
        [((16.8, 11.0), None), ((12.6, 8.1), None), ((12.8, 8.0), None)],
        [((16.8, 8.0), 16.7), ((12.6, 11.0), 12.6), ((12.8, 8.0), 12.7)],
    ],
    ids=["untuned", "config", "control", "both untuned", "config, control", "fresh", "no control", "in other blocks"],
)
def test_no_machine_is_slower_where_one_side_varies(rows):
    """The untuned model alone, the config alone, or all fresh processes beside one that lives through all blocks: then
    ratios are touched by it, or no one knows."""
    found = told_of(rows)
    assert found is None or found[1].cause is None


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_processes_that_differ_by_themselves_are_hardly_ever_a_slower_machine(num):
    """Less than one study in 20, although here even the process that lives through all blocks draws a state in each."""
    chance = random.Random(num)
    drawn = [
        [((chance.lognormvariate(2, 0.15), chance.lognormvariate(1, 0.15)), chance.lognormvariate(2, 0.15))
         for _ in range(num)]
        for _ in range(400)
    ]  # fmt: skip
    found = [told_of(rows) for rows in drawn]
    assert sum(each is not None and each[1].cause is not None for each in found) < 20


def test_what_is_counted_is_named_before_a_slower_machine():
    """Other programs that came and went make all processes slower together: they are what a user can end."""
    assert told_of(SEGFORMER, others=[0.75, 0.96, 0.63, 0.0])[1].cause is Cause.OTHERS
    scatter = told_of(SEGFORMER, others=[0.1, 0.9, 0.1, 0.9])[1]
    assert (scatter.cause, scatter.others) == (Cause.MACHINE, 0.9)


def test_a_state_is_a_call_s(measurement):
    """Counters of samples of several calls, and shares of the time that they took; nothing is told of a device."""
    usage = Usage(
        cpu_s=(0.02,) * 3, page_faults=(20, 40, 30), involuntary_switches=(0, 3, 0), taken_s=0.03, stolen_s=0.01
    )
    samples = measurement.samples.model_copy(
        update={"latency_s": (0.01,) * 3, "usage": usage, "calls_per_sample": 2}
    )  # fmt: skip
    on_cpu = measurement.environment.model_copy(update={"device": "cpu"})
    found = state_of(measurement.model_copy(update={"samples": samples, "environment": on_cpu}))
    assert found.page_faults == 15
    assert found.switches == pytest.approx(50)
    assert found.cores == pytest.approx(1)
    assert found.others == pytest.approx(0.02 / 0.06)
    assert found.stolen == pytest.approx(0.01 / 0.06)
    on_gpu = measurement.environment.model_copy(update={"device": "NVIDIA H200"})
    assert state_of(measurement.model_copy(update={"samples": samples, "environment": on_gpu})) is None


@pytest.mark.parametrize(
    ("now", "cause"),
    [
        (state(59, faults=18848), Cause.FAULTS),
        (state(46, faults=9000), Cause.FAULTS),
        (state(59, faults=18848, others=0.9), Cause.FAULTS),
        (state(59, faults=5000), None),
        (state(59, faults=5000, others=0.6), Cause.OTHERS),
        (state(59, stolen=0.6, others=0.3), Cause.STOLEN),
        (state(59, others=0.15), None),
        (state(28, others=0.05), None),
    ],
)
def test_a_process_that_is_slower_than_was_promised(now, cause):
    """Promised were 27 ms without a fault. What is seen and too little to make it so slow is no cause."""
    assert why_slower(now, 0.027, 0.0) is cause


def test_faults_that_were_there_when_it_was_promised():
    """They explain nothing; those that came do."""
    assert why_slower(state(59, faults=18848), 0.027, 18000.0) is None


@pytest.mark.parametrize(("ms", "faults", "spent_ms"), [(36, 5000, 5.0), (36, 3000, 0.0), (27, 0, 0.0)])
def test_what_each_process_pays_alike(ms, faults, spent_ms):
    """A tenth of a call is worth a word."""
    assert given_back_s(state(ms, faults=faults)) == pytest.approx(spent_ms / 1e3)
