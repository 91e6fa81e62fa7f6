"""What a model's own error leads to: a sentence that says what a trial does, where PyTorch's does not."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.backends.torch.backend import TorchBackend
from autotune.errors import InputError
from autotune.measure.measurement import Stage
from autotune.trial.worker.main import failure_of

torch = pytest.importorskip("torch")

from autotune.backends.torch.tensors import array_of  # noqa: E402
from autotune.backends.torch.training import training_step  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402

pytestmark = pytest.mark.torch


class NeedsClosure(torch.optim.SGD):
    """Says so in its step alone, as SAM does."""

    def step(self, closure=None):
        assert closure is not None, "this optimizer needs a closure"
        return super().step()


class NeedsItElsewhere(torch.optim.SGD):
    """By a name of its own, by which no step gives it one."""

    def step(self, evaluate=None):
        assert evaluate is not None, "this optimizer needs a closure"


class Forces(torch.nn.Module):
    """The gradient of an energy; `inside` as forward() should do it."""

    def __init__(self, *, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        if not self.inside:
            return torch.autograd.grad(x.square().sum(), x)[0]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(x.square().sum(), x)[0]


def failing_step(loss, optimizer=torch.optim.SGD):
    """What an untuned training step raises."""
    model = torch.nn.Linear(3, 2)
    step = training_step(model, loss, optimizer(model.parameters(), lr=0.1), Config({"execution": "eager"}), UndoLog())
    with pytest.raises((AssertionError, InputError, RuntimeError)) as raised:
        step(torch.ones(4, 3))
    return raised.value


@pytest.fixture
def told(make_request, workload):
    """The sentence of a trial of the task in which this was raised."""

    def told(error, task, config=None):
        request = make_request(config, workload=workload.model_copy(update={"task": task}))
        return failure_of(error, Stage.COMPILE, request, TorchBackend(), "log").error

    return told


LOSSES = [
    (lambda model, x: {"loss": model(x).sum()}, "the loss gave a dict of loss and not one number"),
    (lambda model, x: (model(x).sum(), 1), "the loss gave a tuple and not one number"),
    (lambda model, x: model(x).sum().item(), "the loss gave a float and not one number"),
    (lambda model, x: None, "the loss gave a NoneType and not one number"),
    (lambda model, x: model(x), "a tensor of one number, its mean or its sum"),
    (lambda model, x: model(x).sum().detach(), "the loss must depend on weights that require gradients"),
]


@pytest.mark.parametrize(("loss", "words"), LOSSES)
def test_a_loss_that_is_no_number(told, loss, words):
    """What a training step is, and what the loss returned instead."""
    sentence = told(failing_step(loss), "train")
    assert "a training step is `loss(model, *inputs, *targets).backward()`" in sentence
    assert words in sentence


def test_an_optimizer_that_asks_for_a_closure(told):
    """It gets one, where there is room for it; else it is found by its own words, if its signature does not say it."""
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    optimizer, untuned = NeedsClosure(model.parameters(), lr=0.1), Config({"execution": "eager"})
    training_step(model, lambda model, x: model(x).sum(), optimizer, untuned, UndoLog())(torch.ones(4, 3))
    torch.testing.assert_close(model.weight, before - 0.4)
    sentence = told(failing_step(lambda model, x: model(x).sum(), NeedsItElsewhere), "train")
    assert "without a closure" in sentence


def test_an_optimizer_whose_signature_asks_for_a_closure():
    """LBFGS is refused before a step is made, in a trial as in a job; a closure that may be left out is not."""
    weights = [torch.nn.Parameter(torch.ones(2))]
    problem = TorchBackend.training.check_optimizer(torch.optim.LBFGS(weights))
    assert problem.startswith("LBFGS, whose step() needs a closure; a training step is")
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Rprop):
        assert TorchBackend.training.check_optimizer(kind(weights, lr=0.1)) is None


def test_a_model_that_differentiates(told):
    """A trial has gradients switched off, and the sentence gives the way that works."""
    x = torch.ones(3, requires_grad=True)
    with TorchBackend().inference():
        with pytest.raises(RuntimeError) as raised:
            Forces(inside=False)(x)
        assert torch.equal(Forces(inside=True)(x), torch.full((3,), 2.0))
    sentence = told(raised.value, "infer")
    assert "torch.no_grad()" in sentence
    assert "`with torch.enable_grad():`" in sentence
    assert '"gradients": True' in sentence


def test_a_cause_that_a_compiler_has_wrapped(told):
    """The exception that another one came from counts."""
    inner = RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    error = ValueError("the backend failed")
    error.__cause__ = inner
    assert "torch.no_grad()" in told(error, "infer")


@pytest.mark.parametrize(
    "error", [ValueError("no weights"), InputError("x does not require grad", tip="as it says"), KeyError("closure")]
)
def test_other_errors_are_left_as_they_are(told, error):
    """No hint for what is not known, nor for a sentence of this tool's own."""
    assert "torch.no_grad" not in told(error, "infer")
    assert "training step" not in told(error, "infer")


def test_a_config_that_fails_is_no_mistake_of_the_users(told):
    """The untuned model has run: what a compiler says of closures or gradients is about its own code."""
    for task in ("infer", "train"):
        error = RuntimeError("a closure that does not require grad")
        assert told(error, task, {"execution": "compile"}) == "RuntimeError: a closure that does not require grad"


TYPES = [each for each in vars(torch).values() if isinstance(each, torch.dtype) and each.is_floating_point]


@pytest.mark.parametrize("dtype", [each for each in TYPES if each.itemsize >= 1 and "float4" not in str(each)])
def test_floats_that_numpy_lacks(dtype):
    """Powers of two are the same in each of them."""
    values = [1.0, 2.0, 4.0]
    array = array_of(torch.tensor(values).to(dtype))
    assert array.dtype in (np.float16, np.float32, np.float64)
    assert array.tolist() == values


def test_other_types_that_numpy_lacks():
    """Quantised numbers are what they stand for; half complex ones keep their imaginary part."""
    quantised = torch.quantize_per_tensor(torch.tensor([-0.5, 0.0, 1.0]), 0.5, 8, torch.quint8)
    assert array_of(quantised).tolist() == [-0.5, 0.0, 1.0]
    assert array_of(torch.tensor([1 + 2j]).to(torch.complex32)).tolist() == [1 + 2j]
