"""Objects that take turns in a model, in the check of a trial: compiled code may be left with the first of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.steps import Steps
from autotune.trial.worker.subjects import build_subject
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY
from tests.trial.planted import Judge, Variant

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class Slots(torch.nn.Module):
    """A ring of plain objects; each call moves on by one, and draws a token, a list and a callback of its own."""

    def __init__(self, num, *, is_stuck=False):
        super().__init__()
        self.layer, self.is_stuck = torch.nn.Linear(4, 4), is_stuck
        self.slots = [object() for _ in range(num)]
        self.now, self.token, self.notes, self.callback = self.slots[0], None, [], abs

    def forward(self, x):
        following = (self.slots.index(self.now) + 1) % len(self.slots)
        self.now = self.slots[1 if self.is_stuck else following]
        self.token, self.notes, self.callback = object(), [], lambda: None
        return torch.tanh(self.layer(x))


def build(num=2):
    torch.manual_seed(0)
    return Slots(num), (torch.randn(4, 4),)


def build_training(num=2, is_stuck=False):
    torch.manual_seed(0)
    model = Slots(num, is_stuck=is_stuck)
    loss, optimizer = lambda model, x: model(x).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "inputs": torch.randn(4, 4), "loss": loss, "optimizer": optimizer}


def stuck(backend, model):
    """The second object is the current one after each call, as code has it that was compiled in the first."""
    del backend

    def step(x):
        output = model(x)
        model.now = model.slots[1]
        return output

    return step


def workload_of(function, **arguments):
    return Workload(
        model="slots",
        reference=f"{Path(__file__)}:{function}",
        framework="torch",
        device="cpu",
        task="train" if function == "build_training" else "infer",
        arguments=arguments,
        search_path=str(REPOSITORY),
    )


@pytest.mark.parametrize("num", [2, 3, 4])
def test_calls_that_leave_another_object_in_place_are_refused(num):
    """However many calls are made, and though the outputs are right; the untuned model passes its own check."""
    workload = workload_of("build", num=num)
    judge = Judge(load_backend("torch"), workload)
    assert judge.verdict(Variant("right", lambda backend, model: model)) is None
    assert "model.now" in judge.verdict(Variant("stuck", stuck))


@pytest.mark.parametrize("num", [2, 3])
def test_steps_that_do_are_refused(num):
    """After the fourth step or the fifth; gradients and losses are right."""

    def seen(**arguments):
        backend = load_backend("torch")
        backend.prepare("cpu", 0)
        workload = workload_of("build_training", num=num, **arguments)
        subject = build_subject(workload, backend)
        task = Steps(workload, subject, backend)
        step = task.compile(Config({"execution": "eager"}), UndoLog())
        first = subject.inputs[0].call(step)
        return task.gate, task.observe(step, first, reference_tolerance=None if arguments else 1e-3)

    gate, reference = seen()
    reference = gate.unpacked(gate.packed(reference))
    gate.errors(reference, seen()[1], 1e-3)
    with pytest.raises(WrongResultError, match=r"model\.now"):
        gate.errors(reference, seen(is_stuck=True)[1], 1e-3)


def test_a_reference_of_a_release_that_saw_no_objects_is_used():
    """Of what it does not hold nothing is known."""
    judge = Judge(load_backend("torch"), workload_of("build", num=2))
    old = [part for part in judge.reference.left if part.form != "object" and not part.name.endswith("last call")]
    judge.reference = replace(judge.reference, left=old, has_turns=False)
    assert judge.verdict(Variant("right", lambda backend, model: model)) is None
