"""An accelerator in words: what was dropped, what copies cost, at which clock each config ran."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.answer.sections.environment import EnvironmentSection, accelerator_facts, accelerator_remarks
from autotune.measure.device_state import DeviceReading, DeviceState
from autotune.tuning.confirmation import clocks_note

FULL = DeviceReading(sm_clock_mhz=1980, power_w=600.0, temperature_c=60)
CAPPED = DeviceReading(sm_clock_mhz=1580, power_w=700.0, reasons=("sw_power_cap",))


@pytest.fixture
def on_device(measurement):
    """The measurement with readings, and what else was seen of a device."""

    def make(*readings, copies_s=None, **state):
        seen = DeviceState(identity={"power limit": "700 W"}, readings=readings, **state)
        samples = measurement.samples.model_copy(update={"device": seen})
        return measurement.model_copy(update={"samples": samples, "copies_s": copies_s})

    return make


def test_a_cpu_has_no_remarks(measurement):
    """Nothing is said of what is not there."""
    assert accelerator_remarks(measurement) == accelerator_facts(measurement) == []


@pytest.mark.parametrize(
    ("state", "copies_s", "words"),
    [
        ({"num_dropped": 12}, None, ["12 samples dropped: the device was throttled", "at its power cap in 50.0 %"]),
        ({"always_throttled": True}, None, ["the device was throttled all the time"]),
        ({}, 2e-5, ["copying its outputs takes 20 us of a call", "at its power cap in 50.0 %"]),
    ],
)
def test_what_a_trial_met_is_said(on_device, state, copies_s, words):
    """Throttling, the power cap, and the price of the copies of a captured graph's outputs."""
    remarks = accelerator_remarks(on_device(FULL, CAPPED, copies_s=copies_s, **state))
    assert [remark.startswith(word) for remark, word in zip(remarks, words, strict=True)] == [True] * len(words)


def test_the_device_is_described_with_what_it_did(on_device):
    """Its identity, and means over the readings that there are."""
    facts = dict(accelerator_facts(on_device(FULL, CAPPED)))
    assert facts == {
        "power limit": "700 W", "mean SM clock": "1780 MHz", "mean power": "650 W", "mean temperature": "60 °C",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("device", "readings", "is_said"), [("NVIDIA H200", (), True), ("NVIDIA H200", (FULL,), False), ("cpu", (), False)]
)
def test_clocks_that_were_not_watched_are_said(on_device, device, readings, is_said):
    """Without NVML nobody knows whether the device was throttled."""
    seen = on_device(*readings)
    environment = seen.environment.model_copy(update={"device": device})
    untuned = SimpleNamespace(measurement=seen.model_copy(update={"environment": environment}))
    section = EnvironmentSection(SimpleNamespace(untuned=untuned))
    assert bool(list(section._unwatched())) is is_said


def test_a_verdict_names_the_clocks_where_they_differ(on_device, measurement):
    """A config that draws more power runs at a lower clock under a cap; equal clocks need no words."""
    fast, slow = on_device(FULL), on_device(CAPPED)
    assert clocks_note([{0: fast, 3: slow}]) == "mean SM clock: trial 0 1980 MHz, trial 3 1580 MHz"
    assert clocks_note([{0: fast, 3: fast}]) is None
    assert clocks_note([{0: measurement, 3: measurement}]) is None
    assert clocks_note([]) is None
