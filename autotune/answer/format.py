"""Numbers with units and verdicts in words, for people."""

from __future__ import annotations

import math

from autotune.measure.constraint import ConstraintMiss
from autotune.measure.statistics import Speedup, Verdict
from autotune.study.early_stop import NOTABLE, ExpectedGain
from autotune.study.records import TrialRecord

ABOUT_THE_SECOND = {
    Verdict.FASTER: "faster",
    Verdict.TIE: "tie",
    Verdict.KEEP_UNTUNED: "slower",
    Verdict.UNDECIDED: "undecided",
}
"""A verdict in the words of a comparison of any two configs, of which the first need not be the untuned model."""
MOST_WIDE = 100.0
"""An interval whose ends differ by more than this factor says nothing."""
_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def seconds(value: float | None) -> str:
    """Three significant digits in a fitting unit; a dash for None."""
    if value is None:
        return "-"
    if value == 0:
        return "0 s"
    if value >= 120:
        return f"{int(value // 60)} min {int(value % 60)} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value * 1e6:.3g} us"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def num_bytes(value: int | None) -> str:
    """In KiB, MiB or GiB; a dash for None."""
    if value is None:
        return "-"
    for unit, size in _BYTES:
        if value >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value} B"


def count(value: int | None) -> str:
    """The number, or a dash for None."""
    return "-" if value is None else f"{value:,}"


def num_blocks(value: int) -> str:
    """So many blocks, e.g. `1 block`."""
    return f"{count(value)} block{'' if value == 1 else 's'}"


def times(value: float) -> str:
    """A ratio, e.g. `1.53x`; a small one keeps two digits."""
    return f"{value:.2f}x" if value >= 0.095 or value <= 0 else f"{value:.2g}x"


def error(value: float | None) -> str:
    """A relative error; a dash for None (the reference itself)."""
    return "-" if value is None else f"{value:.1e}"


def percent(share: float) -> str:
    """A share as a percentage with one decimal, e.g. `1.4 %`."""
    return f"{100 * share:.1f} %"


def promise(forecast: ExpectedGain) -> str:
    """What further trials promised when a search stopped early, as the reason why."""
    idle = f"the last {forecast.num_idle} trials gained less than {NOTABLE:.0%}"
    if forecast.expected_gain is None:
        return f"stopped after {forecast.num_trials} trials: {idle}"
    num = forecast.num_untried
    left = "none left is" if num is None else "the one left is not" if num == 1 else f"none of {count(num)} left is"
    gain = f"expected to gain more than {100 * forecast.expected_gain:.2f} %"
    return f"stopped after {forecast.num_trials} trials: {left} {gain}, and {idle}"


def clock(value: float) -> str:
    """Seconds as a clock shows them: `2:31`, `1:02:31`."""
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def about(value: float) -> str:
    """Seconds, no more precise than an estimate is: `35 s`, `4 min`, `1 h 10 min`."""
    if value < 90:
        return f"{max(5 * round(value / 5), 5)} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def as_budget(value: float) -> str:
    """Seconds as a budget that holds them: `75s`, `3m`."""
    return f"{5 * math.ceil(value / 5)}s" if value <= 120 else f"{math.ceil(value / 60)}m"


def short_interval(speedup: Speedup) -> str:
    """A speed-up with its interval, where there is little room."""
    return f"{times(speedup.median)} ({_ends(speedup)})"


def interval(speedup: Speedup) -> str:
    """A speed-up with its interval."""
    named = "" if tells_nothing(speedup) else "98 % interval "
    return f"{times(speedup.median)} ({named}{_ends(speedup)})"


def tells_nothing(speedup: Speedup) -> bool:
    """Its interval is so wide that it had better not be shown."""
    return speedup.high > MOST_WIDE * speedup.low


def ends(speedup: Speedup) -> tuple[str, str]:
    """Those of its interval, for a table: dashes where they had better not be shown."""
    return ("-", "-") if tells_nothing(speedup) else (times(speedup.low), times(speedup.high))


def _ends(speedup: Speedup) -> str:
    return (
        "its blocks differ too much to tell"
        if tells_nothing(speedup)
        else f"{times(speedup.low)} to {times(speedup.high)}"
    )


def amount(value: float | None, unit: str) -> str:
    """A value in seconds (`s`), bytes (`B`), items a second (`/s`) or none; a dash for None."""
    if value is None:
        return "-"
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return num_bytes(round(value))
    return f"{_three_digits(value)}/s" if unit == "/s" else f"{value:.4g}"


def missed(miss: ConstraintMiss) -> str:
    """What a constraint forbids and how far it is missed, e.g. `peak_memory 2.31 GiB, 15 % over 2GiB`."""
    constraint = miss.constraint
    bound = constraint.text.partition(constraint.relation[0])[2].lstrip("= ")
    if miss.value is None or miss.amount is None:
        return f"{constraint.quantity} unknown here, {constraint.text} was asked for"
    measured = f"{constraint.quantity} {amount(miss.value, constraint.unit)}"
    if constraint.relation == "==":
        return f"{measured} instead of {bound}"
    side = "under" if constraint.relation == ">=" else "over"
    if constraint.bound <= 0:
        return f"{measured}, {side} {bound}"
    return f"{measured}, {_share(miss.share)} {side} {bound}"


def misses(record: TrialRecord) -> str:
    """Every constraint that a trial breaks, with how far; empty where it keeps all."""
    return ", ".join(map(missed, record.violations.values()))


def _share(share: float) -> str:
    if share >= 10:
        return f"{share:,.0f} times"
    return f"{100 * share:.0f} %" if share >= 0.1 else percent(share)
