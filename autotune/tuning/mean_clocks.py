"""At which clock of an accelerator each config of a confirmation was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.measure.device_state import CLOCK_DRIFT, mean_of_known
from autotune.measure.measurement import Measurement


def clocks_note(blocks: Sequence[Mapping[str, Measurement]]) -> str | None:
    """A sentence where the mean clocks of the contestants differ; None where they do not, or cannot be read.

    A config that draws more power runs at a lower clock under a power cap: that is part of what it is worth here, and
    may be otherwise on a GPU with another cap.
    """
    means = {name: mean for name in (blocks[-1] if blocks else ()) if (mean := _mean_mhz(blocks, name)) is not None}
    if not means or max(means.values()) - min(means.values()) <= CLOCK_DRIFT * max(means.values()):
        return None
    return "mean SM clock: " + ", ".join(f"{_in_words(name)} {mean:.0f} MHz" for name, mean in means.items())


def _in_words(name: str) -> str:
    number = name.removeprefix("trial-")
    return f"trial {int(number)}" if number != name else name


def _mean_mhz(blocks: Sequence[Mapping[str, Measurement]], name: str) -> float | None:
    states = [block[name].samples.device for block in blocks if name in block]
    return mean_of_known(each.sm_clock_mhz for state in states if state is not None for each in state.readings)
