"""Training steps of which several make one update of the weights: `training_step(accumulate=, clip_grad_norm=)`."""

from __future__ import annotations

import contextlib

import pytest

import autotune
from autotune.errors import InputError
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]

from tests.job.test_training_steps import (  # noqa: E402
    COMPILED,
    StopError,
    batch,
    failing_at_run,
    failing_to_compile,
    loss,
    made,
    warned,
)

ACCUMULATE, CLIP, EPOCH = 4, 0.5, 10
"""An epoch ends within a group."""


class Net(torch.nn.Module):
    """Statistics that move, and two graphs, so that one of them can fail with half of a step done."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        hidden = self.norm(self.first(x))
        torch._dynamo.graph_break()
        return self.last(torch.tanh(hidden))


class Loop:
    """Trains in epochs, with a scheduler, and notes after which calls the weights were updated."""

    def __init__(self, make, num_steps=200, loss=loss):
        self.model = made(Net).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.step = make(self.model, loss, self.optimizer)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.99)
        self.losses, self.updates = [], []
        for number in range(num_steps):
            with contextlib.suppress(StopError):
                self.losses.append(self.step(batch(number).double()).item())
            if self.step.has_updated:
                self.updates.append(number)
                self.scheduler.step()
            if number % EPOCH == EPOCH - 1:
                self.step.flush()
                if self.step.has_updated:
                    self.updates.append("flush")
                    self.scheduler.step()


class ByHand:
    """The same as it is written without this tool: the gradients of a group are averaged, whatever its size."""

    def __init__(self, model, loss, optimizer):
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.values, self.has_updated = [], False
        optimizer.zero_grad()

    def __call__(self, x):
        gradients = [each.grad if each.grad is None else each.grad.clone() for each in self.model.parameters()]
        value = self.loss(self.model, x)
        try:
            value.backward()
        except StopError:
            for each, gradient in zip(self.model.parameters(), gradients, strict=True):
                each.grad = gradient
            raise
        self.values.append(value)
        self.has_updated = False
        if len(self.values) == ACCUMULATE:
            self.flush()
        return value.detach()

    def flush(self):
        self.has_updated = bool(self.values)
        if self.values:
            for each in self.model.parameters():
                each.grad /= len(self.values)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.values = []


@pytest.fixture
def tuned(tmp_path):
    """`tuned(config)` makes a step of a model, loss and optimizer, as from an export that fits the model."""

    def tuned(config, **policy):
        def make(model, loss, optimizer):
            path = export(tmp_path / "best.yaml", "torch", config, model, [batch(0).double()], task="train")
            how = {"accumulate": ACCUMULATE, "clip_grad_norm": CLIP, "margin": None, **policy}
            return autotune.load(path).training_step(model, loss, optimizer, **how)

        return make

    return tuned


def assert_alike(one, other, error=1e-7):
    assert one.updates == other.updates
    torch.testing.assert_close(one.losses, other.losses, rtol=error, atol=error)
    torch.testing.assert_close(one.model.state_dict(), other.model.state_dict(), rtol=error, atol=error)


def test_a_group_goes_on_where_nothing_is_flushed(tuned):
    """It may begin in one epoch and end in another, and clipping is its own matter."""
    model = made(Net).double()
    step = tuned(COMPILED, clip_grad_norm=None)(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.first.weight.clone()
    for number in range(3):
        step(batch(number).double())
    assert torch.equal(model.first.weight, before)
    step(batch(3).double())
    assert not torch.equal(model.first.weight, before)
    step.flush()
    assert not step.has_updated


@pytest.mark.parametrize("part", ["forward", "backward"])
@pytest.mark.parametrize("how", ["compile", "run"])
def test_a_call_that_fails_within_a_group(tuned, compiler, caplog, how, part):
    """What the calls before it have added up stays, what it has half added does not, and the group is completed
    untuned."""
    failing = failing_to_compile(part) if how == "compile" else failing_at_run(6 if part == "forward" else 5, part)
    loop = Loop(tuned(compiler(failing)), num_steps=30)
    assert_alike(loop, Loop(ByHand, num_steps=30))
    assert len(warned(caplog)) == 1
    assert autotune.stats(loop.step).state == "untuned"


def test_the_jobs_own_exception_within_a_group(tuned, caplog):
    """Its batch is not in the group."""
    found = []
    for make in (tuned(COMPILED), ByHand):
        calls = []

        def raising(model, x, calls=calls):
            value = loss(model, x)
            calls.append(value)
            if len(calls) == 3:
                value.register_hook(stop)
            return value

        found.append(Loop(make, num_steps=30, loss=raising))
    assert_alike(*found)
    assert len(found[0].losses) == 29
    assert warned(caplog) == []


def stop(_):
    raise StopError


@pytest.mark.parametrize(("name", "value"), [("accumulate", 0), ("accumulate", 1.5), ("clip_grad_norm", 0.0)])
def test_what_is_no_group(tuned, name, value):
    """A sentence that names the argument."""
    model = made(Net).double()
    with pytest.raises(InputError, match=name):
        tuned(COMPILED, **{name: value})(model, loss, torch.optim.SGD(model.parameters()))
