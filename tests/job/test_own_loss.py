"""A training step whose loss is what the model returns: given labels among its inputs, as trainers call it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import autotune
from autotune.backends.registry import load_backend
from autotune.errors import InputError
from autotune.trial.worker.subjects import build_subject
from autotune.workload.kinds.train import own_loss
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.nn import functional  # noqa: E402


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


FORMS = {
    "attribute": Output,
    "dict": lambda scores, loss: {"logits": scores, "loss": loss},
    "tuple": lambda scores, loss: (loss, scores),
    "alone": lambda _, loss: loss,
}


class Net(torch.nn.Module):
    """Returns its loss in one of these forms."""

    def __init__(self, form="attribute"):
        super().__init__()
        self.form = FORMS[form]
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, labels):
        scores = self.linear(x)
        return self.form(scores, functional.cross_entropy(scores, labels))


def made(form="attribute"):
    torch.manual_seed(0)
    model = Net(form).train()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


X, LABELS = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1, 2])


def by_hand(num_steps=3):
    model, optimizer = made("alone")
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        value = model(X, LABELS)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


@pytest.mark.fast_cases("loss-attribute", "loss-tuple", "model-dict", "model-alone")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scope", ["loss", "model"])
def test_a_job_gives_no_loss_where_the_model_returns_it(tmp_path, form, scope):
    """Of whatever form, with the model alone and with the loss compiled: the losses are those of the plain loop."""
    torch._dynamo.reset()
    model, optimizer = made(form)
    config = {"execution": "compile", "backend": "aot_eager", "scope": scope}
    path = export(tmp_path / "best.yaml", "torch", config, model, [X, LABELS], task="train")
    step = autotune.load(path).training_step(model, optimizer=optimizer, margin=None, on_mismatch="raise")
    assert [float(step(X, labels=LABELS)) for _ in range(3)] == pytest.approx(by_hand())


def test_a_step_needs_an_optimizer(tmp_path):
    """Which one trains is the job's to say."""
    model, _ = made()
    path = export(tmp_path / "best.yaml", "torch", {"execution": "eager"}, model, [X, LABELS], task="train")
    with pytest.raises(InputError, match="given no optimizer"):
        autotune.load(path).training_step(model)


def test_what_is_no_loss_is_said_with_what_it_is():
    """Several losses in a dict are for the author to add up; an output without one needs labels."""
    from autotune.backends.torch.training import _require_number

    with pytest.raises(InputError, match="the loss gave a dict of boxes, classes and not one number") as caught:
        _require_number({"boxes": torch.ones(()), "classes": torch.ones(())})
    assert "labels among its inputs" in caught.value.tip
    scores = torch.ones(2, 3)
    assert own_loss(lambda: Output(scores)) is None
    assert own_loss(lambda: scores) is scores


RETURNED = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, labels=None):
        scores = self.linear(x)
        if labels is None:
            return {"logits": scores}
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


def build(seed=0):
    torch.manual_seed(seed)
    model = Net()
    for weight in model.parameters():
        weight.requires_grad_(weight.ndim > 1)
    return model, {"x": torch.randn(6, 4), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}
"""


def test_a_function_that_returns_model_and_inputs_alone_is_trained(tmp_path, workload):
    """The loss is the model's, the optimizer AdamW over what is not frozen, and one step moves the weights."""
    path = tmp_path / "returned.py"
    path.write_text(RETURNED)
    there = {"framework": "torch", "model": "returned", "reference": f"{path}:build", "task": "train"}
    backend = load_backend("torch")
    backend.prepare("cpu", 0)
    subject = build_subject(workload.model_copy(update=there), backend)
    optimizer = subject.work.optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [tuple(each.shape) for each in optimizer.param_groups[0]["params"]] == [(3, 4)]
    before = subject.model.linear.weight.detach().clone()
    from autotune.backends.undo import UndoLog
    from autotune.config import Config

    step = backend.training.training_step(
        subject.model, subject.work.loss, optimizer, Config({"execution": "eager"}), UndoLog()
    )
    subject.inputs[0].call(step)
    assert not torch.equal(subject.model.linear.weight, before)
