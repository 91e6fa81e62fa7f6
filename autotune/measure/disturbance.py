"""Was a trial disturbed by other programs while it was timed? Told from what its samples record. Pure.

A sample in which the process was interrupted for another one is longer than the model takes. As long as few samples are
hit, the median does not notice; when many are, it is about the other program.
"""

from __future__ import annotations

from autotune.measure.measurement import Measurement

HIT_SHARE = 0.2
"""Of the samples. With this share hit, the median is at most the 62nd percentile of the undisturbed ones."""
SWITCHES_PER_S = 20.0
"""Involuntary switches. Measured on two cores: 2 to 8 a second on a quiet core, 45 to 130 beside a busy program."""
TAKEN_SHARE = 0.1
"""Of a core. Threads of one config that get in each other's way are interrupted too, while others take nothing."""


def disturbance_of(measurement: Measurement) -> str | None:
    """What disturbed the samples, in a sentence; None where nothing did or nothing is known.

    On a device the calls wait for it, and its time is not on this record: there the sentinels alone tell.
    """
    usage, latency_s = measurement.samples.usage, measurement.samples.latency_s
    environment = measurement.environment
    if usage is None or environment.device.lower() != "cpu":
        return None
    wall_s = sum(latency_s)
    hit = sum(each > 0 for each in usage.involuntary_switches) / len(latency_s)
    if hit < HIT_SHARE or sum(usage.involuntary_switches) < SWITCHES_PER_S * wall_s:
        return None
    interrupted = f"{hit:.0%} of the calls were interrupted"
    if usage.taken_s is None:
        # Older records: less than one core's worth of CPU time, though it was not waiting for anything of its own.
        return f"other programs ran while it was timed: {interrupted}" if sum(usage.cpu_s) < 0.9 * wall_s else None
    taken = usage.taken_s / wall_s
    if taken < TAKEN_SHARE:
        return None
    return f"other programs used {taken:.1f} of {environment.num_cores} cores while it was timed: {interrupted}"
