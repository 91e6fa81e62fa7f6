"""What tests of trials share."""

from __future__ import annotations

import pytest

from autotune.measure import sketch


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "sketched"])
def sketches(request, monkeypatch):
    """Once with all that is compared, and once as large models are: what has more than 60 elements is not kept."""
    if request.param:
        for name, value in {"MOST_WHOLE": 60, "NUM_SUMS": 64, "NUM_SAMPLED": 32, "_LEAST_SLICES": 2}.items():
            monkeypatch.setattr(sketch, name, value)
    return request.param
