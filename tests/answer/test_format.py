"""Numbers for people: three significant digits, a fitting unit, a dash for what is unknown."""

from __future__ import annotations

import pytest

from autotune.answer import format as formats
from autotune.answer.sections.confirmation import blocks_to_decide
from autotune.measure.constraint import Constraint, ConstraintMiss
from autotune.measure.statistics import Speedup
from autotune.study.budget import BlockPlan


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (1e-9, "0.001 us"),
        (12.34e-6, "12.3 us"),
        (1e-3, "1 ms"),
        (0.0123456, "12.3 ms"),
        (0.9, "900 ms"),
        (1.0, "1 s"),
        (59.96, "60 s"),
        (119.4, "119 s"),
        (120.0, "2 min 0 s"),
        (185.9, "3 min 5 s"),
        (3600.0, "60 min 0 s"),
    ],
)
def test_seconds(value: float | None, expected: str) -> None:
    """Seconds are shown in us, ms, s or minutes, whichever fits, with three significant digits."""
    assert formats.seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1 MiB"),
        (123_456_789, "118 MiB"),
        (2**30, "1 GiB"),
        (5 * 2**31, "10 GiB"),
    ],
)
def test_bytes(value: int | None, expected: str) -> None:
    """Bytes are shown in binary units, named as such, with three significant digits."""
    assert formats.num_bytes(value) == expected


@pytest.mark.parametrize(
    "text",
    [
        formats.seconds(0.99996),
        formats.seconds(0.99951e-3),
        formats.num_bytes(1010 * 2**20),
        formats.num_bytes(1023 * 2**10),
    ],
)
def test_no_exponents_for_people(text: str) -> None:
    """A figure that rounds up to a thousand, or has four digits before the next unit, is still written out."""
    assert "e+" not in text


@pytest.mark.parametrize(("value", "expected"), [(None, "-"), (0, "0"), (12, "12"), (1234567, "1,234,567")])
def test_counts(value: int | None, expected: str) -> None:
    """Counts are whole and grouped by thousands; unknown is a dash, never 0."""
    assert formats.count(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, "1.00x"), (1.526, "1.53x"), (0.5, "0.50x"), (12.3, "12.30x"), (0.094, "0.094x"), (0.00312, "0.0031x")],
)
def test_ratios(value: float, expected: str) -> None:
    """A speed-up has two decimals, or two digits where it is small, and an x."""
    assert formats.times(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "-"), (0.0, "0.0e+00"), (0.00123, "1.2e-03"), (1e-7, "1.0e-07")]
)
def test_errors(value: float | None, expected: str) -> None:
    """A relative error is shown by its magnitude; the reference, which has none, by a dash."""
    assert formats.error(value) == expected


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(None, "s", "-"), (0.0123, "s", "12.3 ms"), (2.31 * 2**30, "B", "2.31 GiB"), (1234.5, "/s", "1234/s"),
     (99.94, "/s", "99.9/s"), (3, "", "3"), (0.00123, "", "0.00123")],
)  # fmt: skip
def test_an_amount_has_its_unit(value: float | None, unit: str, expected: str) -> None:
    """Seconds, bytes, items a second, or a plain number."""
    assert formats.amount(value, unit) == expected


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("peak_memory <= 2GiB", 2.3 * 2**30, "peak_memory 2.3 GiB, 15 % over 2GiB"),
        ("peak_memory<=2 GiB", 2.02 * 2**30, "peak_memory 2.02 GiB, 1.0 % over 2 GiB"),
        ("latency <= 1us", 0.005, "latency 5 ms, 4,999 times over 1us"),
        ("throughput >= 100/s", 85, "throughput 85/s, 15 % under 100/s"),
        ("graph_breaks == 0", 3, "graph_breaks 3 instead of 0"),
        ("graph_breaks = 2", 3, "graph_breaks 3 instead of 2"),
        ("recompiles <= 0", 3, "recompiles 3, over 0"),
        ("recompiles <= 2", 3, "recompiles 3, 50 % over 2"),
        ("error <= 1e-3", 0.0012, "error 0.0012, 20 % over 1e-3"),
        ("total:10000 <= 5min", 360, "total:10000 6 min 0 s, 20 % over 5min"),
        ("peak_memory <= 2GiB", None, "peak_memory unknown here, peak_memory <= 2GiB was asked for"),
    ],
)
def test_a_miss_says_what_was_measured_and_how_far_it_is(text: str, value: float | None, expected: str) -> None:
    """With units, and the bound in the operator's own words."""
    assert formats.missed(ConstraintMiss(Constraint.parse(text), value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(1.0, "5s"), (60.0, "60s"), (61.0, "65s"), (120.0, "120s"), (121.0, "3m"), (601.0, "11m")]
)
def test_a_budget_holds_the_seconds(value: float, expected: str) -> None:
    """It is rounded up to what somebody types."""
    assert formats.as_budget(value) == expected


@pytest.mark.parametrize(
    ("num_done", "confidence", "gain", "more"),
    [
        (0, None, 1.1, 4),  # The first look needs them.
        (0, None, 1.6, 2),
        (1, 0.9, 1.3, 2),
        (3, 0.99, 1.1, 1),
        (4, 0.999, 1.1, 4),  # It was looked at already, and is not proven.
        (4, 0.94, 4.0, 12),
        (4, 0.6, 1.1, None),
        (8, 0.3, 1.1, None),  # It does not look faster.
        (16, 0.98, 1.1, None),
    ],
)
def test_blocks_that_may_decide(num_done: int, confidence: float | None, gain: float, more: int | None) -> None:
    """Up to the look by which a gain that goes on like this is proven; none where there would be too many."""
    assert blocks_to_decide(num_done, confidence, gain, BlockPlan()) == more


def test_an_interval_that_says_nothing_is_not_printed():
    """Its ends differ by more than a factor of a hundred: neither in words nor in a table."""
    wild, wide = Speedup(median=1.19, low=0.1, high=10.1), Speedup(median=1.19, low=0.5, high=1.4)
    assert formats.short_interval(wild) == formats.interval(wild) == "1.19x (its blocks differ too much to tell)"
    assert (formats.ends(wild), formats.ends(wide)) == (("-", "-"), ("0.50x", "1.40x"))
    assert formats.short_interval(wide) == "1.19x (0.50x to 1.40x)"
    assert formats.interval(wide) == "1.19x (98 % interval 0.50x to 1.40x)"
