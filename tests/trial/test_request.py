"""Copies of a trial request: each method changes its own fields and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.measure.sampling import SamplingPlan
from autotune.trial.request import ColdCompile, Limits, TrialRequest

BEFORE = ColdCompile(trial=3, compile_s=2.0, peak_memory_bytes=None)
COPIES: list[tuple[Callable[[TrialRequest], TrialRequest], dict[str, object]]] = [
    (lambda request: request.limited_to(Limits(total=5)), {"limits": Limits(total=5)}),
    (lambda request: request.profiled_in(Path("/p")), {"profile_in": "/p"}),
    (lambda request: request.compared_with(Path("/r.npz")), {"reference": "/r.npz"}),
    (lambda request: request.cached_in(Path("/c"), cold=False), {"cache": "/c", "cold": False}),
    (lambda request: request.with_toolchain(Path("/t")), {"toolchain": "/t"}),
    (lambda request: request.keeping_cache_in(Path("/k")), {"keep_cache_in": "/k"}),
    (lambda request: request.compiled_already(BEFORE), {"cold": False, "compiled_before": BEFORE}),
    (
        lambda request: request.sampled_by(SamplingPlan(max_samples=7)),
        {"sampling": SamplingPlan(max_samples=7)},
    ),
]


@pytest.mark.parametrize(("copy", "changed"), COPIES)
def test_a_copy_changes_its_own_fields(make_request, copy, changed):
    """The rest stays as it was, and so does the request that was copied."""
    request = make_request()
    before = dict(request)
    assert dict(copy(request)) == {**before, **changed}
    assert dict(request) == before


def test_a_trial_from_empty_caches_takes_nothing_over(make_request):
    """It pays for its own compile."""
    plain = make_request()
    assert plain.compiled_already(BEFORE).from_empty_caches() == plain
