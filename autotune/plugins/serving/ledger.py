"""`Ledger`: when compiling a shape that the study did not foresee pays off. Pure: seconds in, decisions out.

This is the ski-rental problem (docs/many-shapes.md): an eager call is the rent, compiling is the price. Compiling once
the rent has reached the price never costs more than twice what foresight would have cost; after a share `trust` of
that, where the recent calls predict more, never more than 1 + 1/trust times as much. The bounds hold for each shape,
and so for their sum.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from autotune.job.stats import AdaptiveStats, ShapeStats, Standing
from autotune.tuned.tuned_config import AdaptivePolicy

NUM_TIMED = 5
"""Calls that a shape's figures are medians of: the latest timed eager ones, and the first compiled ones after the
framework's warm-up."""
_TIMED_EVERY = 8
"""After its first ones a shape's eager calls are timed once in so many: they get faster as the allocator settles."""
MAX_SHAPES = 4096
"""Shapes that are remembered."""
_RECENT = 64
"""Calls over which a shape's share of the traffic is seen."""
_NUM_KEPT = 16
"""Versions, the latest, that expectations go by."""


@dataclass(frozen=True)
class Expected:
    """What the evidence promises before anything was compiled here."""

    compile_s: float
    """To compile the first shape in a process."""
    ratio: float
    """Seconds of a compiled call over those of an eager one."""
    fixed_s: float = 0.0
    """Part of `compile_s` that is spent once in a process, whatever is compiled."""


@dataclass(eq=False)
class ShapeAccount:
    """One shape: what its calls cost, and what it got for that."""

    text: str
    standing: Standing = "eager"
    reason: str = ""
    """Why it stands there, where figures alone do not tell."""
    num_eager: int = 0
    num_compiled: int = 0
    num_unpaid: int = 0
    """Eager calls that count towards compiling it: those since it was evicted."""
    eager_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMED))
    eager_s: float | None = None
    """Seconds of a call, the median of these."""
    compiled_times_s: list[float] = field(default_factory=list)
    """Calls of the latest version, warm."""
    compiled_s: float | None = None
    num_to_warm: int = 0
    """Compiled calls that are still part of the warm-up."""
    compile_s: float | None = None
    grown_bytes: int = 0
    last_call: int = 0
    share: float = 0.0
    """Its part of the calls before its last eager one, the recent ones counting most."""
    recent: float = 0.0
    """Its part of the calls with that one."""

    @property
    def ratio(self) -> float | None:
        """Seconds of a compiled call over those of an eager one, once both were timed."""
        return None if not self.eager_s or self.compiled_s is None else self.compiled_s / self.eager_s


class Ledger:
    """The accounts of all shapes. One thread at a time, except `add_compiled_call`, whose counts may then miss some."""

    def __init__(
        self, limits: AdaptivePolicy, expected: Expected, *, warmup_calls: int = 0, evicts: bool = True
    ) -> None:
        """`warmup_calls`: compiled calls of a version that are not timed, since the runtime has not settled. `evicts`:
        a version can go for another one; without it `max_versions` bounds all that are ever compiled."""
        self.limits = limits
        self.num_calls = 0
        self._accounts: dict[Hashable, ShapeAccount] = {}
        self._expected = expected
        self.compile_s = expected.compile_s - expected.fixed_s
        """What compiling a shape is expected to take: by the evidence, and then by the versions compiled here."""
        self.ratio = expected.ratio
        """What a compiled call is expected to take, over an eager one."""
        self._warmup_calls = warmup_calls
        self._evicts = evicts
        self._compile_times_s: deque[float] = deque(maxlen=_NUM_KEPT)
        self._ratios: deque[float] = deque(maxlen=_NUM_KEPT)
        self._counts: Counter[str] = Counter()
        self._failures_in_a_row = 0
        self._compiling_s = 0.0
        self._grown_bytes = 0
        self._missed_s = 0.0

    @property
    def stopped(self) -> str | None:
        """Why nothing more is compiled, or None."""
        if self.is_given_up:
            return f"compiling is given up: {self._failures_in_a_row} failures in a row"
        if not self._evicts and self._counts["compiled"] >= self.limits.max_versions:
            return f"{self._counts['compiled']} versions were compiled, and the framework lets go of none"
        bound = self.limits.max_memory_bytes
        next_bytes = max((account.grown_bytes for account in self._accounts.values()), default=0)
        if bound is not None and self._grown_bytes + next_bytes > bound:
            return f"compiled versions hold {self._grown_bytes} bytes, another one does not fit into {bound}"
        return None

    @property
    def is_given_up(self) -> bool:
        """Too many failures in a row."""
        return self._failures_in_a_row >= self.limits.max_failures

    def account_of(self, key: Hashable, text: Callable[[], str]) -> ShapeAccount:
        """The account of a shape, a new one if there is none. `text` names it for people."""
        found = self._accounts.get(key)
        if found is None:
            if len(self._accounts) >= MAX_SHAPES:
                self._forget_half()
            found = self._accounts[key] = ShapeAccount(text())
        return found

    def is_timed(self, account: ShapeAccount) -> bool:
        """Whether the next call of this shape is to be timed."""
        if account.standing == "compiled":
            return len(account.compiled_times_s) < NUM_TIMED
        return account.num_eager < NUM_TIMED or account.num_eager % _TIMED_EVERY == 0

    def add_eager_call(self, account: ShapeAccount, seconds: float | None) -> None:
        """An eager call was made; `seconds` if it was timed."""
        self.num_calls += 1
        # This call is left out: that it was made says nothing of a shape that comes once in a thousand calls.
        account.share = account.recent * (1 - 1 / _RECENT) ** (self.num_calls - account.last_call)
        account.recent = account.share + 1 / _RECENT
        account.last_call = self.num_calls
        account.num_eager += 1
        account.num_unpaid += 1
        if seconds is not None:
            account.eager_times_s.append(seconds)
            account.eager_s = statistics.median_low(account.eager_times_s)
        self._missed_s += max(self._saved_by(account), 0.0)

    def is_due(self, account: ShapeAccount) -> bool:
        """Whether this shape is to be compiled now."""
        saved_s = self._saved_by(account)
        if account.standing != "eager" or saved_s <= 0:
            return False
        price_s = self._price(account)
        # All that is known of how long a job goes on is how long it has gone on: as long again, on the average.
        is_in_sight = account.share * self.num_calls * saved_s >= price_s
        needed_s = price_s * (self.limits.trust if is_in_sight else 1)
        # What is spent once has to be earned too, by all shapes together: of a whole job it is always in sight.
        fixed_s = 0.0 if self._compile_times_s else self._expected.fixed_s * self.limits.trust
        is_earned = account.num_unpaid * saved_s >= needed_s and self._missed_s >= fixed_s + needed_s
        return is_earned and self.stopped is None

    def start(self, account: ShapeAccount) -> None:
        """It is being compiled from now on."""
        account.standing = "compiling"

    def cancel(self, account: ShapeAccount) -> None:
        """It is not being compiled any more, if it was."""
        if account.standing == "compiling":
            account.standing = "eager"

    def refuse(self, account: ShapeAccount, why: str) -> None:
        """The new version refused the call that it was compiled with: the shape has to earn the next one again."""
        account.num_unpaid, account.reason = 0, f"refused: {why}"

    def finish(
        self, account: ShapeAccount, seconds: float, grown_bytes: int = 0, fixed_s: float = 0.0
    ) -> ShapeAccount | None:
        """It was compiled. Returns the account whose version must go for it, or None.

        `fixed_s` were spent besides, once for all versions.
        """
        saved_s = account.num_unpaid * self._saved_by(account)
        account.reason = f"compiled after {_calls(account.num_unpaid)} that would have saved {saved_s:.3g} s; "
        account.reason += f"compiling took {seconds:.3g} s"
        account.standing, account.compile_s, account.grown_bytes = "compiled", seconds, grown_bytes
        account.compiled_times_s, account.compiled_s, account.num_to_warm = [], None, self._warmup_calls
        account.last_call = self.num_calls
        self._failures_in_a_row = 0
        self._counts["compiled"] += 1
        self._compiling_s += seconds + fixed_s
        self._compile_times_s.append(seconds)
        self.compile_s = statistics.median_low(self._compile_times_s)
        self._grown_bytes += grown_bytes
        return self._evicted_for(account)

    def fail(self, account: ShapeAccount, why: str, seconds: float = 0.0) -> None:
        """Compiling took `seconds` and gave nothing, or the version failed at a call. It is not tried again."""
        account.standing, account.reason = "failed", f"eager for good: {why}"
        self._failures_in_a_row += 1
        self._counts["failures"] += 1
        self._compiling_s += seconds

    def add_compiled_call(self, account: ShapeAccount) -> None:
        """A compiled call was made."""
        self.num_calls += 1
        account.num_compiled += 1
        account.last_call = self.num_calls

    def add_compiled_time(self, account: ShapeAccount, seconds: float) -> bool:
        """A compiled call was timed. Returns whether the version stays: False, it is no faster and must go."""
        if account.num_to_warm:
            account.num_to_warm -= 1
            return True
        account.compiled_times_s.append(seconds)
        account.compiled_s = statistics.median(account.compiled_times_s)
        if len(account.compiled_times_s) < NUM_TIMED or account.ratio is None:
            return True
        self._ratios.append(account.ratio)
        self.ratio = statistics.median(self._ratios)
        if account.ratio < 1:
            return True
        self._counts["slower"] += 1
        account.standing = "slower"
        account.reason = f"eager for good: compiled a call took {account.compiled_s:.3g} s, eager {account.eager_s:.3g}"
        return False

    def subtract_memory(self, freed_bytes: int) -> None:
        """A version went, and with it so much memory."""
        self._grown_bytes = max(self._grown_bytes - max(freed_bytes, 0), 0)

    def stats(self) -> AdaptiveStats:
        """All of it until now."""
        accounts = sorted(self._accounts.values(), key=lambda account: -(account.num_eager + account.num_compiled))
        counts = self._counts
        return AdaptiveStats(
            num_versions=sum(account.standing == "compiled" for account in accounts),
            num_compiled=counts["compiled"],
            num_evicted=counts["evicted"],
            num_slower=counts["slower"],
            num_failures=counts["failures"],
            num_eager_calls=sum(account.num_eager for account in accounts) + counts["forgotten eager"],
            num_compiled_calls=sum(account.num_compiled for account in accounts) + counts["forgotten compiled"],
            compiling_s=self._compiling_s,
            saved_s=sum(map(_saved, accounts)),
            grown_bytes=self._grown_bytes,
            stopped=self.stopped,
            shapes=tuple(
                ShapeStats(
                    shape=account.text,
                    standing=account.standing,
                    num_eager=account.num_eager,
                    num_compiled=account.num_compiled,
                    eager_s=account.eager_s,
                    compiled_s=account.compiled_s,
                    why=self._why(account),
                )
                for account in accounts
            ),
        )

    def _saved_by(self, account: ShapeAccount) -> float:
        """Seconds that compiling saves in each of its calls, as far as is known."""
        ratio = self.ratio if account.ratio is None else account.ratio
        return (account.eager_s or 0.0) * (1 - ratio)

    def _price(self, account: ShapeAccount) -> float:
        """Seconds; a shape that was compiled before may find its code in the framework's caches."""
        return self.compile_s if account.compile_s is None else account.compile_s

    def _evicted_for(self, newest: ShapeAccount) -> ShapeAccount | None:
        others = [held for held in self._accounts.values() if held.standing == "compiled" and held is not newest]
        if len(others) < self.limits.max_versions:
            return None
        oldest = min(others, key=lambda account: account.last_call)
        self._counts["evicted"] += 1
        oldest.standing, oldest.num_unpaid = "eager", 0
        oldest.reason = f"evicted for {newest.text}, as the longest not called of {self.limits.max_versions} versions"
        return oldest

    def _forget_half(self) -> None:
        """Those without a version that were called longest ago."""
        idle = [key for key, account in self._accounts.items() if account.standing not in ("compiled", "compiling")]
        for key in sorted(idle, key=lambda key: self._accounts[key].last_call)[: MAX_SHAPES // 2]:
            gone = self._accounts.pop(key)
            self._counts["forgotten eager"] += gone.num_eager
            self._counts["forgotten compiled"] += gone.num_compiled

    def _why(self, account: ShapeAccount) -> str:
        if account.standing == "compiling":
            return "is being compiled"
        if account.standing == "compiled" and account.ratio:
            return f"{account.reason}; {1 / account.ratio:.3g} times as fast"
        if account.standing != "eager":
            return account.reason
        saved_s = self._saved_by(account)
        if saved_s <= 0:
            return "compiled versions are not expected to be faster"
        spared = f"{_calls(account.num_unpaid)} would have saved {account.num_unpaid * saved_s:.3g} s compiled"
        story = f"{spared}, and compiling takes {self._price(account):.3g} s"
        return "; ".join(filter(None, [account.reason, story, self.stopped]))


def _saved(account: ShapeAccount) -> float:
    """Seconds that its compiled calls took less than eager ones would have."""
    if account.eager_s is None or account.compiled_s is None:
        return 0.0
    return account.num_compiled * (account.eager_s - account.compiled_s)


def _calls(number: int) -> str:
    return f"{number} eager call{'s' if number != 1 else ''}"
