"""Lazy modules: a trial gives them their parameters before anything is read of the model."""

from __future__ import annotations

from functools import partial

import pytest

from autotune.backends.torch.backend import TorchBackend
from autotune.bench import probe
from autotune.errors import InputError
from autotune.trial.worker.subjects import build_subject

torch = pytest.importorskip("torch")

from autotune.backends.torch.given_model import materialise  # noqa: E402

pytestmark = pytest.mark.torch

MODEL = """
import torch


def block():
    return torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.LazyBatchNorm1d(), torch.nn.Dropout(0.5))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.blocks = torch.nn.ModuleList([block() for _ in range(3)])

    def forward(self, x, *, scale=1.0):
        x = self.norm(x) * scale
        for each in self.blocks:
            x = each(x)
        return x


def build(seed=0):
    torch.manual_seed(seed)
    model = Net()
    return {
        "model": model.eval(), "inputs": ((torch.randn(4, 8),), {"scale": 2.0}),
        "targets": (torch.randn(4, 8),), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": lambda called, x, y, scale: torch.nn.functional.mse_loss(called(x, scale=scale), y),
    }
"""


@pytest.fixture
def lazy(tmp_path, workload):
    """A workload of the file's model, for a task."""
    path = tmp_path / "lazy.py"
    path.write_text(MODEL)
    there = {"framework": "torch", "model": "lazy", "reference": f"{path}:build"}

    def lazy(task="infer"):
        return workload.model_copy(update={**there, "task": task})

    return lazy


@pytest.mark.parametrize("task", ["infer", "train"])
def test_a_trial_knows_the_parameters(lazy, task):
    """Their number is in the signature; for training they are made by the loss, in the mode that it is called in."""
    backend = TorchBackend()
    backend.prepare("cpu", 0)
    subject = build_subject(lazy(task), backend)
    assert subject.signature.num_parameters == 3 * (72 + 33) + 33
    assert subject.model.training is (task == "train")
    for name, buffer in subject.model.named_buffers():
        expected = torch.ones_like(buffer) if name.endswith("running_var") else torch.zeros_like(buffer)
        assert torch.equal(buffer, expected), f"{name} is as the first call finds it"


def test_the_weights_are_those_of_a_first_call(lazy):
    """Each trial and a job that seeds in the same way have the same ones."""

    def weights(first_call):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.LazyLinear(4)).eval()
        first_call(model, partial(model, torch.ones(2, 3)))
        return [each.detach() for each in model.parameters()]

    made, plain = weights(materialise), weights(lambda _, call: call())
    assert [each.shape for each in made] == [(8, 3), (8,), (4, 8), (4,)]
    assert all(map(torch.equal, made, plain))


def test_another_model_is_not_called():
    """One more call could change what it holds."""
    materialise(torch.nn.Linear(2, 2), lambda: pytest.fail("it was called"))


def test_a_first_call_that_fails_leaves_no_hooks():
    """The model's own error comes through."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Linear(7, 7))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        materialise(model, partial(model, torch.ones(2, 3)))
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_repeated_blocks_are_found(lazy):
    """What the probe declares of a lazy model is what it declares of any other."""
    said = probe._declared(lazy().model_dump_json())
    assert said["repeated"] == "blocks.*"


def test_a_job_is_told_to_call_it_first():
    """Without shapes there is no telling whether it is the model that was tuned."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(8))
    with pytest.raises(InputError, match="no shape before the model's first call") as refused:
        TorchBackend().parameters(model)
    assert "call the model once before apply()" in refused.value.tip
    model(torch.ones(2, 3))
    assert [spec.shape for _, spec in TorchBackend().parameters(model)] == [(8, 3), (8,)]
