"""Numbers with units and verdicts in words, for people."""

from __future__ import annotations

from autotune.statistics import Speedup, Verdict

ABOUT_THE_SECOND = {
    Verdict.FASTER: "faster",
    Verdict.TIE: "tie",
    Verdict.KEEP_UNTUNED: "slower",
    Verdict.UNDECIDED: "undecided",
}
"""A verdict in the words of a comparison of any two configs, of which the first need not be the untuned model."""
_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def seconds(value: float | None) -> str:
    """Three significant digits in a fitting unit; a dash for None."""
    if value is None:
        return "-"
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


def times(value: float) -> str:
    """A ratio, e.g. `1.53x`."""
    return f"{value:.2f}x"


def error(value: float | None) -> str:
    """A relative error; a dash for None (the reference itself)."""
    return "-" if value is None else f"{value:.1e}"


def percent(share: float) -> str:
    """A share as a percentage with one decimal, e.g. `1.4 %`."""
    return f"{100 * share:.1f} %"


def interval(speedup: Speedup) -> str:
    """A speed-up with its interval."""
    return f"{times(speedup.median)} (98 % interval {times(speedup.low)} to {times(speedup.high)})"
