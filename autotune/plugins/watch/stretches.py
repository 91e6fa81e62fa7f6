"""Which of a job's calls are tuned where both sides are compared, and how long they took.

Calls come in stretches of one side, and two stretches of as many calls are a pair. Of two pairs one begins tuned and
the other untuned (ABBA or BAAB, by chance). The first call of a stretch does not count: what the other side left in the
processor's caches is not its own. A job with many pairs has fewer and longer ones: two of them become one.

A training job alternates by whole steps, which are what is called a call here.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

UNTUNED, TUNED = 0, 1
LEAST_PAIRS = 4
"""Pairs from which there is an interval."""
_LEAST_CALLS = 5
"""Calls of a stretch, the first included."""
_WARM = 3
"""Calls of each side before the first stretch, after the tuned ones in which the guard has settled."""
_STRETCH_S, _SPARSE_S = 0.02, 1.0
"""Seconds of calls in a stretch of more calls; and the most seconds that one takes where the job seldom calls."""
_MOST_PAIRS = 128
_LATEST = 1 << 14
"""Latest calls of a side whose time is kept."""


@dataclass
class Stretch:
    """Some calls of one side."""

    side: int
    length: int
    num_begun: int = 0
    num_over: int = 0
    num: int = 0
    """Calls that count."""
    seconds: float = 0.0
    """Time of those."""
    times_s: list[float] = field(default_factory=list)
    """That of each, until the last call is over."""
    centre_s: float | None = None
    """What one took, once the last call is over; None also where none counts."""

    def note(self, took_s: float | None, centre: Callable[[list[float]], float]) -> None:
        """A call is over; None: it does not count."""
        self.num_over += 1
        if took_s is not None:
            self.num += 1
            self.seconds += took_s
            self.times_s.append(took_s)
        if self.num_over >= self.length and self.num:
            self.centre_s, self.times_s = centre(self.times_s), []

    def with_other(self, other: Stretch) -> Stretch:
        """Both, of one side, which are over."""
        assert self.centre_s is not None
        assert other.centre_s is not None
        both = Stretch(self.side, self.length + other.length, self.num_begun + other.num_begun)
        both.num_over, both.num = self.num_over + other.num_over, self.num + other.num
        both.seconds = self.seconds + other.seconds
        both.centre_s = (self.centre_s * self.num + other.centre_s * other.num) / both.num
        return both


class CallTurn(NamedTuple):
    """One call that was begun. `stretch` is None for one of the first calls."""

    side: int
    stretch: Stretch | None = None
    counts: bool = False


class Sides:
    """The stretches of one model in one process. Threads may share them."""

    def __init__(
        self, centre: Callable[[list[float]], float] = statistics.median, chance: random.Random | None = None
    ) -> None:
        """`centre`: what a call of a stretch took, from those that count. `chance` draws the order of sides."""
        self._centre = centre
        self.num = 0
        """All calls that were begun."""
        self.num_first = 0
        """Calls before the first stretch."""
        self.num_left_out = 0
        """Later calls that do not count for a reason of their own."""
        self.pairs: list[tuple[Stretch, Stretch]] = []
        """The untuned and the tuned stretch of each."""
        self.latest_s: tuple[deque[float], deque[float]] = (deque(maxlen=_LATEST), deque(maxlen=_LATEST))
        """Times of the calls that count, untuned and tuned."""
        self._chance = chance or random.Random()
        self._lock = threading.Lock()
        self._planned: list[Stretch] = []
        """The current stretch, and those that come next."""
        self._turn = CallTurn(UNTUNED)
        """That of the latest call of a stretch."""
        self._num_warm = 0
        self._pace = StretchLength()

    def begin(self, *, is_settled: bool) -> CallTurn:
        """The turn of a call that comes now. `is_settled`: the first calls of the tuned model are over."""
        with self._lock:
            self.num += 1
            if not is_settled or self._num_warm < 2 * _WARM:
                self.num_first += 1
                self._num_warm += is_settled
                return CallTurn(UNTUNED if self._num_warm > _WARM else TUNED)
            while self._planned and self._planned[0].num_begun >= self._planned[0].length:
                del self._planned[0]
            if not self._planned:
                self._plan()
            stretch = self._planned[0]
            stretch.num_begun += 1
            if stretch.num_begun <= 2:  # All but the first of a stretch are alike.
                self._turn = CallTurn(stretch.side, stretch, counts=stretch.num_begun > 1)
            return self._turn

    def end(self, turn: CallTurn, took_s: float, *, counts: bool) -> None:
        """The call is over. `counts`: it did not fail, nothing was compiled in it, and it was like the others."""
        with self._lock:
            if self._num_warm:
                self._pace.note(took_s)
            if turn.stretch is None:
                return
            turn.stretch.note(took_s if turn.counts and counts else None, self._centre)
            if turn.counts and counts:
                self.latest_s[turn.side].append(took_s)
            self.num_left_out += turn.counts and not counts

    def start_over(self) -> None:
        """What was counted until now does not count."""
        with self._lock:
            self.pairs, self._planned, self.num_first, self.num_left_out = [], [], self.num, 0
            for latest in self.latest_s:
                latest.clear()

    def counted(self) -> tuple[list[tuple[Stretch, Stretch]], tuple[list[float], list[float]]]:
        """The pairs whose calls are over, and the latest times of either side."""
        with self._lock:
            whole = [pair for pair in self.pairs if _are_over(*pair)]
            return whole, (list(self.latest_s[UNTUNED]), list(self.latest_s[TUNED]))

    def num_needed(self, num_settling: int) -> int:
        """Calls from which there is an interval, the guard having settled after so many."""
        length = self.pairs[-1][0].length if self.pairs else _LEAST_CALLS
        return max(self.num_first, num_settling + 2 * _WARM) + 2 * LEAST_PAIRS * length

    def _plan(self) -> None:
        """Two pairs more."""
        if len(self.pairs) >= _MOST_PAIRS:
            self.pairs = _halved(self.pairs)
            self._pace.stretch_s *= 2
        length = self._pace.length()
        first = self._chance.choice((UNTUNED, TUNED))
        sides = (first, 1 - first, 1 - first, first)
        self._planned = [Stretch(side, length) for side in sides]
        for one, other in (self._planned[:2], self._planned[2:]):
            self.pairs.append((one, other) if one.side == UNTUNED else (other, one))


class StretchLength:
    """How many calls a stretch has, by those that there were since this was asked last."""

    def __init__(self) -> None:
        self.stretch_s = _STRETCH_S
        self._begin()

    def _begin(self) -> None:
        self._since_s = time.perf_counter()
        self._num, self._busy_s = 0, 0.0

    def note(self, took_s: float) -> None:
        """A call is over. Of the first one only the end is known."""
        self._num += 1
        self._busy_s += took_s

    def length(self) -> int:
        """For the next stretches, which are as long as each other, whatever their calls take."""
        num, busy_s = max(self._num, 1), max(self._busy_s, 1e-9)
        wall_s = max(time.perf_counter() - self._since_s, 1e-9)
        self._begin()
        wanted = min(self.stretch_s / busy_s, max(_SPARSE_S, self.stretch_s) / wall_s) * num
        return max(_LEAST_CALLS, math.ceil(wanted))


def _are_over(*stretches: Stretch) -> bool:
    return all(stretch.centre_s is not None for stretch in stretches)


def _halved(pairs: list[tuple[Stretch, Stretch]]) -> list[tuple[Stretch, Stretch]]:
    """Half as many, of twice the length each, as far as they are over."""
    made = []
    for one, other in zip(pairs[::2], pairs[1::2], strict=False):
        if _are_over(*one, *other):
            made.append((one[0].with_other(other[0]), one[1].with_other(other[1])))
        else:
            made += [one, other]
    return made + pairs[len(pairs) // 2 * 2 :]
