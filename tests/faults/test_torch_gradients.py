"""Gradients through an applied model: those of the untuned model, whatever compiled code can do."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import ExitStack

import pytest

import autotune
from autotune.job.fallback import MismatchError

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402

from tests.conformance.torch_kit import CAPTURED, Stateless, X, answer_in, made, warned  # noqa: E402
from tests.dynamo_backends import registered  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]


@pytest.fixture
def answer(tmp_path):
    return answer_in(tmp_path)


@pytest.fixture
def backend():
    """Registers a backend of dynamo by the name `ours`, whose configs it gives."""

    with ExitStack() as stack:

        def register(compiler):
            stack.enter_context(registered(compiler, "ours"))
            return {**CAPTURED, "backend": "ours"}

        yield register


def gradients(call, model, x=X):
    model.zero_grad()
    call(x).pow(2).sum().backward()
    return [each.grad for each in model.parameters()]


def same(ones, others):
    return all(torch.allclose(one, other, atol=1e-5) for one, other in zip(ones, others, strict=True))


def losing(graph, _):
    """A compiler that loses gradients, without a word."""
    return lambda *args: [each.detach() for each in graph(*args)]


class TestInferenceConfigs:
    def test_a_compiler_that_loses_gradients(self, answer, backend):
        """No trial of inference sees that."""
        model, reference = made(), made()
        tuned = answer(backend(losing)).apply(model)
        assert same(gradients(tuned, model), gradients(reference, reference))

    def test_where_nothing_requires_gradients_calls_are_tuned(self, answer, caplog):
        """No `no_grad` is needed around them; what is thawed later, or an input, makes the next call untuned."""
        model = made().requires_grad_(False)
        tuned = answer(CAPTURED).apply(model)
        for _ in range(3):
            tuned(X)
        assert autotune.stats(tuned).num_compiles == 1
        assert not warned(caplog)
        model.blocks[1].linear.weight.requires_grad_()
        tuned(X).sum().backward()
        assert model.blocks[1].linear.weight.grad is not None
        model.requires_grad_(False)
        x = X.clone().requires_grad_()
        tuned(x).sum().backward()
        assert x.grad is not None
        assert len(warned(caplog)) == 1

    @pytest.mark.parametrize("held", ["closure", "method", "attribute"])
    def test_weights_that_are_no_parameters(self, answer, caplog, held):
        """Those that a function takes from around it, and plain tensors of a module."""
        torch.manual_seed(0)
        weight = torch.randn(8, 8, requires_grad=True)

        class Holder:
            def __init__(self):
                self.weight = weight

            def call(self, x):
                return x @ self.weight

        class Plain(Stateless):
            def forward(self, x):
                return Stateless.forward(self, x) @ self.weight

        model = made(Plain).requires_grad_(False)
        model.weight = weight
        given = {"closure": lambda x: x @ weight, "method": Holder().call, "attribute": model}[held]
        tuned = answer(CAPTURED).apply(given, on_mismatch="apply")
        tuned(X).sum().backward()
        found, weight.grad = weight.grad, None
        given(X).sum().backward()
        assert torch.allclose(found, weight.grad, atol=1e-5)
        assert any("gradients" in each and "no_grad" in each for each in warned(caplog))

    def test_a_job_that_wants_exceptions(self, answer):
        """It gets one, with the ways out."""
        tuned = answer(CAPTURED).apply(made(), on_mismatch="raise")
        with pytest.raises(MismatchError, match="records gradients") as raised:
            tuned(X)
        assert "task='train'" in raised.value.tip

    @pytest.mark.parametrize(
        ("config", "words"),
        [({"scope": "loss"}, "without whole_step"), ({"precision": "bf16_autocast"}, "under autocast of bfloat16")],
        ids=str,
    )
    def test_training_configs_of_another_step(self, answer, caplog, config, words):
        """What trials compared is not what `apply` compiles: the loss with the model, or a loss under autocast."""
        model, reference = made(), made()
        tuned = answer({**CAPTURED, **config}, task="train").apply(model)
        assert same(gradients(tuned, model), gradients(reference, reference))
        (line,) = warned(caplog)
        assert words in line


class Heads(torch.nn.Module):
    """Several outputs in containers, among them a view and a weight; and statistics that a call moves."""

    def __init__(self, breaks):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))
        self.norm = torch.nn.BatchNorm1d(8)
        self.breaks = breaks

    def forward(self, x):
        h = torch.tanh(self.norm(self.a(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        k = torch.tanh(self.b(h))
        return {"y": self.c(k), "more": [h, k[:, :4]], "weight": self.c.weight.t()}


def loss_of(call, x=X):
    out = call(x)
    return out["y"].square().mean() + out["more"][0].sin().mean() + out["more"][1].pow(3).sum() + out["weight"].mean()


def squares(found):
    return sum(each.square().sum() for each in found if each is not None)


def hessian_product(call, weights):
    return torch.autograd.grad(squares(torch.autograd.grad(loss_of(call), weights, create_graph=True)), weights)


def third_derivatives(call, weights):
    first = torch.autograd.grad(loss_of(call), weights, create_graph=True)
    second = torch.autograd.grad(squares(first), weights, create_graph=True)
    return torch.autograd.grad(squares(second), weights)


def penalty(call, weights):
    """On one weight's gradient, beside the loss; of two calls in one graph."""
    loss = loss_of(call) + loss_of(call, 2 * X)
    (slope,) = torch.autograd.grad(loss, weights[2], create_graph=True)
    return torch.autograd.grad(loss + slope.square().sum(), weights)


def backward_with_a_graph(call, weights):
    loss_of(call).backward(create_graph=True)
    found = torch.autograd.grad(squares([each.grad for each in weights]), weights)
    for each in weights:
        each.grad = None
    return found


def of_a_part(call, weights):
    """One output of several, changed in place."""
    outputs = call(X)["y"]
    outputs.mul_(2)
    first = torch.autograd.grad(outputs.square().sum(), weights, create_graph=True, allow_unused=True)
    return torch.autograd.grad(squares(first), weights, allow_unused=True)


def batched(call, weights):
    rows = torch.eye(32).view(32, 4, 8)
    return torch.autograd.grad(call(X)["y"], weights, grad_outputs=rows, is_grads_batched=True, allow_unused=True)


def twice(call, weights):
    loss = loss_of(call)
    return [*torch.autograd.grad(loss, weights, retain_graph=True), *torch.autograd.grad(loss, weights)]


DERIVED = (hessian_product, third_derivatives, penalty, backward_with_a_graph, of_a_part, batched)


class TestTrainingConfigs:
    """Configs of a study of training steps, whose gradients trials compared."""

    @pytest.fixture
    def applied(self, answer):
        def applied(config=CAPTURED, *, breaks=False):
            torch.manual_seed(0)
            model = Heads(breaks).train()
            loaded = answer({**config, "scope": "model"}, task="train", workload_of=model)
            return model, copy.deepcopy(model), loaded.apply(model)

        return applied

    @pytest.mark.fast_cases(
        "hessian_product-one graph", "backward_with_a_graph-two graphs", "of_a_part-one graph", "twice-one graph"
    )
    @pytest.mark.parametrize("breaks", [False, True], ids=["one graph", "two graphs"])
    @pytest.mark.parametrize("derive", [*DERIVED, twice], ids=lambda each: each.__name__)
    def test_derivatives_that_compiled_code_has_not(self, applied, caplog, derive, breaks):
        """After ordinary steps they are those of the model; then calls with gradients are untuned, with one warning,
        and the others stay tuned."""
        model, reference, tuned = applied(breaks=breaks)
        for call in (tuned, reference):
            loss_of(call).backward()
        for each in (model, reference):
            each.zero_grad()
        assert autotune.stats(tuned).num_compiles > 0
        pairs = list(
            zip(derive(tuned, list(model.parameters())), derive(reference, list(reference.parameters())), strict=True)
        )
        largest = max(float(other.abs().max()) for _, other in pairs if other is not None)
        for one, other in pairs:
            assert other is None or torch.allclose(one, other, atol=1e-4 * largest)
            assert other is not None or one is None or not one.any()
        for one, other in zip(model.buffers(), reference.buffers(), strict=True):
            assert torch.allclose(one, other, atol=1e-6)
        for _ in range(2):
            tuned(X)
        assert len(warned(caplog)) == (derive is not twice)
        assert all("such calls are made untuned" in each for each in warned(caplog))
        assert autotune.stats(tuned).state == "tuned"

    def test_a_backward_pass_that_does_not_compile(self, applied, backend, caplog):
        """It is compiled within the call, which is answered untuned: the job's backward pass is the model's."""

        def refuse(*_):
            raise RuntimeError("no code for this backward pass")

        config = backend(aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=refuse))
        model, reference, tuned = applied(config)
        for call in (tuned, reference):
            loss_of(call).backward()
        for one, other in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, atol=1e-5)
        assert len(warned(caplog)) == 1
        assert "BackendCompilerFailed" in warned(caplog)[0]

    def test_calls_with_other_weights(self, applied, caplog):
        """Under `torch.func`, or of `functional_call`, the model is not what could be called once more: untuned."""
        model, reference, tuned = applied()
        found = []
        for each, call in ((model, tuned), (reference, reference)):
            weights = {name: weight * 2 for name, weight in each.named_parameters()}
            (first,) = torch.autograd.grad(
                torch.func.functional_call(call, weights, (X,))["y"].square().sum(), each.a.weight, create_graph=True
            )
            found.append(torch.autograd.grad(first.square().sum(), each.b.weight)[0])
        assert torch.allclose(*found, rtol=1e-3)
        assert len(warned(caplog)) == 1
        assert "functional_call" in warned(caplog)[0]

    def test_a_graph_that_is_dropped_goes(self, applied):
        """With what the call was given: nothing of it is kept for derivatives that nobody takes."""
        _, _, tuned = applied()
        x = X.clone()
        outputs = tuned(x)
        gone = weakref.ref(x), weakref.ref(outputs["y"].grad_fn)
        del x, outputs
        gc.collect()
        assert [each() for each in gone] == [None, None]
