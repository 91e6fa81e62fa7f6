"""What is wanted of a measurement: an `Objective` to minimise and `Constraint`s to keep, in plain words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal

from autotune.errors import InputError
from autotune.measurement import Measurement, Record

QUANTITIES: dict[str, tuple[str, Callable[[Measurement], float | None]]] = {
    "latency": ("s", lambda m: m.latency.p50),
    "p90": ("s", lambda m: m.latency.p90),
    "p99": ("s", lambda m: m.latency.p99),
    "peak_memory": ("B", lambda m: m.peak_memory_bytes),
    "compile": ("s", lambda m: m.compile_s),
    "graph_breaks": ("", lambda m: m.diagnosis.num_graph_breaks),
    "recompiles": ("", lambda m: m.diagnosis.num_recompiles),
    "error": ("", lambda m: m.relative_error or 0.0),
}
"""Name -> its unit (seconds, bytes or none) and how it is read from a measurement."""

UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0},
    "B": {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "": {"": 1.0},
}

_SENTENCE = re.compile(r"\s*(\w+)\s*(<=|==|=)\s*([0-9.]+(?:[eE][-+]?\d+)?)\s*([A-Za-z]*)\s*$")


class Objective(Record):
    """A percentile of the per-call latency, minimised: `latency` is the median."""

    quantity: Literal["latency", "p90", "p99"] = "latency"

    def value(self, measurement: Measurement) -> float:
        """In seconds."""
        latency = measurement.latency
        return {"latency": latency.p50, "p90": latency.p90, "p99": latency.p99}[self.quantity]


class Constraint(Record):
    """A measured quantity must not exceed a bound (or must equal it), e.g. `peak_memory <= 2GiB`."""

    text: str
    quantity: str
    exact: bool
    bound: float

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """From plain words: QUANTITY <= NUMBER[UNIT] or QUANTITY == NUMBER. Raises InputError."""
        match = _SENTENCE.match(text)
        if match is None:
            raise InputError(
                f"--constraint {text!r}: not understood", tip='write e.g. "peak_memory <= 2GiB" or "graph_breaks == 0"'
            )
        quantity, relation, number, unit = match.groups()
        if quantity not in QUANTITIES:
            raise InputError(
                f"--constraint {text!r}: unknown quantity {quantity!r}", tip=f"choose from: {', '.join(QUANTITIES)}"
            )
        factors = UNITS[QUANTITIES[quantity][0]]
        if unit not in factors:
            known = ", ".join(factors) if len(factors) > 1 else "no unit"
            raise InputError(f"--constraint {text!r}: {quantity} is not given in {unit!r}", tip=f"use: {known}")
        return cls(
            text=" ".join(text.split()),
            quantity=quantity,
            exact=relation in ("==", "="),
            bound=_number(text, number) * factors[unit],
        )

    def violation(self, measurement: Measurement) -> float:
        """How far the bound is missed, in the quantity's unit; 0 or less where it is kept.

        A quantity that the framework cannot give keeps no promise: it counts as violated by 1.
        """
        value = QUANTITIES[self.quantity][1](measurement)
        if value is None:
            return 1.0
        return abs(value - self.bound) if self.exact else value - self.bound


def _number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise InputError(f"--constraint {text!r}: {number!r} is not a number")
    return value
