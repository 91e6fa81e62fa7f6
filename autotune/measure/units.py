"""Amounts with a unit, as users write them: `50ms`, `1.5h`, `2GiB`, `600`."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

Dimension = Literal["s", "B", "/s", ""]
"""What is measured, by its base unit: a time, memory, a rate, or a plain number."""

UNITS: dict[Dimension, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0, "sec": 1.0},
    "B": {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "/s": {"": 1.0, "/s": 1.0},
    "": {"": 1.0},
}
"""Unit -> how many of the base unit it is."""

_AMOUNT = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(/?[A-Za-z]*)")


class Amount(NamedTuple):
    """A number and the unit that was written behind it, empty if none was."""

    number: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Amount | None:
        """None where the text is no finite number with at most a unit."""
        match = _AMOUNT.fullmatch(text.strip())
        if match is None or not math.isfinite(number := float(match[1])):
            return None
        return cls(number, match[2])

    def to_base(self, dimension: Dimension) -> float | None:
        """In the dimension's base unit; None where the unit is missing or of another dimension, or the number too
        large."""
        factor = UNITS[dimension].get(self.unit)
        value = None if factor is None else self.number * factor
        return value if value is not None and math.isfinite(value) else None


def seconds_of(text: str, *, bare: str = "") -> float | None:
    """Seconds of a time; None where the text is none. `bare` is the unit of a number that has none."""
    amount = Amount.parse(text)
    return None if amount is None else Amount(amount.number, amount.unit or bare).to_base("s")
