"""An accelerator beside the samples: read between calls and never within one, and not blamed on the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from autotune.measure.device_state import MOST_REPEATED, DeviceReading, DeviceState, DeviceWatch, times_beside
from autotune.measure.measurement import Samples
from autotune.measure.sampling import SamplingPlan, take_samples, take_turns

COOL = DeviceReading(sm_clock_mhz=1980, power_w=400.0, temperature_c=60)
CAPPED = COOL.model_copy(update={"reasons": ("sw_power_cap",)})
HOT = COOL.model_copy(update={"sm_clock_mhz": 1200, "reasons": ("hw_thermal_slowdown",)})


class Device:
    """A device whose readings are scripted, the last one over and over; every event is noted in its order."""

    def __init__(
        self, *readings: DeviceReading, call_s: float = 1.0, warming_mhz: Sequence[int] = (1980, 1980)
    ) -> None:
        """`warming_mhz`: what is read while the model warms up, which ends once the clock is even."""
        self._readings = [*(COOL.model_copy(update={"sm_clock_mhz": each}) for each in warming_mhz), *readings]
        self._call_s = call_s
        self.now = 1000.0
        self.events: list[str] = []

    def identity(self) -> dict[str, str]:
        return {"power limit": "700 W"}

    def read(self) -> DeviceReading | None:
        self.events.append("read")
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]

    def flush_cache(self) -> None:
        self.events.append("flush")
        self.now += 100.0

    def device_s(self, call: Callable[[], object]) -> float:
        call()
        return 0.25

    def call(self) -> None:
        self.events.append("call")
        self.now += self._call_s

    def synchronise(self) -> None:
        self.events.append("wait")

    def cool(self, seconds: float) -> None:
        self.events.append("cool")
        self.now += seconds

    def clock(self) -> float:
        self.events.append("clock")
        return self.now

    def sampled(self, **plan: float) -> Samples:
        return take_samples([self.call], SamplingPlan.model_validate(plan), self.clock, self)

    def in_turns(self, num_turns: int, **plan: float) -> Samples:
        turns = iter([True] * num_turns + [False])
        sampling = SamplingPlan.model_validate({"slow_call_s": 1.0, **plan})
        return take_turns([self.call], sampling, lambda: next(turns), self.clock, self, wait=self.cool)


# Readings


def test_a_device_is_read_before_and_after_each_turn() -> None:
    """Two readings a turn, and what the device is. A big GPU runs at its cap for good: nothing is dropped."""
    samples = Device(COOL, CAPPED, COOL).in_turns(3, turn_s=2.0)
    assert samples.device.identity == {"power limit": "700 W"}
    assert [each.reasons for each in samples.device.readings] == [(), ("sw_power_cap",), (), (), (), ()]
    assert samples.device.share_capped == pytest.approx(1 / 6)
    capped = Device(CAPPED).in_turns(2, turn_s=2.0).device
    assert (capped.num_dropped, capped.share_capped) == (0, 1.0)


def test_nothing_is_read_within_a_timed_call() -> None:
    """Between the two looks at the clock there is the call alone: the driver takes up to a millisecond to answer."""
    device = Device(COOL, call_s=0.1)
    device.sampled(min_samples=20, max_samples=20, max_sampling_s=100.0)
    assert "read" in device.events
    text = " ".join(device.events)
    assert "clock read call clock" not in text
    assert "clock call read clock" not in text


def test_a_long_stretch_is_read_in_between() -> None:
    """So that a device that was throttled for a second does not cost all samples."""
    device = Device(COOL, HOT, COOL, call_s=0.1)
    samples = device.sampled(min_samples=30, max_samples=30, max_sampling_s=100.0, precision=1e-9)
    assert len(samples.device.readings) > 4
    assert 0 < samples.device.num_dropped < 30
    assert len(samples.latency_s) == 30 - samples.device.num_dropped


def test_without_instruments_nothing_is_said() -> None:
    """On a CPU the record is what it was; of a driver that does not tell nothing is known, and no sample is dropped."""

    class Silent(Device):
        def read(self) -> DeviceReading | None:
            return None

    assert Silent(COOL).in_turns(2, turn_s=2.0).device is None
    device = Device(COOL)
    samples = take_samples([device.call], SamplingPlan(max_samples=5), device.clock)
    assert samples.device is None
    assert samples.calls_per_sample == 1
    assert "read" not in device.events


# Warming up


def test_the_warm_up_lasts_until_the_clock_is_even() -> None:
    """A GPU lowers its clock for a while under load, too slowly for two successive calls to show."""
    device = Device(COOL, call_s=0.125, warming_mhz=[1980, 1900, 1800, 1700, 1590, 1580])
    samples = device.sampled(min_samples=3, max_samples=3, precision=1e-9)
    assert samples.steady
    assert len(samples.warmup_s) == 1 + 5 * 2, "a look after the first call, and five windows of two calls"


def test_a_clock_that_never_settles_does_not_hold_the_trial_up() -> None:
    """The longest warm-up ends it, and the samples are marked."""
    device = Device(COOL, call_s=0.1, warming_mhz=[1980 - 60 * number for number in range(20)])
    samples = device.sampled(min_samples=3, max_samples=3, max_warmup_s=2.0)
    assert not samples.steady
    assert 0.1 * len(samples.warmup_s) == pytest.approx(2.0, abs=0.2)


# Dropping


def test_a_throttled_turn_is_dropped_counted_and_repeated() -> None:
    """Its samples are about the cooling; it is taken again after a wait, so that no turn is missing."""
    device = Device(COOL, COOL, COOL, HOT, COOL)
    samples = device.in_turns(3, turn_s=2.0)
    assert (samples.device.num_dropped, samples.device.num_repeated) == (2, 1)
    assert device.events.count("cool") == 1
    assert samples.turns == (2, 2, 2)
    assert len(samples.latency_s) == 6
    assert samples.usage is None or len(samples.usage.cpu_s) == 6


def test_turns_are_repeated_a_few_times_only() -> None:
    """A device that does not cool down is throttled for good; after that its turns are dropped, not repeated. A repeat
    that would outlast the limit of the process is not begun."""
    assert Device(HOT, call_s=3.0).in_turns(1, turn_s=2.0, longest_s=8.0).device.num_repeated == 0
    device = Device(COOL, COOL, *([HOT] * 12))
    samples = device.in_turns(3, turn_s=2.0)
    assert samples.device.num_repeated == device.events.count("cool") == MOST_REPEATED
    assert samples.turns == (2,)
    assert samples.device.num_dropped == 2 * (2 + MOST_REPEATED)


def test_a_device_that_is_always_throttled_is_said_so() -> None:
    """No sample at all would be no answer: they are kept, and marked."""
    samples = Device(HOT).in_turns(2, turn_s=2.0)
    assert samples.device == DeviceState(
        identity={"power limit": "700 W"}, readings=(HOT,) * (2 * (2 + MOST_REPEATED)), num_dropped=0,
        num_repeated=MOST_REPEATED, always_throttled=True,
    )  # fmt: skip
    assert len(samples.latency_s) == 2 * (2 + MOST_REPEATED)


def test_what_is_dropped_is_told_by_the_stretch() -> None:
    """Either end of it counts: the device was throttled somewhere in between."""
    watch = DeviceWatch(Device(COOL, HOT, HOT, COOL, COOL, warming_mhz=()))
    for first, last in ((0, 2), (2, 5), (5, 7)):
        watch.begin(first)
        watch.end(last)
    assert watch.dropped(7) == {0, 1, 2, 3, 4}
    assert watch.dropped(5) == frozenset()


# How a sample is taken


def test_the_cache_is_flushed_outside_of_what_is_timed() -> None:
    """As declared in the plan: a flush takes 100 s here, and is in no sample."""
    device = Device(COOL)
    samples = device.in_turns(1, turn_s=300.0, cold_cache=True)
    assert set(samples.latency_s) == {1.0}
    assert device.events.count("flush") == len(samples.latency_s) + 1, "and before the call that is not counted"
    assert "flush" not in " ".join(Device(COOL).events)


def test_a_pipelined_sample_is_the_mean_of_its_calls() -> None:
    """Seconds a call, whatever the number of calls in a sample."""
    samples = Device(COOL, call_s=8.0).in_turns(2, turn_s=10.0, calls_per_sample=8)
    assert set(samples.latency_s) == {1.0}
    assert set(samples.warmup_s) == {1.0}
    assert samples.calls_per_sample == 8


def test_times_beside_the_samples() -> None:
    """Single calls by the device's own clock; then several with one wait before and one after them."""
    device = Device(COOL, call_s=0.01)
    times = times_beside(device.call, device.synchronise, device, device.clock, longest_s=0.1)
    assert set(times.device_s) == {0.25}
    assert times.num_pipelined == 1
    assert times.pipelined_s == pytest.approx(0.01)
    assert " ".join(device.events).endswith("wait clock call wait clock")
