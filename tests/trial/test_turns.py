"""Objects that take turns in a model, in the check of a trial: compiled code may be left with the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.backends.registry import load_backend
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY
from tests.trial.planted import Judge, Variant

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class Slots(torch.nn.Module):
    """A ring of plain objects; each call moves on by one, and draws a token, a list and a callback of its own."""

    def __init__(self, num):
        super().__init__()
        self.slots = [object() for _ in range(num)]
        self.now, self.token, self.notes, self.callback = self.slots[0], None, [], abs

    def forward(self, x):
        self.now = self.slots[(self.slots.index(self.now) + 1) % len(self.slots)]
        self.token, self.notes, self.callback = object(), [], lambda: None
        return torch.tanh(x)


def build(num=2):
    torch.manual_seed(0)
    return Slots(num), (torch.randn(4, 4),)


def stuck(backend, model):
    """The second object is the current one after each call, as code has it that was compiled in the first."""
    del backend

    def step(x):
        output = model(x)
        model.now = model.slots[1]
        return output

    return step


@pytest.mark.parametrize("num", [2, 3, 4])
def test_calls_that_leave_another_object_in_place_are_refused(num):
    """However many calls are made, and though the outputs are right; the untuned model passes its own check."""
    reference = f"{Path(__file__)}:build"
    workload = Workload(
        model="slots",
        reference=reference,
        framework="torch",
        device="cpu",
        arguments={"num": num},
        search_path=str(REPOSITORY),
    )
    judge = Judge(load_backend("torch"), workload)
    assert judge.verdict(Variant("right", lambda backend, model: model)) is None
    assert "model.now" in judge.verdict(Variant("stuck", stuck))
