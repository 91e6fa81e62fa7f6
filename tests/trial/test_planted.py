"""No wrong variant of a model passes the check of a trial, and no right one is refused."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from autotune.backends.registry import load_backend
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY
from tests.trial.planted import Judge, right_variants, train_verdict, wrong_variants

FRAMEWORKS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("torch", "mindspore")]
NUMBERS = [17, pytest.param(210, marks=pytest.mark.slow)]


def workload_of(framework, function, task):
    importlib.import_module(framework)
    reference = f"{Path(__file__).with_name(f'planted_{framework}.py')}:{function}"
    return Workload(
        model="planted", reference=reference, framework=framework, device="cpu", task=task, search_path=str(REPOSITORY)
    )


@pytest.fixture
def judge(framework):
    return Judge(load_backend(framework), workload_of(framework, "build", "infer"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("num", NUMBERS)
def test_no_wrong_variant_passes(judge, num):
    """A slice zeroed, scaled or stale, channels swapped, another type, NaN, a lost output, an input not written, a
    buffer or attribute not moved, another float left in one, a number baked in."""
    passed = [variant.name for variant in wrong_variants(num) if judge.verdict(variant) is None]
    assert passed == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("num", NUMBERS)
def test_no_right_variant_is_refused(judge, num):
    """Rounding in any of the outputs, at the scale of its channel; a time, a random float or a residual left behind."""
    refused = [(variant.name, why) for variant in right_variants(num) if (why := judge.verdict(variant)) is not None]
    assert refused == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_wrong_training_step_passes(framework):
    """A layer whose gradient is zero or a fifth too large, statistics that do not move, a counter that stays."""
    found = train_verdict(load_backend(framework), workload_of(framework, "build_training", "train"), num_layers=4)
    assert found.pop("{}") is None
    assert [name for name, why in found.items() if why is None] == []
    assert "running_" in found["{'keeps_statistics': True}"] or "moving_" in found["{'keeps_statistics': True}"]
    assert "model.count" in found["{'counts_not': True}"]
