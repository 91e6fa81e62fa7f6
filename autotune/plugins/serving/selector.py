"""`TierSelector`: which tier a call takes, by its deadline and by the latencies promised and seen. No I/O.

A tier's expected latency is the largest of three: the promised 99th percentile; that of its own latest calls, once
there are enough of them; and, for a while after a call that took longer than its budget, what that call took. The best
tier whose expectation keeps the budget is taken; where none does, the call is hopeless, and the fastest one is taken.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.measure.measurement import Latency

WINDOW = 1024
"""What was seen counts for so many calls of the whole model; then it is forgotten, and the tier has another chance."""
FEWEST_SEEN = 100
"""Calls of a tier in the window before their 99th percentile counts: of fewer it is the slowest of all."""
SHORTEST_WAIT = 8
"""Calls of the whole model for which a tier is expected to take as long as in the call that missed its budget."""
LONGEST_WAIT = 1024
"""A miss doubles a tier's wait up to here, and a call within its budget halves it again."""


@dataclass(frozen=True)
class TierStats:
    """A tier until now; calls that warmed it up are not counted. Seconds."""

    name: str
    state: str | None
    """What its model is in (`Stats.state`); None where there is nothing to tell."""
    num_calls: int
    num_misses: int
    """Calls that took longer than their budget."""
    promised_s: float | None
    """The confirmed 99th percentile; None: nothing was promised."""
    expected_s: float
    """What it is expected to take now."""
    latency_s: Latency | None
    """Percentiles of its calls among the latest `WINDOW` of all; None before the first."""


@dataclass(frozen=True)
class TieredStats:
    """A model with tiers until now."""

    num_calls: int
    num_misses: int
    num_degraded: int
    """Calls that went to a lesser tier than the promises would have had it."""
    num_hopeless: int
    """Calls whose budget no tier was expected to keep."""
    tiers: tuple[TierStats, ...]
    """The best first."""


@dataclass
class _TierState:
    name: str
    promised_s: float | None
    num_calls: int = 0
    num_misses: int = 0
    seen: deque[tuple[int, float]] = field(default_factory=deque)
    """(number of the call, seconds) of its latest calls."""
    ordered_s: list[float] = field(default_factory=list)
    """Their seconds, ascending: a percentile must not cost a call a sort."""
    raised_s: float = 0.0
    """What the last call that missed took; it counts until the call `raised_until`."""
    raised_until: int = 0
    wait: int = SHORTEST_WAIT

    def usual_s(self) -> float:
        """By what was promised and seen, a miss left aside. What nothing is known of is tried."""
        promised_s, num_seen = self.promised_s or 0.0, len(self.ordered_s)
        if num_seen < FEWEST_SEEN:
            return promised_s
        return max(promised_s, self.ordered_s[num_seen - 1 - num_seen // 100])

    def expected_s(self, now: int) -> float:
        return max(self.usual_s(), self.raised_s) if now < self.raised_until else self.usual_s()

    def forget(self, now: int) -> None:
        while self.seen and self.seen[0][0] <= now - WINDOW:
            _, seconds = self.seen.popleft()
            del self.ordered_s[bisect_left(self.ordered_s, seconds)]


@dataclass(frozen=True)
class Choice:
    """What a call takes. `number` counts the calls of the whole model."""

    number: int
    tier: int
    budget_s: float
    is_hopeless: bool


class TierSelector:
    """The tiers with what they promise, the best first. Safe to use from several threads."""

    def __init__(self, promises: Sequence[tuple[str, float | None]]) -> None:
        """(name, promised 99th percentile in seconds, or None where nothing is known) of each."""
        self._tiers = [_TierState(name, promised_s) for name, promised_s in promises]
        self._num_calls = 0
        self._num_degraded = 0
        self._num_hopeless = 0
        self._lock = threading.Lock()

    def choose(self, budget_s: float) -> Choice:
        """The tier for a call that has this long, in seconds; the call counts from now on."""
        with self._lock:
            self._num_calls += 1
            choice = self._choice(budget_s)
            by_promise = (n for n, tier_state in enumerate(self._tiers) if (tier_state.promised_s or 0.0) <= budget_s)
            self._num_degraded += choice.tier > next(by_promise, choice.tier)
            self._num_hopeless += choice.is_hopeless
            self._tiers[choice.tier].num_calls += 1
            return choice

    def record(self, choice: Choice, seconds: float) -> None:
        """How long the call took. One that missed a budget which it was expected to keep raises the expectation."""
        with self._lock:
            tier = self._tiers[choice.tier]
            tier.seen.append((choice.number, seconds))
            insort(tier.ordered_s, seconds)
            missed = seconds > choice.budget_s
            tier.num_misses += missed
            if choice.is_hopeless:
                return
            if missed:
                tier.raised_s, tier.raised_until = seconds, self._num_calls + tier.wait + 1
                tier.wait = min(2 * tier.wait, LONGEST_WAIT)
            else:
                tier.wait = max(tier.wait // 2, SHORTEST_WAIT)

    def stats(self, states: Sequence[str | None]) -> TieredStats:
        """`states` are those of the tiers' models."""
        with self._lock:
            return TieredStats(
                num_calls=self._num_calls,
                num_misses=sum(tier_state.num_misses for tier_state in self._tiers),
                num_degraded=self._num_degraded,
                num_hopeless=self._num_hopeless,
                tiers=tuple(self._stats_of(tier, state) for tier, state in zip(self._tiers, states, strict=True)),
            )

    def _choice(self, budget_s: float) -> Choice:
        number = self._num_calls
        for tier_state in self._tiers:
            tier_state.forget(number)
        fitting = (n for n, tier_state in enumerate(self._tiers) if tier_state.expected_s(number) <= budget_s)
        tier = next(fitting, None)
        if tier is not None:
            return Choice(number, tier, budget_s, is_hopeless=False)
        # By what is usual: that the fastest tier has just missed makes no slower one faster. Of equals the least.
        fastest = min(range(len(self._tiers)), key=lambda n: (self._tiers[n].usual_s(), -n))
        return Choice(number, fastest, budget_s, is_hopeless=True)

    def _stats_of(self, tier_state: _TierState, state: str | None) -> TierStats:
        return TierStats(
            name=tier_state.name,
            state=state,
            num_calls=tier_state.num_calls,
            num_misses=tier_state.num_misses,
            promised_s=tier_state.promised_s,
            expected_s=tier_state.expected_s(self._num_calls),
            latency_s=Latency.of(tuple(tier_state.ordered_s)) if tier_state.ordered_s else None,
        )
