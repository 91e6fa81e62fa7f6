"""How long a call of the fake framework takes: seconds that pass, or seconds that a trial only counts.

In a job and by default a call sleeps. With the variable FAKE_CLOCK=simulated a trial counts what its calls and
compilations would have taken: a study then takes as long as its processes do, and what it measures does not depend on
what else the machine does.
"""

from __future__ import annotations

import os
import random
import time

from autotune.config import Config

VARIABLE = "FAKE_CLOCK"
SLOWER_VARIABLE = "FAKE_SLOWER"
"""How many times as long simulated calls take: another release."""
SLOWED_VARIABLE, SLOWED = "FAKE_SLOWED", 10.0
"""KNOB=VALUE whose calls take so many times as long: a release that is bad at it."""
PROCESS_SCATTER = 0.003
"""How much longer all calls of a process take, as a share: half a normal distribution of this deviation."""
CALL_SCATTER = 0.005
"""How much longer a single call takes. As with a real sleep, none is shorter than asked for."""
_LEAST_S = 1e-6
"""Time goes on with every call: sampling ends by the clock."""


class RealClock:
    """Seconds that pass."""

    def __call__(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SimulatedClock:
    """Seconds that have been slept, with the scatter of a quiet machine."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._random = random.Random()
        self._pace = self._longer(PROCESS_SCATTER) * float(os.environ.get(SLOWER_VARIABLE, "1"))

    def __call__(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += max(seconds * self._pace * self._longer(CALL_SCATTER), _LEAST_S)

    def _longer(self, scatter: float) -> float:
        return 1 + abs(self._random.gauss(0, scatter))


def slowed(config: Config) -> float:
    """How many times as long calls under the config take."""
    knob, _, value = os.environ.get(SLOWED_VARIABLE, "").partition("=")
    return SLOWED if knob and str(config.get(knob)) == value else 1.0


def clock_of_a_trial() -> RealClock | SimulatedClock:
    """The clock that the process's environment asks for."""
    return SimulatedClock() if os.environ.get(VARIABLE) == "simulated" else RealClock()
