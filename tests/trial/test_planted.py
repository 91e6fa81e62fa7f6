"""No wrong variant of a model passes the check of a trial, and no right one is refused."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from autotune.backends.registry import load_backend
from autotune.trial.worker import use
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY
from tests.trial.planted import Judge, right_variants, wrong_variants
from tests.trial.planted_use import UseJudge, right, wrong

FRAMEWORKS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "mindspore")]
NUMBERS = [17, pytest.param(210, marks=pytest.mark.slow)]


def workload_of(framework, function, task):
    importlib.import_module(framework)
    reference = f"{Path(__file__).with_name(f'planted_{framework}.py')}:{function}"
    return Workload(
        model="planted", reference=reference, framework=framework, device="cpu", task=task, search_path=str(REPOSITORY)
    )


@pytest.fixture
def judge(framework, sketches):
    return Judge(load_backend(framework), workload_of(framework, "build", "infer"))


@pytest.mark.fast_cases("torch")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("num", NUMBERS)
def test_no_wrong_variant_passes(judge, num):
    """A slice zeroed, scaled or stale, channels swapped, another type, NaN, a lost output, an input not written, a
    buffer or attribute not moved, another float left in one, a number baked in."""
    passed = [variant.name for variant in wrong_variants(num) if judge.verdict(variant) is None]
    assert passed == []


@pytest.mark.fast_cases("torch")
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("num", NUMBERS)
def test_no_right_variant_is_refused(judge, num):
    """Rounding in any of the outputs, at the scale of its channel; a time, a random float or a residual left behind."""
    refused = [(variant.name, why) for variant in right_variants(num) if (why := judge.verdict(variant)) is not None]
    assert refused == []


@pytest.mark.parametrize("sketches", [True], indirect=True)
@pytest.mark.parametrize("framework", FRAMEWORKS[:1])
def test_what_is_not_compared_whole_is_named(judge):
    """The right variant passes, and the trial's record has a sentence for each large output."""
    assert judge.verdict(next(right_variants(1))) is None
    assert "of output['detections'], which is large, a fixed sample and sums over all of it were compared" in judge.said


@pytest.fixture
def use_judge(framework, tmp_path, monkeypatch):
    monkeypatch.setattr(use, "LONGEST_S", 600.0)
    backend = load_backend(framework)
    return UseJudge(backend, workload_of(framework, "build_used", "infer"), tmp_path)


@pytest.mark.parametrize(
    ("framework", "every"),
    [
        pytest.param(name, every, marks=[getattr(pytest.mark, name), *([pytest.mark.slow] if every == 1 else [])])
        for name, every in (("torch", 12), ("torch", 1), ("mindspore", 61), ("mindspore", 1))
    ],
)
def test_no_finalist_passes_that_is_wrong_as_a_job_uses_it(use_judge, framework, every):
    """In a later call, for a refilled buffer, beyond the example's range, where the mask hides something, for another
    number or tensor of one value, with NaN or infinity, among equal values; or its outputs lie where others lie."""
    variants = [*wrong(load_backend(framework))]
    assert len(variants) > 300
    chosen = variants[::every]
    found = {each.name: (each.words, use_judge.verdict(each)[0]) for each in chosen}
    assert [name for name, (_, said) in found.items() if said is None] == []
    assert [(name, said) for name, (words, said) in found.items() if words not in said] == []


@pytest.mark.fast_cases("torch")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_finalist_is_refused_that_is_right_as_a_job_uses_it(use_judge, framework):
    """Whatever it rounds otherwise; and all inputs were varied."""
    found = [(each.name, *use_judge.verdict(each)) for each in right(load_backend(framework))]
    assert found == [(name, None, ()) for name, *_ in found]
