"""What a trial brings back: every sample kept, statistics derived, unknown is None, and the JSON form is exact."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from autotune.environment import Environment
from autotune.measure.diagnosis import Diagnosis, GraphBreak, Recompile
from autotune.measure.measurement import (
    Failure,
    Latency,
    Measurement,
    Outcome,
    Reason,
    Samples,
    Signature,
    TensorSpec,
    Usage,
)

OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
BREAK = GraphBreak(reason="data-dependent branch", location="model.py:3")

LIVE = Samples(
    latency_s=(0.1, 0.2, 0.3), warmup_s=(0.5,), steady=True, ended_by="turns", turns=(2, 1),
    usage=Usage(cpu_s=(0.1, 0.0, 1 / 3), page_faults=(0, 7, 10**6), involuntary_switches=(0, 0, 1)),
)  # fmt: skip


def measured(*latency_s: float, **overrides: Any) -> Measurement:
    """A measurement with these latencies; keywords override."""
    fields: dict[str, Any] = {
        "samples": Samples(latency_s=latency_s or (0.1,), steady=True, ended_by="precision"),
        "first_call_s": 2.0,
        "compile_s": 1.5,
        "peak_memory_bytes": 3 * 2**20,
        "compile_peak_memory_bytes": None,
        "relative_error": 1e-6,
        "output_errors": (1e-6, 0.0),
        "diagnosis": Diagnosis(compiled=True, num_graphs=2, graph_breaks=(BREAK,), recompiles=()),
        "signature": Signature(
            model_class="m.Model",
            num_parameters=10,
            structure_sha256="0" * 64,
            inputs=(TensorSpec(shape=(8, 3), dtype="float32"),),
            items_per_call=8,
        ),
        "environment": Environment(
            python="3.11.7",
            system="Linux",
            processor="x",
            num_cores=2,
            memory_bytes=2**33,
            governor=None,
            load_1m=0.1,
            device="cpu",
            packages={"torch": "2.13.0"},
            variables={"OMP_NUM_THREADS": "2"},
        ),
        **overrides,
    }
    return Measurement.model_validate(fields)


def failed(**overrides: Any) -> Failure:
    return Failure.model_validate({"reason": "crash", "stage": "run", "error": "SIGSEGV", **overrides})


def test_percentiles_interpolate_between_samples() -> None:
    """Median, 90th and 99th percentile of the samples, whatever their order, linear between two of them."""
    assert Latency.of(tuple(float(n) for n in reversed(range(101)))) == Latency(p50=50, p90=90, p99=99)
    two = Latency.of((3.0, 1.0))
    assert (two.p50, two.p90, two.p99) == pytest.approx((2.0, 2.8, 2.98))
    assert Latency.of((0.25,)) == Latency(p50=0.25, p90=0.25, p99=0.25)


def test_a_warm_up_and_an_outlier_change_nothing() -> None:
    """A slow warm-up is on record and in no statistic; throughput is the items of one call by the median latency."""
    samples = Samples(latency_s=(0.5, 0.5, 9.0), warmup_s=(100.0, 50.0), steady=False, ended_by="time")
    assert measured(samples=samples).latency == Latency.of((0.5, 0.5, 9.0))
    assert measured(samples=samples).throughput == pytest.approx(16)


@pytest.mark.parametrize("bad", [(), (0.0,), (-1.0,), (1.0, float("nan")), (1.0, 0.0)], ids=str)
def test_a_latency_is_positive_and_there(bad: tuple[float, ...]) -> None:
    """No samples, or one that is zero, negative or NaN, is no measurement."""
    with pytest.raises(ValidationError):
        Samples(latency_s=bad, steady=True, ended_by="time")


def test_breaks_and_recompiles_are_counted() -> None:
    """With their repetitions; 0 where there are none, and None where a framework does not tell."""
    breaks = (BREAK, BREAK.model_copy(update={"count": 3}))
    full = Diagnosis(compiled=True, graph_breaks=breaks, recompiles=(Recompile(reason="shape"),) * 2)
    clean, silent = Diagnosis(compiled=True, graph_breaks=(), recompiles=()), Diagnosis(compiled=True)
    assert [each.num_graph_breaks for each in (full, clean, silent)] == [4, 0, None]
    assert [each.num_recompiles for each in (full, clean, silent)] == [2, 0, None]


@pytest.mark.parametrize("reason", Reason)
def test_the_machine_and_the_end_of_the_time_are_not_the_config_s_doing(reason: Reason) -> None:
    """The sampler learns from every failure that the config caused; the machine's own are not held against it."""
    assert failed(reason=reason).blames_config is (reason not in (Reason.SETUP, Reason.OUT_OF_TIME, Reason.LOST))


@pytest.mark.parametrize(
    "outcome",
    [
        measured(0.1, 1 / 3, 1e-9, 5e-324),
        measured(samples=LIVE),
        measured(peak_memory_bytes=None, relative_error=None, diagnosis=Diagnosis(compiled=False, note="eager")),
        failed(),
        failed(reason="wrong_result", stage="check", evidence="/x/stderr.txt", relative_error=0.5, error="ä\n\x00"),
    ],
    ids=["floats", "live", "unknowns", "failure", "failure with evidence"],
)
def test_an_outcome_survives_json(outcome: Outcome) -> None:
    """What the child writes is what the parent reads, every float bit for bit, None still None, kind and all."""
    read = OUTCOME.validate_json(outcome.model_dump_json())
    assert type(read) is type(outcome)
    assert read == outcome


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "success"},
        {"reason": "crash", "stage": "run", "error": "x"},
        {"kind": "failure", "reason": "bad luck", "stage": "run", "error": "x"},
        {"kind": "failure", "reason": "crash", "stage": "nowhere", "error": "x"},
        {"kind": "failure", "reason": "crash", "stage": "run"},
        {"kind": "failure", "reason": "crash", "stage": "run", "error": "x", "extra": 1},
    ],
    ids=str,
)
def test_an_outcome_of_another_form_is_refused(content: dict[str, Any]) -> None:
    """An outcome without its kind, with an unknown word, a missing or an extra key is not guessed at."""
    with pytest.raises(ValidationError):
        OUTCOME.validate_python(content)


def test_percentiles_that_are_kept_are_no_part_of_a_measurement():
    """They are made once; a measurement that has made them is equal to one that has not and is written alike, and a
    copy with other samples has its own."""
    one, fresh = measured(0.1, 0.3), measured(0.1, 0.3)
    assert one.latency is one.latency
    assert one == fresh
    assert one.model_dump_json() == fresh.model_dump_json()
    assert one.model_copy(update={"samples": LIVE}).latency.p50 == 0.2
