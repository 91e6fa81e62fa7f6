"""Why processes of one config differ: what was recorded while each of them was timed, set against their latencies.

Theory of operation. Each process of a config has a state of its own for as long as it lives: what its C library does
with freed memory, what else ran beside it. A state that is recorded (`ProcessState`) is named as the cause where two
things hold. The slower processes have more of it, by a straight line that explains at least half of the scatter and
that so many processes do not show by chance; and what it costs is of the size that such a thing costs. A page fault has
a known price, so that two processes are enough where the faults alone come to half of their difference.

Where none of that is the cause, the processes of a block are set against each other: if all of them were slower
together, the machine was (`slower_together`), whatever made it so, and the ratio of any two did not change. A process
that lives through all blocks has to be among them, since fresh ones may each draw a slow state at the same time.
Whatever is left has no name: a memory layout, a clock that no counter shows.

A job whose calls take longer than promised asks the same of its one process (`why_slower`), and what a process pays for
memory that is given back is told also where all processes pay it alike (`given_back_s`).

docs/measurement.md has the causes and rules for users, docs/decisions/0075-causes-by-name.md what was tried.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import NonNegativeFloat, PositiveFloat

from autotune.measure.measurement import Measurement
from autotune.measure.sampling import Reading
from autotune.schema import Record

SCATTERS = 0.1
"""Processes of one config that differ by a larger share than this do so visibly."""
_LEAST_SHARE = 0.5
"""A cause explains so much of the scatter."""
_LEAST_CORRELATION = {3: 0.9999, 4: 0.990, 5: 0.959, 6: 0.917, 7: 0.875, 8: 0.834, 9: 0.798, 10: 0.765, 11: 0.735}
"""Number of processes -> the correlation that chance exceeds in one of 200 cases; then `_LEAST_SHARE` is more."""
_FAULT_S = 1e-6
"""What a page fault costs at the least, with the page's clearing."""
_USUAL_FAULT_S = 1.4e-6
"""What it costs in a virtual machine: measured were 1.4 to 2.0 us."""
_LEAST_TOGETHER = 0.9
"""Share of the scatter over blocks that its ratio to each process beside it does without, where all are slower
together."""
LEAST_CORES = 0.1
"""Others, or a hypervisor, that had less than so much more of a core in one process than in another explain nothing."""


class Cause(StrEnum):
    """What makes processes of one config differ. The names are those of the JSON document."""

    FAULTS = "page_faults"
    """Freed memory goes back to the system, and is asked for again."""
    OTHERS = "other_programs"
    STOLEN = "stolen_time"
    """A hypervisor gave it to another machine, or a CPU quota was used up."""
    MACHINE = "slower_machine"
    """All processes of some blocks were slower together, and nothing that is counted explains it."""


class ProcessState(Record):
    """What the samples of one process say of it, beside how long they took."""

    latency_s: PositiveFloat
    """The median call."""
    page_faults: NonNegativeFloat
    """A call, the median."""
    switches: NonNegativeFloat
    """Involuntary context switches a second."""
    cores: NonNegativeFloat
    """Cores' worth of CPU time that it used itself."""
    others: NonNegativeFloat | None = None
    """Cores that other programs used meanwhile; None where the system does not tell."""
    stolen: NonNegativeFloat | None = None
    """Cores' worth of time that was kept from it."""

    def amount(self, cause: Cause) -> float | None:
        """How much of a cause there was; None where that is not known."""
        match cause:
            case Cause.FAULTS:
                return self.page_faults
            case Cause.OTHERS:
                return self.others
            case Cause.STOLEN:
                return self.stolen
            case Cause.MACHINE:
                return None  # No process knows it alone.


class Scatter(Record):
    """Latencies of several processes of one config, and what makes them differ."""

    low_s: PositiveFloat
    high_s: PositiveFloat
    num_processes: int
    cause: Cause | None = None
    """None: nothing that is recorded explains it."""
    share: float | None = None
    """Share of the scatter that the cause explains, by a straight line; None for fewer than three processes."""
    most: NonNegativeFloat | None = None
    """The largest amount of the cause: page faults a call, or cores."""
    others: NonNegativeFloat | None = None
    """The most cores that other programs used beside one of them, whatever the cause; None where it is not known."""

    @property
    def factor(self) -> float:
        """The slowest process over the fastest."""
        return self.high_s / self.low_s

    @property
    def is_beside_others(self) -> bool:
        """Other programs were seen, be they the cause or not."""
        return (self.others or 0.0) >= LEAST_CORES


@dataclass(frozen=True)
class TimedTogether:
    """A block: what calls of processes took that were timed in turns."""

    latency_s: Mapping[int, float]
    """By trial."""
    control_s: float | None
    """Latency of the process of the untuned model that lives through all blocks."""


def given_back_s(state: ProcessState) -> float:
    """Seconds of a call that its page faults take, at the least; 0 where that is too small a share to speak of."""
    spent_s = state.page_faults * _FAULT_S
    return spent_s if spent_s >= SCATTERS * state.latency_s else 0.0


def gives_back_more(now: Reading, usual: Reading) -> bool:
    """A process is visibly slower than usual, and that is for its page faults: they come to half of the difference. It
    tells how it deals with freed memory, and nothing of the machine, nor of other processes."""
    if now.page_faults is None or usual.page_faults is None or now.latency_s <= (1 + SCATTERS) * usual.latency_s:
        return False
    return _faults_explain(now.page_faults - usual.page_faults, now.latency_s - usual.latency_s)


def why_slower(now: ProcessState, latency_s: float, page_faults: float) -> Cause | None:
    """What makes a process slower than one whose calls took `latency_s`, with so many page faults each: what comes to
    half of the difference. None where nothing that is recorded does."""
    longer_s = now.latency_s - latency_s
    if _faults_explain(now.page_faults - page_faults, longer_s):
        return Cause.FAULTS
    # So many cores are missing where a call takes longer because it has too few of them.
    lost = _LEAST_SHARE * max(now.cores, 1.0) * longer_s / now.latency_s
    taken = {cause: now.amount(cause) or 0.0 for cause in (Cause.STOLEN, Cause.OTHERS)}
    cause = max(taken, key=lambda each: taken[each])
    return cause if taken[cause] >= max(lost, LEAST_CORES) else None


def state_of(measurement: Measurement) -> ProcessState | None:
    """None on a device, for which the calls wait, and where the system has no counters."""
    samples, usage = measurement.samples, measurement.samples.usage
    if usage is None or measurement.environment.device.lower() != "cpu":
        return None
    num_calls = samples.calls_per_sample
    wall_s = num_calls * sum(samples.latency_s)
    watched_s = usage.watched_s or wall_s
    return ProcessState(
        latency_s=measurement.latency.p50,
        page_faults=statistics.median(usage.page_faults) / num_calls,
        switches=sum(usage.involuntary_switches) / wall_s,
        cores=sum(usage.cpu_s) / wall_s,
        others=None if usage.taken_s is None else max(usage.taken_s - (usage.stolen_s or 0.0), 0.0) / watched_s,
        stolen=None if usage.stolen_s is None else usage.stolen_s / watched_s,
    )


def widest(
    states: Mapping[int, Sequence[ProcessState]], blocks: Sequence[TimedTogether] = ()
) -> tuple[int, Scatter] | None:
    """The scatter of the config whose processes differ most, with the number of its trial; None where none do
    visibly. Where nothing that is counted explains it, and the `blocks` show that the machine was slower in some of
    them, by half as much or more, it is the scatter over blocks."""
    scatters = {trial: scatter for trial, of_one in states.items() if (scatter := scatter_of(of_one)) is not None}
    found = _widest_of(scatters)
    if found is None or found[1].cause is not None:
        return found
    together = slower_together(list(states), blocks)
    if together is None or math.log(together[1].factor) < _LEAST_SHARE * math.log(found[1].factor):
        return found
    return together[0], together[1].model_copy(update={"others": found[1].others})


def slower_together(trials: Sequence[int], blocks: Sequence[TimedTogether]) -> tuple[int, Scatter] | None:
    """The config that differs most over blocks in which all processes were slow or fast together; None where none does
    visibly."""
    return _widest_of({trial: each for trial in trials if (each := _together(trial, blocks)) is not None})


def _widest_of(scatters: Mapping[int, Scatter]) -> tuple[int, Scatter] | None:
    return max(scatters.items(), key=lambda each: each[1].factor, default=None)


def _together(trial: int, blocks: Sequence[TimedTogether]) -> Scatter | None:
    """What a config differs by over blocks, if the process that lives through all of them differs like it, and a fresh
    one or more, and none otherwise."""
    mine = [block for block in blocks if trial in block.latency_s]
    latencies_s = [block.latency_s[trial] for block in mine]
    lived = [(block.latency_s[trial], block.control_s) for block in mine if block.control_s is not None]
    others = {other for block in mine for other in block.latency_s} - {trial}
    fresh = [
        [(block.latency_s[trial], block.latency_s[other]) for block in mine if other in block.latency_s]
        for other in others
    ]
    # One that took part only where this one hardly differs says nothing of it.
    fresh = [pairs for pairs in fresh if _differ([one for one, _ in pairs])]
    if not _differ(latencies_s) or not fresh or len(lived) < len(mine):
        return None
    share = min(map(_share_together, [lived, *fresh]))
    if share < _LEAST_TOGETHER:
        return None
    low_s, high_s, num = min(latencies_s), max(latencies_s), len(mine)
    return Scatter(low_s=low_s, high_s=high_s, num_processes=num, cause=Cause.MACHINE, share=share)


def _share_together(pairs: Sequence[tuple[float, float]]) -> float:
    """Share of the first one's scatter (of the logarithm) that the ratio of the two does without; negative where the
    ratio scatters more."""
    own = [math.log(one) for one, _ in pairs]
    ratio = [math.log(one / other) for one, other in pairs]
    return 1 - statistics.pvariance(ratio) / statistics.pvariance(own)


def _differ(latencies_s: Sequence[float]) -> bool:
    """They do so visibly."""
    return len(latencies_s) > 1 and max(latencies_s) >= (1 + SCATTERS) * min(latencies_s)


def scatter_of(states: Sequence[ProcessState]) -> Scatter | None:
    """None for fewer than two processes, or for processes that do not differ visibly."""
    latencies_s = [state.latency_s for state in states]
    if not _differ(latencies_s):
        return None
    others = max((state.others for state in states if state.others is not None), default=None)
    plain = Scatter(low_s=min(latencies_s), high_s=max(latencies_s), num_processes=len(states), others=others)
    shares: dict[Cause, float | None] = {}
    for cause, is_price in _PRICES.items():
        amounts = [amount for state in states if (amount := state.amount(cause)) is not None]
        if len(amounts) < len(states) or (cause is not Cause.FAULTS and max(amounts) - min(amounts) < LEAST_CORES):
            continue
        if (share := _explained(amounts, latencies_s, is_price)) is not None:
            shares[cause] = share
        elif cause is Cause.FAULTS and _faults_alone(states):
            shares[cause] = None
    if not shares:
        return plain
    mosts = {cause: max(state.amount(cause) or 0.0 for state in states) for cause in shares}
    if {Cause.OTHERS, Cause.STOLEN} <= shares.keys():
        # Both are cores. What a quota keeps from one process others use meanwhile: the one that took more is named.
        del shares[min((Cause.OTHERS, Cause.STOLEN), key=lambda each: mosts[each])]
    cause = max(shares, key=lambda each: shares[each] or 0.0)
    most = mosts[cause]
    return plain.model_copy(update={"cause": cause, "share": shares[cause], "most": most})


def _faults_alone(states: Sequence[ProcessState]) -> bool:
    """The page faults that the slowest process has more than the fastest come to half of their difference, whatever the
    others say."""
    fastest, slowest = (choose(states, key=lambda state: state.latency_s) for choose in (min, max))
    return _faults_explain(slowest.page_faults - fastest.page_faults, slowest.latency_s - fastest.latency_s)


def _faults_explain(more: float, longer_s: float) -> bool:
    return more * _USUAL_FAULT_S >= _LEAST_SHARE * longer_s


def _explained(
    amounts: Sequence[float], latencies_s: Sequence[float], is_price: Callable[[float, float], bool]
) -> float | None:
    """Share of the scatter; None where the amounts explain too little of it, or chance may."""
    num = len(amounts)
    if num < min(_LEAST_CORRELATION) or min(amounts) == max(amounts):
        return None
    line = statistics.linear_regression(amounts, latencies_s)
    correlation = statistics.correlation(amounts, latencies_s)
    least = max(_LEAST_CORRELATION.get(num, 0.0), _LEAST_SHARE**0.5)
    is_told = correlation >= least and is_price(line.slope, statistics.median(latencies_s))
    return correlation**2 if is_told else None


_PRICES: dict[Cause, Callable[[float, float], bool]] = {
    Cause.FAULTS: lambda slope, _: 0.1 * _FAULT_S <= slope <= 10 * _FAULT_S,
    Cause.OTHERS: lambda slope, median_s: slope >= 0.1 * median_s,
    Cause.STOLEN: lambda slope, median_s: slope >= 0.1 * median_s,
}
"""Whether a slope is one that the cause can have: seconds a page fault; seconds a core that is lacking, of which one
makes a call longer by a tenth at least."""
