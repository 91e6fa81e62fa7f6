"""Was a trial disturbed by other programs while it was timed? Derived from the counters of its samples. Pure.

A sample in which the process was interrupted is longer than the model takes. If few samples are affected, the median
does not change; if many are, it measures the other program.
"""

from __future__ import annotations

from autotune.measure.measurement import Measurement

HIT_SHARE = 0.2
"""Share of the samples. With this share affected, the median is at most the 62nd percentile of undisturbed ones."""
SWITCHES_PER_S = 20.0
"""Involuntary switches. Measured on two cores: 2 to 8 a second on a quiet core, 45 to 130 beside a busy program."""
TAKEN_SHARE = 0.1
"""Share of a core that others use. Threads of one config interrupt each other too, while others use nothing."""


def disturbance_of(measurement: Measurement) -> str | None:
    """What disturbed the samples, in a sentence; None if nothing did or it is unknown.

    On a device the calls wait for it, and its load is not recorded: only drift checks show a disturbance there.
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
        # Where the system does not say: the process used less than one core although it was not waiting.
        return f"other programs ran while it was timed: {interrupted}" if sum(usage.cpu_s) < 0.9 * wall_s else None
    taken = usage.taken_s / wall_s
    if taken < TAKEN_SHARE:
        return None
    return f"other programs used {taken:.1f} of {environment.num_cores} cores while it was timed: {interrupted}"
