"""The Pareto front of several objectives: the trials of which none is beaten in every respect. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from autotune.measure.measurement import Measurement
from autotune.study.records import TrialRecord

Values = Callable[[Measurement], tuple[float, ...]]
"""What is minimised, a number for each objective."""


def front(records: Iterable[TrialRecord], values: Values) -> list[TrialRecord]:
    """Of the trials that keep every constraint those that no other one dominates, by their first value.

    Of trials with the very same values the first given stands for all: they are one answer with several names.
    """
    found: dict[tuple[float, ...], TrialRecord] = {}
    for record in records:
        if record.state == "measured":
            found.setdefault(values(record.measurement), record)
    return [found[mine] for mine in sorted(found) if _is_known(mine) and not any(dominates(o, mine) for o in found)]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """At least as small in each value, and smaller in one."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def _is_known(values: Sequence[float]) -> bool:
    return all(math.isfinite(each) for each in values)
