"""`Profile`: the time of a call by operator, as the framework's profiler reports it. Pure.

A profiler slows calls down, small operators more than large ones: use the shares for comparison, and samples, taken
without a profiler, for the time of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import NonNegativeFloat, PositiveInt

from autotune.schema import Record

EVERYWHERE = "everywhere"


class OperatorTime(Record):
    """What one operator takes in one call of the model, on average over the profiled calls."""

    name: str
    """As the framework writes it."""
    self_s: NonNegativeFloat
    """Seconds, without those of other operators that it calls."""
    share: NonNegativeFloat
    """Share of the seconds of all operators."""
    num_calls: NonNegativeFloat


class Profile(Record):
    """The operators of a call, slowest first."""

    operators: tuple[OperatorTime, ...]
    num_calls: PositiveInt
    """Calls of the model that were profiled."""
    at_breaks_s: dict[str, NonNegativeFloat] = {}
    """Place of a graph break -> seconds of a call outside of compiled code for its sake; `EVERYWHERE` stands for all
    places where the framework does not tell them apart. Only what could be told is here."""
    note: str | None = None
    """What the figures leave out, or why there are none."""

    @classmethod
    def of(
        cls,
        times: Mapping[str, tuple[float, int]],
        num_calls: int,
        note: str | None = None,
        *,
        at_breaks: Mapping[str, float] | None = None,
    ) -> Profile:
        """From operator -> seconds and number of its calls, over all `num_calls` calls of the model; `at_breaks` too
        holds seconds over all calls."""
        total_s = sum(self_s for self_s, _ in times.values())
        operators = [
            OperatorTime(
                name=name,
                self_s=self_s / num_calls,
                share=self_s / total_s if total_s else 0.0,
                num_calls=count / num_calls,
            )
            for name, (self_s, count) in times.items()
        ]
        return cls(
            operators=tuple(sorted(operators, key=lambda operator: -operator.self_s)),
            num_calls=num_calls,
            at_breaks_s={place: total_s / num_calls for place, total_s in (at_breaks or {}).items()},
            note=note,
        )

    def operator(self, name: str) -> OperatorTime | None:
        return next((operator for operator in self.operators if operator.name == name), None)


NOTABLE_SHARE = 0.01


@dataclass(frozen=True)
class HotSpots:
    """The profiles of the untuned model and of the best config; at least one of them exists."""

    untuned: Profile | None
    best: Profile | None

    def largest(self, number: int) -> list[str]:
        """At most `number` operators, by their largest share in either profile."""
        shares: dict[str, float] = {}
        for profile in (self.untuned, self.best):
            for operator in profile.operators if profile else ():
                shares[operator.name] = max(operator.share, shares.get(operator.name, 0.0))
        return sorted(shares, key=lambda name: -shares[name])[:number]

    def gone(self) -> list[str]:
        """Operators with a notable share in the untuned model that the best config does not have."""
        return _only_in(self.untuned, self.best)

    def new(self) -> list[str]:
        """Operators with a notable share in the best config that the untuned model does not have."""
        return _only_in(self.best, self.untuned)


def _only_in(one: Profile | None, other: Profile | None) -> list[str]:
    if one is None or other is None:
        return []
    present = {operator.name for operator in other.operators}
    return [
        operator.name for operator in one.operators if operator.name not in present and operator.share >= NOTABLE_SHARE
    ]
