"""What is wanted of a measurement, said in plain words by the operator."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.errors import InputError
from autotune.measure.constraint import QUANTITIES, Constraint
from autotune.measure.diagnosis import Compilations, Diagnosis, GraphBreak, Recompile
from autotune.measure.generated import Generated
from autotune.measure.measurement import Growth, Measurement, Replay, Signature
from autotune.measure.objective import PAGE_BYTES, Objective
from autotune.measure.units import UNITS
from tests.measure.test_measurement import measured

SAMPLES = tuple(float(n) for n in range(1, 102))
"""Median 51 s, 90th percentile 91 s, 99th 100 s."""


def measurement(**overrides: Any) -> Measurement:
    diagnosis = Diagnosis(
        compiled=True,
        graph_breaks=(GraphBreak(reason="x", count=3),),
        recompiles=(Recompile(reason="y"), Recompile(reason="z")),
    )
    fields = {"compile_s": 7.0, "peak_memory_bytes": 2**20, "relative_error": 1e-4, "diagnosis": diagnosis}
    return measured(*SAMPLES, **{**fields, **overrides})


OBJECTIVES = [
    ("latency", 51),
    ("p90", 91),
    ("p99", 100),
    ("throughput", 51 / 4),
    ("memory", 2**20),
    ("compile", 60),
    ("ttft", 3.0),
    ("tpot", 0.5),
    ("total:1", 60),
    ("total:10", 60 + 9 * 51),
]


@pytest.mark.parametrize(("text", "expected"), OBJECTIVES)
def test_what_is_minimised(text: str, expected: float) -> None:
    """Seconds of a call, an item (4 a call), the first call or the whole job; or bytes."""
    objective = Objective.parse(text)
    measured = generating(measurement(first_call_s=60.0, signature=four_items()))
    assert objective.value(measured) == pytest.approx(expected)
    assert objective.name == text


def generating(measured: Measurement) -> Measurement:
    """Two prompts of 11 new tokens each; the first token after 2 s and 4 s, the others each 0.5 s later."""
    made = Generated(lengths=(3, 9), new_tokens=11, batch=1, cold_s=(1.0, 1.0), cold=None)
    samples = measured.samples.model_copy(update={"parts_s": ((2.0, 7.0, 4.0, 9.0),) * len(SAMPLES)})
    return measured.model_copy(update={"samples": samples, "generated": made})


def test_text_that_was_not_generated_has_no_tokens() -> None:
    """A study of another task cannot be about them: the value is infinite, and no bound is kept."""
    assert Objective.parse("ttft").value(measurement()) == math.inf
    assert Constraint.parse("tpot <= 1h").violation(measurement()) > 0


def test_generation_is_stored_where_it_was_measured_only() -> None:
    """Records of other tasks have no such keys, and those that have them are read back."""
    plain, whole = measurement(), generating(measurement())
    assert "generated" not in plain.model_dump()
    assert "parts_s" not in plain.samples.model_dump()
    assert Measurement.model_validate_json(whole.model_dump_json()) == whole


def four_items() -> Signature:
    return measurement().signature.model_copy(update={"items_per_call": 4})


def test_the_objective_is_the_median_unless_said_otherwise() -> None:
    """Without a word from the operator the median is minimised; other words are refused."""
    assert Objective().value(measurement()) == pytest.approx(51)
    with pytest.raises(ValidationError):
        Objective(quantity="mean")  # type: ignore[arg-type]


def test_ratios_stay_defined() -> None:
    """The untuned model compiles nothing and may need no memory that could be seen: neither is 0."""
    untuned = measurement(first_call_s=51.0, compile_s=0.0, peak_memory_bytes=0)
    assert Objective.parse("compile").value(untuned) == 51
    assert Objective.parse("memory").value(untuned) == PAGE_BYTES


def test_an_objective_that_cannot_be_measured_is_never_the_best() -> None:
    """Where a framework does not tell its memory, its value is infinite."""
    assert Objective.parse("memory").value(measurement(peak_memory_bytes=None)) == math.inf


@pytest.mark.parametrize(
    ("text", "message", "tip"),
    [
        (
            "beauty",
            "objective='beauty': unknown",
            "latency, p90, p99, throughput, ttft, tpot, memory, compile, total:10000",
        ),
        ("total", "objective='total': how many calls?", "total:10000"),
        ("total:0", "how many calls?", "total:10000"),
        ("total:" + "9" * 400, "how many calls?", "at most 15 digits"),
        ("latency:5", "unknown", "total:10000"),
        ("latency,memory", "unknown", "total:10000"),
    ],
)
def test_an_objective_that_is_not_understood(text: str, message: str, tip: str) -> None:
    """It is quoted, with what could be said."""
    with pytest.raises(InputError) as caught:
        Objective.parse(text)
    assert message in str(caught.value)
    assert tip in str(caught.value.tip)


@pytest.mark.parametrize("content", [{"quantity": "total"}, {"quantity": "latency", "num_calls": 3}])
def test_only_a_total_has_calls(content: dict[str, Any]) -> None:
    """A manifest that says otherwise is damaged."""
    with pytest.raises(ValidationError):
        Objective.model_validate(content)


@pytest.mark.parametrize(
    ("text", "quantity", "relation", "bound"),
    [
        ("latency <= 5ms", "latency", "<=", 0.005),
        ("  p90   <=   2.5e-3 s ", "p90", "<=", 0.0025),
        ("peak_memory <= 2GiB", "peak_memory", "<=", 2 * 2**30),
        ("graph_breaks == 0", "graph_breaks", "==", 0),
        ("graph_breaks = 0", "graph_breaks", "==", 0),
        ("error <= 1e-4", "error", "<=", 1e-4),
        ("throughput >= 100", "throughput", ">=", 100),
        ("throughput>=1e3/s", "throughput", ">=", 1000),
        ("total:10000 <= 5min", "total:10000", "<=", 300),
    ],
)
def test_plain_words_are_understood(text: str, quantity: str, relation: str, bound: float) -> None:
    """QUANTITY <= NUMBER UNIT, blanks as one likes, becomes a bound in seconds, bytes, items a second or counts."""
    constraint = Constraint.parse(text)
    assert (constraint.quantity, constraint.relation) == (quantity, relation)
    assert constraint.bound == pytest.approx(bound, rel=1e-12)


def test_the_text_is_kept_as_the_operator_wrote_it() -> None:
    """Reports quote the operator's own words, blanks tidied."""
    assert Constraint.parse("  peak_memory   <= 2GiB ").text == "peak_memory <= 2GiB"


@pytest.mark.parametrize(
    ("text", "message", "tip"),
    [
        ("", "not understood", "graph_breaks == 0"),
        ("latency >= 5ms", "latency is wanted small", "latency <= NUMBER"),
        ("throughput <= 5", "throughput is wanted large", "throughput >= NUMBER"),
        ("throughput >= 5s", "throughput cannot be given in 's'", "/s"),
        ("total <= 5min", "how many calls?", "total:10000 <= 5min"),
        ("total:10 <= 5", "total:10 cannot be given without a unit", "s, ms, us"),
        ("graph_breaks < 1", "not understood", "<="),
        ("latency <= -5ms", "not understood", "<="),
        ("latency <= 5ms or so", "not understood", "<="),
        ("speed <= 5ms", "unknown quantity 'speed'", "latency, p90, p99, throughput, ttft, tpot, peak_memory"),
        ("latency <= 5", "latency cannot be given without a unit", "s, ms, us"),
        ("latency <= 1e-320s", "the bound is too small", "write 0, or at least"),
        ("graph_breaks == 0s", "graph_breaks cannot be given in 's'", "no unit"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_to_write(text: str, message: str, tip: str) -> None:
    """A constraint that cannot be read quotes itself, says why, and its tip shows what would be understood."""
    with pytest.raises(InputError) as caught:
        Constraint.parse(text)
    assert f"constraints={text!r}" in str(caught.value)
    assert message in str(caught.value)
    assert tip in str(caught.value.tip)


def test_a_bound_is_finite() -> None:
    """A bound too large for a number is refused: in the manifest's JSON it would become null."""
    with pytest.raises(InputError):
        Constraint.parse("latency <= 1e999s")
    with pytest.raises(InputError):
        Constraint.parse("latency <= 1e308h")


VIOLATIONS = [
    ("latency <= 50s", 1, 1 / 50),
    ("latency <= 51s", 0, 0),
    ("latency <= 60s", None, -9 / 60),
    ("p90 <= 90s", 1, 1 / 90),
    ("p99 <= 99s", 1, 1 / 99),
    ("compile <= 5s", 2, 2 / 5),
    ("total:2 <= 100s", 9, 9 / 100),
    ("throughput >= 0.1/s", 0.1 - 4 / 51, 1 - 40 / 51),
    ("throughput >= 0.05/s", None, 1 - 80 / 51),
    ("peak_memory <= 1MiB", 0, 0),
    ("peak_memory <= 1000KiB", 24 * 1024, 24 / 1000),
    ("memory <= 512KiB", 512 * 1024, 1),
    ("graph_breaks <= 5", None, -2 / 5),
    ("graph_breaks == 3", 0, 0),
    ("graph_breaks == 0", 3, 3),
    ("graph_breaks <= 0", 3, 3),
    ("graph_breaks == 5", 2, 2 / 5),
    ("recompiles <= 1", 1, 1),
    ("error <= 1e-3", None, -9e-1),
]


@pytest.mark.parametrize(("text", "amount", "share"), VIOLATIONS)
def test_how_far_a_bound_is_missed(text: str, amount: float | None, share: float) -> None:
    """Told as a share of the bound (of one unit where that is 0), 0 or less where it is kept; shown in its unit.

    >= is missed from below, and == either way.
    """
    measured = measurement(first_call_s=58.0, signature=four_items())
    constraint = Constraint.parse(text)
    assert constraint.violation(measured) == pytest.approx(share)
    miss = constraint.miss(measured)
    if share <= 0:
        assert miss is None
    else:
        assert (miss.amount, miss.share) == (pytest.approx(amount), pytest.approx(share))
        assert miss.constraint == constraint


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("peak_memory <= 100GiB", {"peak_memory_bytes": None}),
        ("graph_breaks <= 100", {"diagnosis": Diagnosis(compiled=True)}),
        ("recompiles == 0", {"diagnosis": Diagnosis(compiled=True)}),
    ],
)
def test_what_cannot_be_measured_keeps_no_promise(text: str, overrides: dict[str, Any]) -> None:
    """A bound on something that the framework does not tell counts as violated."""
    constraint, measured = Constraint.parse(text), measurement(**overrides)
    assert constraint.violation(measured) == 1
    miss = constraint.miss(measured)
    assert (miss.value, miss.amount, miss.share) == (None, None, 1)


def test_the_reference_has_no_error() -> None:
    """The untuned run, which made the reference outputs, keeps every bound on the error."""
    assert Constraint.parse("error <= 1e-9").violation(measurement(relative_error=None)) <= 0


def test_zero_is_a_measured_value() -> None:
    """No recompiles and no breaks are counts of 0, not unknowns."""
    clean = measurement(diagnosis=Diagnosis(compiled=True, graph_breaks=(), recompiles=()))
    assert Constraint.parse("graph_breaks == 0").violation(clean) == 0
    assert Constraint.parse("recompiles == 0").violation(clean) == 0


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_quantity_can_be_bounded_and_measured(quantity: str) -> None:
    """Each name in the table is read from a measurement and takes each unit of its kind."""
    wish = ">= 1e-12" if quantity == "throughput" else "<= 1e12"
    replay = Replay(
        sizes=({"batch": 1},), stream=(0,), cold_s=(1.0,), compilations=(Compilations(num_graphs=1, num_given_up=0),)
    )
    for unit in UNITS[QUANTITIES[quantity].unit]:
        constraint = Constraint.parse(f"{quantity} {wish}{unit}")
        growth = Growth(per_1000_calls_bytes=0, resolution_bytes=9, num_calls=9)
        whole = generating(measurement(replay=replay, growth=growth, compile_host_bytes=9))
        assert constraint.violation(whole) < 0
        assert constraint.miss(whole) is None


def test_a_constraint_survives_json() -> None:
    """A constraint in a study's manifest is read back as the same bound."""
    for text in ("peak_memory <= 2GiB", "throughput >= 5", "graph_breaks == 0", "total:7 <= 3min"):
        constraint = Constraint.parse(text)
        assert Constraint.model_validate_json(constraint.model_dump_json()) == constraint
