"""What is wanted of a measurement: an `Objective` to minimise and `Constraint`s to keep, in plain words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from pydantic import PositiveInt, model_validator

from autotune.errors import InputError
from autotune.measure.measurement import Measurement
from autotune.schema import Record

Goal = Literal["latency", "p90", "p99", "throughput", "memory", "compile", "total"]
Relation = Literal["<=", ">=", "=="]

GOAL_PATTERN = r"^(latency|p90|p99|throughput|memory|compile|total:[1-9][0-9]*)$"
"""What names an objective. `total:10000` is the whole job: the first call and the 9,999 after it."""
UNDER_TRAFFIC = "total:1000"
"""What is wanted of a model that sees many shapes, unless said otherwise: each new one may have to be compiled."""
PAGE_BYTES = 4096
"""Memory below one page is what a system does not tell from none; ratios of it mean nothing."""


class Quantity(NamedTuple):
    """Something that a measurement tells: its unit (seconds, bytes, items a second or none) and how it is read."""

    unit: str
    read: Callable[[Measurement], float | None]


QUANTITIES: dict[str, Quantity] = {
    "latency": Quantity("s", lambda m: m.latency.p50),
    "p90": Quantity("s", lambda m: m.latency.p90),
    "p99": Quantity("s", lambda m: m.latency.p99),
    "throughput": Quantity("/s", lambda m: m.throughput),
    "peak_memory": Quantity("B", lambda m: m.peak_memory_bytes),
    "memory": Quantity("B", lambda m: m.peak_memory_bytes),
    "compile": Quantity("s", lambda m: m.compile_s),
    "graph_breaks": Quantity("", lambda m: m.diagnosis.num_graph_breaks),
    "recompiles": Quantity("", lambda m: m.diagnosis.num_recompiles),
    "compilations": Quantity("", lambda m: None if m.replay is None else m.replay.num_compilations),
    "fallbacks": Quantity("", lambda m: None if m.replay is None else m.replay.num_fallbacks),
    "error": Quantity("", lambda m: m.relative_error or 0.0),
}
"""What can be bounded, besides `total:N`; `memory` is another name for `peak_memory`."""
OF_TRAFFIC = ("compilations", "fallbacks")
"""Quantities that there are under traffic only."""

UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0},
    "B": {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "/s": {"": 1.0, "/s": 1.0},
    "": {"": 1.0},
}

_TOTAL = re.compile(r"total:([1-9]\d*)")
_SENTENCE = re.compile(r"\s*(\w+(?::\w*)?)\s*(<=|>=|==|=)\s*([0-9.]+(?:[eE][-+]?\d+)?)\s*(/?[A-Za-z]*)\s*$")


def total_s(measurement: Measurement, num_calls: int) -> float:
    """Seconds of a job of so many calls that compiles first: the calls that compile, and a steady one for each further.

    The first call compiles and a median one is steady; under traffic the first pass of the stream does (or as much of
    it as there are calls), and further calls are those of the stream over and over.
    """
    cold_s = measurement.cold_s[:num_calls]
    return sum(cold_s) + (num_calls - len(cold_s)) * measurement.steady_call_s


class Objective(Record):
    """What is minimised: `latency` (the median) unless said otherwise."""

    quantity: Goal = "latency"
    num_calls: PositiveInt | None = None
    """Of the job whose `total` counts; None for any other objective."""

    @model_validator(mode="after")
    def _only_total_counts_calls(self) -> Objective:
        if (self.quantity == "total") != (self.num_calls is not None):
            raise ValueError("the number of calls belongs to the objective 'total', and to no other")
        return self

    @classmethod
    def parse(cls, text: str) -> Objective:
        """From `latency`, `memory`, `total:10000` and so on. Raises InputError."""
        name = text.strip()
        total = _TOTAL.fullmatch(name)
        if total is not None:
            return cls(quantity="total", num_calls=int(total[1]))
        if name.partition(":")[0] == "total":
            raise InputError(f"--objective {text}: how many calls?", tip="write e.g. total:10000")
        if name not in get_args(Goal):
            known = ", ".join(each for each in get_args(Goal) if each != "total")
            raise InputError(f"--objective {text}: unknown", tip=f"choose from: {known}, total:10000")
        return cls.model_validate({"quantity": name})

    @property
    def name(self) -> str:
        """As a user writes it."""
        return self.quantity if self.num_calls is None else f"{self.quantity}:{self.num_calls}"

    @property
    def is_latency(self) -> bool:
        """What is minimised is the time of a steady call: a config with slow calls cannot be the best."""
        return self.quantity in ("latency", "p90", "p99", "throughput")

    @property
    def is_timed(self) -> bool:
        """A machine that becomes slower changes it."""
        return self.quantity != "memory"

    @property
    def compiles_cold(self) -> bool:
        """It depends on what compiling costs, so that every process that is compared must compile anew."""
        return not self.is_latency

    @property
    def needs_turns(self) -> bool:
        """How long steady calls take matters, so they must be timed in turns with the others'."""
        return self.is_latency or self.quantity == "total"

    def value(self, measurement: Measurement) -> float:
        """What is minimised: seconds (of a call, an item, the first call, the whole job) or bytes.

        `compile` is the time to the first result, which the untuned model has too, so that ratios are defined. Infinite
        where the framework cannot tell: such a config is never the best.
        """
        if self.num_calls is not None:
            return total_s(measurement, self.num_calls)
        return _VALUES[self.quantity](measurement)

    def incumbent_s(self, measurement: Measurement) -> float | None:
        """The latency to beat: a config whose median is clearly above it is not the best. None: it says nothing."""
        if not self.is_latency:
            return None
        return measurement.latency.p50 if self.quantity == "throughput" else self.value(measurement)


def _memory_bytes(measurement: Measurement) -> float:
    peak_bytes = measurement.peak_memory_bytes
    return math.inf if peak_bytes is None else float(max(peak_bytes, PAGE_BYTES))


_VALUES: dict[Goal, Callable[[Measurement], float]] = {
    "latency": lambda m: m.latency.p50,
    "p90": lambda m: m.latency.p90,
    "p99": lambda m: m.latency.p99,
    "throughput": lambda m: m.latency.p50 / max(m.signature.items_per_call, 1),
    "memory": _memory_bytes,
    "compile": lambda m: m.first_call_s,
}

LATENCY = Objective()
"""The median of a call."""


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """From what was given with `--objective`, once or more, separated by commas or not. Raises InputError."""
    names = [name for text in texts for name in text.split(",")]
    objectives = tuple(Objective.parse(name) for name in names) or (LATENCY,)
    twice = next((each.name for number, each in enumerate(objectives) if each in objectives[:number]), None)
    if twice is not None:
        raise InputError(f"--objective {twice}: given twice")
    return objectives


@dataclass(frozen=True)
class Miss:
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
        """The same as a share of the bound (of one unit where the bound is 0); 1 where the value is unknown."""
        return 1.0 if self.amount is None else self.amount / self.constraint.scale


class Constraint(Record):
    """A measured quantity must not exceed a bound (or fall below it, or must equal it), e.g. `peak_memory <= 2GiB`."""

    text: str
    quantity: str
    """A key of `QUANTITIES`, or `total:N`."""
    relation: Relation
    bound: float

    @model_validator(mode="before")
    @classmethod
    def _as_it_was(cls, content: Any) -> Any:
        """Older manifests say `exact` where there are three relations now."""
        if isinstance(content, dict) and "exact" in content:
            return {
                **{k: v for k, v in content.items() if k != "exact"},
                "relation": "==" if content["exact"] else "<=",
            }
        return content

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """From plain words: QUANTITY <= NUMBER[UNIT], or with >= or ==. Raises InputError."""
        match = _SENTENCE.match(text)
        if match is None:
            raise InputError(
                f"--constraint {text!r}: not understood", tip='write e.g. "peak_memory <= 2GiB" or "graph_breaks == 0"'
            )
        name, sign, number, unit = match.groups()
        quantity = _quantity(text, name)
        factors = UNITS[quantity.unit]
        if unit not in factors:
            known = ", ".join(each for each in factors if each) or "no unit"
            raise InputError(f"--constraint {text!r}: {name} is not given in {unit!r}", tip=f"use: {known}")
        return cls(
            text=" ".join(text.split()),
            quantity=name,
            relation=_relation(text, name, sign, is_rate=quantity.unit == "/s"),
            bound=_number(text, number) * factors[unit],
        )

    @property
    def unit(self) -> str:
        """Of the bound: a key of `UNITS`."""
        return _quantity(self.text, self.quantity).unit

    @property
    def scale(self) -> float:
        """What a miss is measured by: the bound, or one unit where that is 0."""
        return self.bound if self.bound > 0 else 1.0

    def value(self, measurement: Measurement) -> float | None:
        """In the quantity's unit; None where the framework cannot tell."""
        return _quantity(self.text, self.quantity).read(measurement)

    def miss(self, measurement: Measurement) -> Miss | None:
        """None where the constraint is kept. What the framework cannot tell keeps no promise."""
        return Miss(self, self.value(measurement)) if self.violation(measurement) > 0 else None

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
    total = _TOTAL.fullmatch(name)
    if total is not None:
        num_calls = int(total[1])
        return Quantity("s", lambda m: total_s(m, num_calls))
    if name.partition(":")[0] == "total":
        raise InputError(f"--constraint {text!r}: how many calls?", tip='write e.g. "total:10000 <= 5min"')
    if name not in QUANTITIES:
        raise InputError(
            f"--constraint {text!r}: unknown quantity {name!r}",
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
            f"--constraint {text!r}: {name} is wanted {'large' if is_rate else 'small'}",
            tip=f"write {name} {wanted} NUMBER",
        )
    return wanted


def _number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise InputError(f"--constraint {text!r}: {number!r} is not a number")
    return value
