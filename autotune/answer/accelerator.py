"""What is to be known of a measurement on an accelerator, in words: copies, throttling, clocks."""

from __future__ import annotations

from autotune.answer.format import percent, seconds
from autotune.measure.device_state import DeviceState, mean_of_known
from autotune.measure.measurement import Measurement


def accelerator_remarks(measured: Measurement) -> list[str]:
    """Nothing on a CPU, and where the driver tells nothing."""
    copies = [] if measured.copies_s is None else [f"copying its outputs takes {seconds(measured.copies_s)} of a call"]
    state = measured.samples.device
    return copies if state is None else [*copies, *_of_state(state)]


def accelerator_facts(measured: Measurement) -> list[tuple[str, str]]:
    """What the device is beside its name, and its clock, power and temperature while samples were taken."""
    state = measured.samples.device
    if state is None:
        return []
    means = [
        ("mean SM clock", mean_of_known(each.sm_clock_mhz for each in state.readings), "MHz"),
        ("mean power", mean_of_known(each.power_w for each in state.readings), "W"),
        ("mean temperature", mean_of_known(each.temperature_c for each in state.readings), "°C"),
    ]
    return [*state.identity.items(), *((name, f"{mean:.0f} {unit}") for name, mean, unit in means if mean is not None)]


def _of_state(state: DeviceState) -> list[str]:
    if state.always_throttled:
        return ["the device was throttled all the time"]
    said = [f"{state.num_dropped} samples dropped: the device was throttled"] if state.num_dropped else []
    return said + ([f"at its power cap in {percent(state.share_capped)} of the readings"] if state.share_capped else [])
