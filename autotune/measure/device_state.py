"""What an accelerator did while calls were timed: its clocks, power and temperature, and what slowed it down.

Nothing here knows a framework or a driver: an `Instruments` reads, and it is read between timed calls only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pydantic import NonNegativeFloat, NonNegativeInt

from autotune.schema import Record

Number = TypeVar("Number", int, float)
HARD = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"})
"""Reasons of a slowdown that is none of the model's: such samples are dropped. A power cap is none of them, since a big
GPU under load runs at its cap for good."""
POWER_CAP = "sw_power_cap"
MOST_REPEATED = 4
"""Turns that a process repeats: a device that does not cool down in these is throttled for good."""
COOLING_S = 0.5
"""Wait before a turn is repeated, with nothing on the device but what others run."""
CLOCK_WINDOW_S = 0.25
"""Seconds of calls between two looks at the clock while a model warms up."""
CLOCK_DRIFT = 0.02
"""Change of the clock within a window below which it has settled."""


class DeviceReading(Record):
    """An accelerator at one moment. None: the driver does not tell."""

    sm_clock_mhz: NonNegativeInt | None = None
    memory_clock_mhz: NonNegativeInt | None = None
    power_w: NonNegativeFloat | None = None
    temperature_c: int | None = None
    num_processes: NonNegativeInt | None = None
    """Processes that compute on the device, this one and in blocks the other finalists among them."""
    reasons: tuple[str, ...] = ()
    """Why its clocks are not higher, in NVML's words: https://docs.nvidia.com/deploy/nvml-api/"""

    @property
    def is_throttled(self) -> bool:
        return bool(HARD.intersection(self.reasons))


class DeviceState(Record):
    """The accelerator of a process, and its readings before and after each stretch of samples."""

    identity: dict[str, str] = {}
    """Power limit, persistence, compute mode, MIG, driver, cuDNN and the like."""
    readings: tuple[DeviceReading, ...] = ()
    """In pairs, in the order of the stretches, those included whose samples were dropped."""
    num_dropped: NonNegativeInt = 0
    """Samples that were taken while the device was throttled, and are not among the rest."""
    num_repeated: NonNegativeInt = 0
    """Turns that were taken again because the device was throttled in them."""
    always_throttled: bool = False
    """No sample was taken without, so that none was dropped."""

    @property
    def share_capped(self) -> float:
        """Share of the readings in which the power cap held the clocks down."""
        return sum(POWER_CAP in reading.reasons for reading in self.readings) / max(len(self.readings), 1)


class DeviceTimes(Record):
    """The timed calls by the device's own clock, and without waiting for each: beside the samples, never among them."""

    device_s: tuple[NonNegativeFloat, ...]
    """Seconds of single calls, from the first kernel's start to the last one's end, launches in between included."""
    pipelined_s: NonNegativeFloat
    """A call, when several are handed over before the device is waited for."""
    num_pipelined: NonNegativeInt


class Instruments(Protocol):
    """What a backend can read of its accelerator. Nothing in it raises: what cannot be had is None or empty."""

    def identity(self) -> dict[str, str]:
        """What the device is beside its name. Asked once."""

    def read(self) -> DeviceReading | None:
        """Takes up to a millisecond, so it is never called within a timed call."""

    def flush_cache(self) -> None:
        """Overwrite the device's last-level cache, and wait for that."""

    def device_s(self, call: Callable[[], object]) -> float:
        """Seconds of a call between two events on the device; waits for it."""


@dataclass
class DeviceWatch:
    """Readings around stretches of samples, and which samples are to be dropped."""

    instruments: Instruments | None
    _readings: list[DeviceReading] = field(default_factory=list)
    _throttled: list[range] = field(default_factory=list)
    _begun_at: int = 0
    _before: DeviceReading | None = None
    _num_repeated: int = 0

    def begin(self, num_samples: int) -> None:
        """A stretch begins; so many samples were taken before it."""
        self._begun_at = num_samples
        self._before = None if self.instruments is None else self.instruments.read()

    def end(self, num_samples: int) -> None:
        """The stretch has ended."""
        after = None if self.instruments is None else self.instruments.read()
        if self._before is None or after is None:
            return
        self._readings += [self._before, after]
        if self._before.is_throttled or after.is_throttled:
            self._throttled.append(range(self._begun_at, num_samples))

    def repeats(self, turn: range) -> bool:
        """Whether a turn is taken again: all of it was throttled, and the process has repeats left."""
        lost = {number for stretch in self._throttled for number in stretch}
        if self._num_repeated == MOST_REPEATED or not turn or not lost.issuperset(turn):
            return False
        self._num_repeated += 1
        return True

    def dropped(self, num_samples: int) -> frozenset[int]:
        """Numbers of the samples that do not count; none where that would be all."""
        found = frozenset(number for stretch in self._throttled for number in stretch)
        return found if len(found) < num_samples else frozenset()

    def state(self, num_samples: int) -> DeviceState | None:
        """None where nothing can be read."""
        if self.instruments is None or not self._readings:
            return None
        num_dropped = len(self.dropped(num_samples))
        return DeviceState(
            identity=self.instruments.identity(),
            readings=tuple(self._readings),
            num_dropped=num_dropped,
            num_repeated=self._num_repeated,
            always_throttled=bool(self._throttled) and num_dropped == 0,
        )


class ClockWatch:
    """Whether an accelerator's clock has settled under load.

    A GPU raises it from idle within milliseconds and lowers it again as it reaches its power limit: by 15 % within 100
    calls on a B200 (https://github.com/flashinfer-ai/flashinfer/pull/2899), too slowly for two
    successive calls to show.
    """

    def __init__(self, instruments: Instruments | None) -> None:
        self._instruments = instruments
        self._seen: int | None = None
        self._next_look = -math.inf
        self._has_settled = instruments is None

    def has_settled(self, now: float) -> bool:
        """Asked between two calls. A clock that cannot be read is taken for settled."""
        if self._has_settled or now < self._next_look or self._instruments is None:
            return self._has_settled
        reading = self._instruments.read()
        clock, before = None if reading is None else reading.sm_clock_mhz, self._seen
        self._has_settled = clock is None or (before is not None and abs(clock - before) <= CLOCK_DRIFT * before)
        self._seen, self._next_look = clock, now + CLOCK_WINDOW_S
        return self._has_settled


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """What a driver could read; None where it could read nothing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def without(values: Sequence[Number], dropped: frozenset[int]) -> tuple[Number, ...]:
    """Those that count, in their order."""
    return tuple(value for number, value in enumerate(values) if number not in dropped)


def times_beside(
    launch: Callable[[], object],
    synchronise: Callable[[], None],
    instruments: Instruments,
    clock: Callable[[], float],
    longest_s: float,
) -> DeviceTimes:
    """A few calls more, after the samples: by the device's clock, and one after the other with one wait at the end."""
    device_s = [instruments.device_s(launch)]
    begun = clock()
    while len(device_s) < _MOST_DEVICE_CALLS and clock() - begun < longest_s:
        device_s.append(instruments.device_s(launch))
    usual_s = max(sorted(device_s)[len(device_s) // 2], 1e-9)
    num_pipelined = max(1, min(_MOST_PIPELINED, math.floor(longest_s / usual_s)))
    synchronise()
    start = clock()
    for _ in range(num_pipelined):
        launch()
    synchronise()
    return DeviceTimes(
        device_s=tuple(device_s), pipelined_s=(clock() - start) / num_pipelined, num_pipelined=num_pipelined
    )


_MOST_DEVICE_CALLS = 20
_MOST_PIPELINED = 50
