"""Numbers for people: three significant digits, a fitting unit, a dash for what is unknown."""

from __future__ import annotations

import pytest

from autotune.report import units


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0.0, "0 us"),
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
    assert units.seconds(value) == expected


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
    assert units.num_bytes(value) == expected


@pytest.mark.parametrize(
    "text",
    [units.seconds(0.99996), units.seconds(0.99951e-3), units.num_bytes(1010 * 2**20), units.num_bytes(1023 * 2**10)],
)
def test_no_exponents_for_people(text: str) -> None:
    """A figure that rounds up to a thousand, or has four digits before the next unit, is still written out."""
    assert "e+" not in text


@pytest.mark.parametrize(("value", "expected"), [(None, "-"), (0, "0"), (12, "12"), (1234567, "1,234,567")])
def test_counts(value: int | None, expected: str) -> None:
    """Counts are whole and grouped by thousands; unknown is a dash, never 0."""
    assert units.count(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(1.0, "1.00x"), (1.526, "1.53x"), (0.5, "0.50x"), (12.3, "12.30x")])
def test_ratios(value: float, expected: str) -> None:
    """A speed-up has two decimals and an x."""
    assert units.times(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "-"), (0.0, "0.0e+00"), (0.00123, "1.2e-03"), (1e-7, "1.0e-07")]
)
def test_errors(value: float | None, expected: str) -> None:
    """A relative error is shown by its magnitude; the reference, which has none, by a dash."""
    assert units.error(value) == expected
