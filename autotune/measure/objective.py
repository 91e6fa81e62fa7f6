"""`Objective`: what is minimised, as a user writes it: `latency`, `memory`, `total:10000`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal, get_args

from pydantic import PositiveInt, model_validator

from autotune.errors import InputError, marked
from autotune.measure.measurement import Measurement
from autotune.schema import Record

Goal = Literal["latency", "p90", "p99", "throughput", "ttft", "tpot", "memory", "compile", "total"]

GOAL_PATTERN = r"^(latency|p90|p99|throughput|ttft|tpot|memory|compile|total:[1-9][0-9]{0,14})$"
"""What names an objective. `total:10000` is the whole job: the first call and the 9,999 after it."""
_OF_CALLS = ("latency", "p90", "p99", "throughput")
_LATENCIES = (*_OF_CALLS, "ttft", "tpot")
"""The last two are of generated text alone: the time to the first token, and that for each further one."""
PAGE_BYTES = 4096
"""Memory below one page is what a system does not tell from none; ratios of it mean nothing."""

TOTAL = re.compile(r"total:([1-9][0-9]{0,14})")
"""The job of so many calls, as an objective or a bounded quantity; so few that seconds stay a number."""


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
    """Calls of the job whose `total` counts; None for any other objective."""

    @model_validator(mode="after")
    def _only_total_counts_calls(self) -> Objective:
        if (self.quantity == "total") != (self.num_calls is not None):
            raise ValueError("the number of calls belongs to the objective 'total', and to no other")
        return self

    @classmethod
    def parse(cls, text: str) -> Objective:
        """From `latency`, `memory`, `total:10000` and so on. Raises InputError."""
        name = text.strip()
        total = TOTAL.fullmatch(name)
        if total is not None:
            return cls(quantity="total", num_calls=int(total[1]))
        if name.partition(":")[0] == "total":
            raise InputError(
                f"{marked('objective', text)}: how many calls?", tip="write e.g. total:10000, with at most 15 digits"
            )
        if name not in get_args(Goal):
            known = ", ".join(goal for goal in get_args(Goal) if goal != "total")
            raise InputError(f"{marked('objective', text)}: unknown", tip=f"choose from: {known}, total:10000")
        return cls.model_validate({"quantity": name})

    @property
    def name(self) -> str:
        """As a user writes it."""
        return self.quantity if self.num_calls is None else f"{self.quantity}:{self.num_calls}"

    @property
    def metric(self) -> str:
        """The name with the unit of what `value` gives, for other readers of a study's records: `latency (s)`."""
        unit = {"memory": "bytes", "throughput": "s per item"}.get(self.quantity, "s")
        return f"{self.name} ({unit})"

    @property
    def is_latency(self) -> bool:
        """What is minimised is the time of a steady call: a config with slow calls cannot be the best."""
        return self.quantity in _LATENCIES

    @property
    def gives_call_s(self) -> bool:
        """Its value is the seconds of a steady call, or of an item of one."""
        return self.quantity in _OF_CALLS

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
        where the framework cannot tell: such a config is never the best. Seconds are those of the worker that ran the
        study's untuned trial.
        """
        if self.num_calls is not None:
            return measurement.scale * total_s(measurement, self.num_calls)
        value = _VALUES[self.quantity](measurement)
        return measurement.scale * value if self.is_timed else value


def _memory_bytes(measurement: Measurement) -> float:
    peak_bytes = measurement.peak_memory_bytes
    return math.inf if peak_bytes is None else float(max(peak_bytes, PAGE_BYTES))


def _known(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


_VALUES: dict[Goal, Callable[[Measurement], float]] = {
    "latency": lambda m: m.latency.p50,
    "p90": lambda m: m.latency.p90,
    "p99": lambda m: m.latency.p99,
    "throughput": lambda m: m.samples.call_every_s / max(m.signature.items_per_call, 1),
    "ttft": lambda m: _known(m.ttft_s),
    "tpot": lambda m: _known(m.tpot_s),
    "memory": _memory_bytes,
    "compile": lambda m: m.first_call_s,
}

LATENCY = Objective()
"""The median of a call."""
