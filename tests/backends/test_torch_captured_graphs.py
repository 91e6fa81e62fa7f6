"""What compiled code may leave out: calls of operators that do something beside their result, and NaN times zero."""

from __future__ import annotations

import importlib.util

import pytest

import autotune
from tests.conftest import REPOSITORY
from tests.dynamo_backends import registered
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from autotune.backends.torch import training  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.torch.captured_graphs import (  # noqa: E402
    counting,
    make_outputs_contiguous,
    multiplies_by_zero,
)
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402
from autotune.errors import InvalidConfigError  # noqa: E402
from autotune.trial.worker.calls.one_shape import OneShape  # noqa: E402
from autotune.trial.worker.subjects import build_subject  # noqa: E402
from autotune.workload.workload import Workload  # noqa: E402

pytestmark = pytest.mark.torch

MADE = []


@pytest.fixture(autouse=True)
def nothing_made():
    torch._dynamo.reset()
    MADE.clear()


def made(name):
    MADE.append(name)


@torch.library.custom_op("attest::record", mutates_args=())
def record(x: torch.Tensor) -> torch.Tensor:
    made("record")
    return x.clone()


@torch.library.custom_op("attest::note", mutates_args=())
def note(x: torch.Tensor) -> None:
    made("note")


@torch.library.custom_op("attest::fill", mutates_args=("into",))
def fill(x: torch.Tensor, into: torch.Tensor) -> None:
    made("fill")
    into.fill_(1.0)


@torch.library.custom_op("attest::announce", mutates_args=())
def announce(x: torch.Tensor) -> None:
    made("announce")


record.register_fake(torch.empty_like)
for _operator in (note, announce):
    _operator.register_fake(lambda x: None)
fill.register_fake(lambda x, into: None)
record.register_autograd(lambda ctx, gradient: gradient, setup_context=lambda ctx, inputs, output: None)

LIBRARY = torch.library.Library("attest_of_lines", "DEF")
LIBRARY.define("count(Tensor x) -> Tensor")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("count", lambda x: (made("count"), x.clone())[1], "CPU")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
torch.library.register_fake("attest_of_lines::count", torch.empty_like)
count, twice = torch.ops.attest_of_lines.count, torch.ops.attest_of_lines.twice


class Calling(torch.nn.Module):
    """A layer, and what a case does with its output."""

    def __init__(self, rest):
        super().__init__()
        self.layer, self.rest = torch.nn.Linear(4, 4), rest
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x):
        return self.rest(self, torch.tanh(self.layer(x)))


class Inner(torch.nn.Module):
    def forward(self, x):
        record(x)
        return x + 1


LOST = {
    "a result that nobody uses": lambda _, y: (record(y), y)[1],
    "no result": lambda _, y: (note(y), y)[1],
    "an operator of a library": lambda _, y: (count(y), y)[1],
    "only for a result that nobody uses": lambda _, y: (record(y).sum() * 2, y)[1],
    "one of two": lambda _, y: (record(y * 2), record(y))[1],
    "a scratch tensor that nobody reads": lambda _, y: (fill(y, torch.zeros(3)), y)[1],
    "in a module": lambda self, y: Inner()(y),
    "after a graph break": lambda _, y: (torch._dynamo.graph_break(), record(y), y)[2],
}
KEPT = {
    "a result that is used": lambda _, y: record(y),
    "two equal calls": lambda _, y: record(y) + record(y),
    "a buffer that is written to": lambda self, y: (fill(y, self.kept), y)[1],
    "an operator made of others": lambda _, y: twice(y) + 1,
    "one made of others that nobody uses": lambda _, y: (twice(y), y)[1],
    "none": lambda _, y: y + 1,
}
CONFIG = {"execution": "compile", "backend": "aot_eager"}


def compiled(model, config=CONFIG):
    return TorchBackend().compile(model, Config(config), UndoLog())


@pytest.mark.parametrize("case", LOST)
@torch.no_grad()
def test_a_config_that_leaves_a_call_out_is_refused(case):
    """Its first call makes all calls where these are known to be dropped; the next one is refused."""
    model, x = Calling(LOST[case]).eval(), torch.ones(2, 4)
    step = compiled(model)
    step(x)
    with pytest.raises(InvalidConfigError, match=r"the model calls attest\w*::\w+, and compiled code"):
        step(x)


@pytest.mark.parametrize("case", KEPT)
@torch.no_grad()
def test_calls_that_compiled_code_makes_are_no_reason(case):
    """As many as the untuned model makes."""
    model, x = Calling(KEPT[case]).eval(), torch.ones(2, 4)
    step = compiled(model)
    step(x)
    MADE.clear()
    assert torch.allclose(step(x), model(x))
    assert MADE[: len(MADE) // 2] == MADE[len(MADE) // 2 :]


def test_equal_calls_are_merged_where_gradients_are_recorded():
    """Nobody knows before the graph has run."""
    model, x = Calling(KEPT["two equal calls"]), torch.ones(2, 4)
    step = compiled(model)
    step(x).sum().backward()
    with pytest.raises(InvalidConfigError, match="attest::record"):
        step(x)


def test_a_training_step_is_refused_alike():
    """Before the step that follows moves any weight."""
    model, x = Calling(LOST["an operator of a library"]), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = Config({**CONFIG, "scope": "model", "optimizer_compiled": False, "optimizer_impl": None})
    step = training.training_step(model, lambda model, x: model(x).sum(), optimizer, config, UndoLog())
    step(x)
    before = model.layer.weight.clone()
    with pytest.raises(InvalidConfigError, match="attest_of_lines::count"):
        step(x)
    assert torch.equal(model.layer.weight, before)


@torch.no_grad()
def test_a_call_that_is_registered_as_an_effect_stays():
    """PyTorch keeps it in its place."""
    effects = pytest.importorskip("torch._higher_order_ops.effects")
    if not hasattr(effects, "_register_effectful_op"):
        pytest.skip("this release registers effects otherwise")
    effects._register_effectful_op(torch.ops.attest.announce.default, effects._EffectType.ORDERED)
    step = compiled(Calling(lambda _, y: (announce(y), y)[1]).eval())
    for _ in range(3):
        step(torch.ones(2, 4))
    assert MADE == ["announce"] * 3


@pytest.mark.parametrize("freezing", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.skipif(importlib.util.find_spec("torch._inductor") is None, reason="no inductor")
@torch.no_grad()
def test_inductor_leaves_out_the_same(freezing):
    """With frozen weights, too."""
    config = {"execution": "compile", "backend": "inductor", "freezing": freezing}
    step = compiled(Calling(LOST["no result"]).eval(), config)
    step(torch.ones(2, 4))
    with pytest.raises(InvalidConfigError, match="attest::note"):
        step(torch.ones(2, 4))


@torch.no_grad()
def test_a_job_makes_all_calls(tmp_path, caplog):
    """A file that was made before anybody looked: the model is untuned from the second call on, with one warning."""
    model, x = Calling(LOST["a result that nobody uses"]).eval(), torch.ones(2, 4)
    tuned = autotune.load(export(tmp_path / "best.yaml", "torch", CONFIG, model, [x])).apply(model)
    for _ in range(10):
        assert torch.allclose(tuned(x), model.rest(model, torch.tanh(model.layer(x))))
    assert MADE == ["record"] * 20
    assert autotune.stats(tuned).state == "untuned"
    (warning,) = [each.message for each in caplog.records if each.name == "autotune"]
    assert "attest::record" in warning


FILE = """
import torch
from tests.backends.test_torch_captured_graphs import LOST, Calling

def build():
    return Calling(LOST["one of two"]).eval(), (torch.arange(8.0).view(2, 4),)
"""


@torch.no_grad()
def test_they_are_named_beside_the_verdict(tmp_path):
    """By the run of the untuned model that others are compared with."""
    backend, file = TorchBackend(), tmp_path / "calling.py"
    file.write_text(FILE)
    backend.prepare("cpu", 0)
    place = {"reference": f"{file}:build", "search_path": str(REPOSITORY)}
    workload = Workload(model="calling", framework="torch", device="cpu", **place)
    calls = OneShape(workload, build_subject(workload, backend), backend)
    model = calls.compile(Config({"execution": "eager"}), UndoLog())
    calls.observe(model, reference_tolerance=1e-3)
    assert calls.not_varied == (
        "the model calls attest::record, an operator that is not the framework's own: what it does beside its result "
        "is not compared",
    )
    with counting() as names:
        torch.ones(2).sin_()
    assert not names


ZEROS = {
    "an operator": lambda x: x * 0,
    "from the left": lambda x: 0 * x,
    "a function": lambda x: torch.mul(x, other=0),
    "in place": lambda x: x.clone().mul_(0),
    "a truth value": lambda x: torch.multiply(x, False),
}


@pytest.mark.parametrize("case", ZEROS)
def test_a_graph_with_a_product_with_zero_is_known(case):
    """All others are compiled, and found in caches, as ever."""
    assert multiplies_by_zero(torch.fx.symbolic_trace(ZEROS[case]))
    assert not multiplies_by_zero(torch.fx.symbolic_trace(lambda x: (x * 0.0, x * 2, x + 0)))


@pytest.mark.slow
@pytest.mark.parametrize("case", ZEROS)
@torch.no_grad()
def test_nan_times_zero_is_nan(case):
    """As in the model, and an infinity times zero too; inductor alone would make zeros of it."""
    product = ZEROS[case]
    step = compiled(Calling(lambda _, y: y + product(y)).eval(), {"execution": "compile", "backend": "inductor"})
    x = torch.ones(3, 4)
    x[1], x[2] = float("nan"), 2.0
    assert step(x).isnan().any(dim=1).tolist() == [False, True, False]
    assert torch._inductor.config.joint_custom_pre_pass is None


@pytest.mark.parametrize("place", ["an input", "in a dict", "a buffer"])
@torch.no_grad()
def test_a_sign_that_is_a_bit_is_read(place):
    """Inductor reads past it: a graph that takes such a tensor is not compiled, and all others are."""
    graphs = []
    negated, plain = torch.view_as_complex(torch.ones(3, 4, 2)).conj().imag, torch.ones(3, 4)
    model = Calling(lambda self, y: y + self.kept + (self.extra["x"] if self.extra else 0)).eval()
    model.extra = {"x": negated} if place == "in a dict" else {}
    model.kept = negated[0] if place == "a buffer" else model.kept
    with registered(lambda graph, _: graphs.append(graph) or graph, "of_the_test"):
        step = compiled(model, {"execution": "compile", "backend": "of_the_test"})
        given = negated if place == "an input" else plain
        torch.testing.assert_close(step(given), model(given))
        assert not graphs
        model.extra, model.kept = {}, torch.zeros(4)
        step(plain)
        assert len(graphs) == 1


class Decoding(torch.nn.Module):
    """Attention, then a convolution: the picture, and a view of what attention gives."""

    def __init__(self):
        super().__init__()
        self.linear, self.convolution = torch.nn.Linear(8, 8), torch.nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        y = x.flatten(2).transpose(1, 2)[:, None]
        y = torch.nn.functional.scaled_dot_product_attention(y, y, y)[:, 0]
        y = self.linear(y).transpose(-1, -2).reshape(x.shape)
        return self.convolution(y + x), y


@pytest.mark.parametrize(
    ("memory_format", "added"), [("contiguous_format", [True, False]), ("channels_last", [False] * 2)]
)
@torch.no_grad()
def test_an_output_whose_channels_come_last_unasked_is_copied(memory_format, added):
    """None that is a view, and none of a model whose own channels come last."""
    graphs = []
    form = {"memory_format": getattr(torch, memory_format)}
    torch.compile(Decoding().to(**form), backend=lambda graph, _: graphs.append(graph) or graph)(
        torch.randn(1, 8, 4, 4).to(**form)
    )
    make_outputs_contiguous(graphs[0])
    *_, output = graphs[0].graph.nodes
    assert [node.target == "contiguous" for node in output.args[0]] == added


@pytest.mark.slow
@pytest.mark.parametrize("freezing", [False, True])
@torch.no_grad()
def test_a_compiled_picture_is_contiguous_as_the_untuned_one(freezing):
    """Inductor alone gives it with its channels last."""
    model, x = Decoding().eval(), torch.randn(1, 8, 4, 4)
    picture = compiled(model, {"execution": "compile", "backend": "inductor", "freezing": freezing})(x)[0]
    assert picture.stride() == model(x)[0].stride()
    torch._dynamo.reset()
    assert not torch.compile(model)(x)[0].is_contiguous()
