"""MindSpore's training steps: one that fails before anything was written is made untuned, no other is made again."""

from __future__ import annotations

import operator
import os
from functools import partial

os.environ.setdefault("GLOG_v", "3")  # read when mindspore is imported

import numpy as np
import pytest

import autotune
from autotune.backends.capabilities import Updates
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, rest_of_call
from autotune.workload.kinds.train import own_loss
from tests.conformance.torch_kit import warned
from tests.stand_ins.exports import export

ms = pytest.importorskip("mindspore")
nn, ops = ms.nn, ms.ops
pytestmark = pytest.mark.mindspore

from autotune.backends.mindspore import training  # noqa: E402

X = ms.Tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
NOT_COMPILED = partial(operator.concat, 1)
"""Raises TypeError, before anything runs."""


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Dense(8, 4)

    def construct(self, x):
        return self.norm(self.dense(x)), self.unused(x)


def loss(model, x):
    return ops.mean(model(x)[0] ** 2)


def made():
    ms.set_seed(0)
    net = Net().set_train()
    rng = np.random.default_rng(0)
    for each in net.trainable_params():
        each.set_data(ms.Tensor(rng.normal(size=each.shape).astype(np.float32)))
    optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=1e-2, weight_decay=0.5)
    return net, optimizer


def state(*cells):
    return [each.asnumpy().copy() for cell in cells for each in cell.get_parameters()]


CONFIGS = {
    "step": {"execution": "jit", "scope": "step"},
    "gradients": {"execution": "jit", "scope": "gradients"},
    "graph": {"execution": "graph"},
}


@pytest.mark.parametrize("scope", CONFIGS)
def test_what_does_not_compile_leaves_the_step_to_the_untuned_one(monkeypatch, scope):
    """Its exception carries the step, which is made once: statistics, moments and weights are as of the plain step."""
    monkeypatch.setattr(training, "jitted", lambda *_: NOT_COMPILED)
    monkeypatch.setattr(training, "whole_graph", lambda *_: NOT_COMPILED)
    net, optimizer = made()
    step = training.training_step(net, loss, optimizer, Config(CONFIGS[scope]), UndoLog())
    with pytest.raises(TypeError) as caught:
        step(X)
    rest = rest_of_call(caught.value, None)
    assert rest is not None
    plain_net, plain_optimizer = made()
    plain = training.training_step(plain_net, loss, plain_optimizer, Config({"execution": "pynative"}), UndoLog())
    assert float(rest().asnumpy()) == pytest.approx(float(plain(X).asnumpy()))
    for one, other in zip(state(net, optimizer), state(plain_net, plain_optimizer), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("what", ["statistics", "weight", "moment", "attribute"])
def test_what_has_written_is_not_made_again(what):
    """Half of it was made: the job gets the exception, and there is no rest."""
    net, optimizer = made()

    def part(x):
        if what == "attribute":
            net.count = 1
        else:
            written = {"statistics": net.norm.moving_mean, "weight": net.dense.weight, "moment": optimizer.moments1[0]}
            ops.assign(written[what], written[what] + 1)
        return NOT_COMPILED(x)

    step = training.BeforeAnyWrite(part, lambda x: x, net, optimizer)
    with pytest.raises(TypeError) as caught:
        step(X)
    assert rest_of_call(caught.value, int) is None


def test_a_form_that_has_succeeded_is_not_looked_at():
    """Reading all Parameters is for the first call of a form; one that fails later is raised."""
    net, optimizer = made()
    calls = []

    def part(x):
        calls.append(x)
        return x if len(calls) == 1 else NOT_COMPILED(x)

    step = training.BeforeAnyWrite(part, lambda x: "untuned", net, optimizer)
    step(X)
    with pytest.raises(TypeError) as caught:
        step(X)
    assert rest_of_call(caught.value, int) is None
    with pytest.raises(TypeError) as caught:
        step(X[:2])
    rest = rest_of_call(caught.value, None)
    assert rest is not None
    assert rest() == "untuned"


def test_weights_that_the_loss_does_not_use():
    """MindSpore has gradients of zeros for them, compiled or not, and its optimizers move them in either way."""
    moved = []
    for config in ({"execution": "pynative"}, CONFIGS["gradients"]):
        net, optimizer = made()
        before = net.unused.weight.asnumpy().copy()
        training.training_step(net, loss, optimizer, Config(config), UndoLog())(X)
        moved.append(net.unused.weight.asnumpy() - before)
    assert np.abs(moved[0]).max() > 0
    np.testing.assert_allclose(moved[0], moved[1], atol=1e-6)


class Returning(nn.Cell):
    """Returns its loss itself, in one of these forms."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.dense = nn.Dense(8, 4)

    def construct(self, x, labels):
        scores = self.dense(x)
        loss = ops.cross_entropy(scores, labels)
        if self.form == "tuple":
            return loss, scores
        if self.form == "dict":
            return {"logits": scores, "loss": loss}
        return loss


FORMS = ("alone", "tuple", "dict")
SCOPES = ("untuned", "model", *CONFIGS)
TAKEN = [(form, scope) for form in FORMS for scope in SCOPES if (form, scope) != ("dict", "model")]
"""MindSpore 2.10 itself takes no gradients of a compiled Cell that returns a dict."""


@pytest.mark.fast_cases("alone-untuned", "alone-graph", "tuple-step", "dict-gradients")
@pytest.mark.parametrize(("form", "scope"), TAKEN)
def test_a_loss_that_the_model_returns_is_trained_by(form, scope):
    """In PyNative and compiled, whatever part: the first step's loss and movement are those of PyNative."""
    labels = ms.Tensor([0, 1, 2, 3], ms.int32)

    def taken(config):
        ms.set_seed(0)
        net = Returning(form).set_train()
        rng = np.random.default_rng(0)
        for each in net.trainable_params():
            each.set_data(ms.Tensor(rng.normal(size=each.shape).astype(np.float32)))
        step = training.training_step(net, own_loss, training.usual_optimizer(net), Config(config), UndoLog())
        return [float(step(X, labels).asnumpy()) for _ in range(2)], state(net)

    configs = {"untuned": {"execution": "pynative"}, "model": {"execution": "jit", "scope": "model"}, **CONFIGS}
    losses, weights = taken(configs[scope])
    expected, plain = taken({"execution": "pynative"})
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[1] < losses[0]
    for one, other in zip(weights, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("scope", ["gradients", "model", None])
def test_several_calls_make_one_update(scope):
    """By the mean of their gradients, clipped; an incomplete group is flushed."""
    net, optimizer = made()
    updates = Updates(accumulate=2, clip_grad_norm=0.5)
    config = {"execution": "jit", "scope": scope} if scope else {"execution": "pynative"}
    step = training.training_step(net, loss, optimizer, Config(config), UndoLog(), updates=updates)
    plain_net, plain_optimizer = made()
    gradients = ms.value_and_grad(lambda x: loss(plain_net, x), None, plain_optimizer.parameters)
    group, updated = [], []
    for number in range(5):
        x = X * (number + 1)
        value, found = gradients(x)
        group.append(found)
        assert np.allclose(step(x).asnumpy(), value.asnumpy(), rtol=1e-4)
        updated.append(updates.has_updated)
        if number == 4:
            updates.flush()
        if len(group) == 2 or number == 4:
            mean = tuple(sum(each) / len(group) for each in zip(*group, strict=True))
            plain_optimizer(ops.clip_by_global_norm(mean, 0.5))
            group = []
    assert updated == [False, True, False, True, False]
    for one, other in zip(state(net), state(plain_net), strict=True):
        assert np.allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("config", [{"execution": "jit", "scope": "step"}, {"execution": "graph"}], ids=str)
def test_a_whole_step_adds_up_no_gradients(config):
    """The optimizer is in its graph: a sentence, and nothing is compiled."""
    net, optimizer = made()
    with pytest.raises(InvalidConfigError, match="compiles the whole step"):
        training.training_step(net, loss, optimizer, Config(config), UndoLog(), updates=Updates(accumulate=2))


class Delegating:
    """Stands around an optimizer."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, gradients):
        return self.inner(gradients)


OTHER_OPTIMIZERS = {
    "delegating": lambda weights: Delegating(nn.SGD(weights, 0.1)),
    "function": lambda weights: partial(nn.SGD(weights, 0.1)),
    "experimental": lambda weights: ms.experimental.optim.SGD(weights, lr=0.1),
}


@pytest.mark.parametrize("kind", OTHER_OPTIMIZERS)
def test_an_optimizer_that_is_not_understood(tmp_path, caplog, kind):
    """One warning, and the untuned step; without a file as well."""
    weights = []
    for name, made_by in (
        ("best.yaml", OTHER_OPTIMIZERS[kind]),
        ("none.yaml", OTHER_OPTIMIZERS[kind]),
        ("none.yaml", lambda weights: nn.SGD(weights, 0.1)),
    ):
        net, _ = made()
        export(tmp_path / "best.yaml", "mindspore", CONFIGS["gradients"], net, [X], task="train")
        step = autotune.load(tmp_path / name).training_step(net, loss, made_by(net.trainable_params()))
        for _ in range(2):
            step(X)
        weights.append(state(net))
    for one, other, plain in zip(*weights, strict=True):
        np.testing.assert_allclose(one, plain, rtol=1e-6)
        np.testing.assert_allclose(other, plain, rtol=1e-6)
    assert len([each for each in warned(caplog) if "the optimizer of the training step is a" in each]) == 1
