"""`Constraint`: a bound on a quantity that a trial measured, as a user writes it: `peak_memory <= 2GiB`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from autotune.errors import InputError, marked
from autotune.measure.measurement import Measurement
from autotune.measure.objective import TOTAL, total_s
from autotune.measure.units import UNITS, Amount, Dimension
from autotune.schema import Record

Relation = Literal["<=", ">=", "=="]


class Quantity(NamedTuple):
    """Something that a measurement tells: its unit (seconds, bytes, items a second or none) and how it is read."""

    unit: Dimension
    read: Callable[[Measurement], float | None]


QUANTITIES: dict[str, Quantity] = {
    "latency": Quantity("s", lambda m: m.latency.p50),
    "p90": Quantity("s", lambda m: m.latency.p90),
    "p99": Quantity("s", lambda m: m.latency.p99),
    "throughput": Quantity("/s", lambda m: m.throughput),
    "ttft": Quantity("s", lambda m: m.ttft_s),
    "tpot": Quantity("s", lambda m: m.tpot_s),
    "peak_memory": Quantity("B", lambda m: m.peak_memory_bytes),
    "memory": Quantity("B", lambda m: m.peak_memory_bytes),
    "memory_growth": Quantity("B", lambda m: None if m.growth is None else m.growth.at_most_bytes),
    "compile": Quantity("s", lambda m: m.compile_s),
    "compile_memory": Quantity("B", lambda m: m.compile_host_bytes),
    "graph_breaks": Quantity("", lambda m: m.diagnosis.num_graph_breaks),
    "recompiles": Quantity("", lambda m: m.diagnosis.num_recompiles),
    "compilations": Quantity("", lambda m: m.passes.num_compilations),
    "fallbacks": Quantity("", lambda m: m.passes.num_fallbacks),
    "error": Quantity("", lambda m: m.relative_error or 0.0),
}
"""What can be bounded, besides `total:N`; `memory` is another name for `peak_memory`. `memory_growth` is that of 1,000
calls."""
GROWTH = "memory_growth"
"""What is measured only where it is bounded."""
SMALLEST = 1e-18
"""The smallest bound, in its base unit: shares of a smaller one would not be numbers."""

_SENTENCE = re.compile(r"\s*(\w+(?::\w*)?)\s*(<=|>=|==|=)\s*([0-9.].*)")


@dataclass(frozen=True)
class ConstraintMiss:
    """A constraint that a measurement does not keep."""

    constraint: Constraint
    value: float | None
    """In the quantity's unit; None where the framework cannot tell."""

    @property
    def amount(self) -> float | None:
        """How far the bound is missed, in the quantity's unit, above 0."""
        return None if self.value is None else abs(self.value - self.constraint.bound)

    @property
    def share(self) -> float:
        """The miss as a share of the bound (of one unit where the bound is 0); 1 where the value is unknown."""
        return 1.0 if self.amount is None else self.amount / self.constraint.scale


class Constraint(Record):
    """A measured quantity must not exceed a bound (or fall below it, or must equal it), e.g. `peak_memory <= 2GiB`."""

    text: str
    quantity: str
    """A key of `QUANTITIES`, or `total:N`."""
    relation: Relation
    bound: float

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """From plain words: QUANTITY <= NUMBER[UNIT], or with >= or ==. Raises InputError."""
        match = _SENTENCE.fullmatch(text)
        amount = None if match is None else Amount.parse(match[3])
        if match is None or amount is None:
            raise InputError(
                f"{marked('constraints', text)}: not understood",
                tip='write e.g. "peak_memory <= 2GiB" or "graph_breaks == 0", with <=, >= or ==; '
                f"what can be bounded: {', '.join(QUANTITIES)}, total:N",
            )
        name, sign = match[1], match[2]
        quantity = _quantity(text, name)
        bound = amount.to_base(quantity.unit)
        if bound is not None and 0 < abs(bound) < SMALLEST:
            raise InputError(
                f"{marked('constraints', text)}: the bound is too small", tip=f"write 0, or at least {SMALLEST:g}"
            )
        if bound is None:
            known = ", ".join(name for name in UNITS[quantity.unit] if name) or "no unit"
            how = f"in {amount.unit!r}" if amount.unit else "without a unit"
            raise InputError(f"{marked('constraints', text)}: {name} cannot be given {how}", tip=f"use: {known}")
        return cls(
            text=" ".join(text.split()),
            quantity=name,
            relation=_relation(text, name, sign, is_rate=quantity.unit == "/s"),
            bound=bound,
        )

    @property
    def unit(self) -> Dimension:
        """The bound's dimension: a key of `UNITS`."""
        return _quantity(self.text, self.quantity).unit

    @property
    def scale(self) -> float:
        """What a miss is measured by: the bound, or one unit where that is 0."""
        return self.bound if self.bound > 0 else 1.0

    def value(self, measurement: Measurement) -> float | None:
        """In the quantity's unit; None where the framework cannot tell. Times are those of the worker that ran the
        study's untuned trial."""
        value = _quantity(self.text, self.quantity).read(measurement)
        factor = {"s": measurement.scale, "/s": 1 / measurement.scale}.get(self.unit, 1.0)
        return None if value is None else factor * value

    def miss(self, measurement: Measurement) -> ConstraintMiss | None:
        """None where the constraint is kept. What the framework cannot tell keeps no promise."""
        return ConstraintMiss(self, self.value(measurement)) if self.violation(measurement) > 0 else None

    def violation(self, measurement: Measurement) -> float:
        """How far the bound is missed, as a share of it, 0 or less where it is kept; 1 where the value is unknown.

        A share, so that a model learns as well from bytes as from seconds, and can weigh one constraint with another.
        """
        value = self.value(measurement)
        if value is None:
            return 1.0
        excess = {"<=": value - self.bound, ">=": self.bound - value, "==": abs(value - self.bound)}[self.relation]
        return excess / self.scale


def _quantity(text: str, name: str) -> Quantity:
    """Raises InputError for an unknown name."""
    total = TOTAL.fullmatch(name)
    if total is not None:
        num_calls = int(total[1])
        return Quantity("s", lambda m: total_s(m, num_calls))
    if name.partition(":")[0] == "total":
        raise InputError(f"{marked('constraints', text)}: how many calls?", tip='write e.g. "total:10000 <= 5min"')
    if name not in QUANTITIES:
        raise InputError(
            f"{marked('constraints', text)}: unknown quantity {name!r}",
            tip=f"choose from: {', '.join(QUANTITIES)}, total:10000",
        )
    return QUANTITIES[name]


def _relation(text: str, name: str, sign: str, *, is_rate: bool) -> Relation:
    """Only a rate is wanted large; everything else, small. Raises InputError for the other way round."""
    if sign in ("=", "=="):
        return "=="
    wanted: Relation = ">=" if is_rate else "<="
    if sign != wanted:
        raise InputError(
            f"{marked('constraints', text)}: {name} is wanted {'large' if is_rate else 'small'}",
            tip=f"write {name} {wanted} NUMBER",
        )
    return wanted
