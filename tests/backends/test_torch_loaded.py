"""`autotune.load(...).apply(model)` on real modules: what the job holds, and what it gets where things go wrong."""

from __future__ import annotations

import copy
import io
import logging

import pytest
import yaml

import autotune
from autotune import environment
from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")

from autotune.backends import torch_books  # noqa: E402
from autotune.backends.torch_compile import TorchBackend  # noqa: E402
from autotune.subject import structure_sha256  # noqa: E402

CAPTURED = {"execution": "compile", "backend": "eager"}
"""Captured by dynamo, and run as it is: no compiler is needed."""


class Small(torch.nn.Module):
    """Layers whose parameters have names, and an attribute."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.size = 4

    def forward(self, x):
        return self.norm(self.layer(x)).relu()

    def predict(self, x):
        return self(x).argmax(-1)


@pytest.fixture
def answer(tmp_path):
    """An export for `Small` with inputs of 2 by 4, measured on this machine: `answer(config)` is it, loaded."""

    def answer(config=CAPTURED, **changes):
        content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
        content.update(framework="torch", verdict="faster", config=config, untuned={"execution": "eager"})
        here = environment.describe(device="cpu", variables={}).model_dump(mode="json")
        content["environment"] = {**here, "framework_version": str(torch.__version__)}
        content["workload"]["signature"].update(
            structure_sha256=structure_sha256(TorchBackend().parameters(Small())),
            inputs=[{"shape": [2, 4], "dtype": "float32"}],
        )
        content["evidence"]["best"]["latency_s"] = {"p50": 10.0, "p90": 10.0, "p99": 10.0}
        (tmp_path / "best.yaml").write_text(yaml.safe_dump(content | changes))
        return autotune.load(tmp_path / "best.yaml")

    return answer


@pytest.fixture(autouse=True)
def empty_books():
    torch_books.clear()
    yield
    torch_books.clear()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Small().eval()


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_what_a_job_holds(answer, model):
    """A model of the same class: its parameters, checkpoint names, modes, attributes and methods are the model's."""
    tuned = answer().apply(model, on_mismatch="raise")
    assert isinstance(tuned, Small)
    assert type(tuned).__name__ == "Small"
    assert list(tuned.state_dict()) == list(model.state_dict())
    assert all(one is other for one, other in zip(tuned.parameters(), model.parameters(), strict=True))
    assert torch.equal(tuned(X), model(X))
    assert torch.equal(tuned.predict(X), model(X).argmax(-1))
    assert (tuned.size, tuned.layer) == (4, model.layer)
    tuned.train()
    assert (model.training, model.norm.training) == (True, True)
    tuned.load_state_dict({name: torch.zeros_like(each) for name, each in model.state_dict().items()})
    assert not model.layer.weight.any()


def test_the_compiled_code_is_what_runs(answer, model):
    """The job's calls go through dynamo: one graph, however often it is called."""
    tuned = answer().apply(model)
    for _ in range(20):
        tuned(X)
    stats = autotune.stats(tuned)
    assert (stats.state, stats.num_compiles, stats.num_recompiles, stats.num_graph_breaks) == ("tuned", 1, 0, 0)


def test_copied_and_saved_it_is_the_model(answer, model):
    """Compiled code cannot be copied or pickled: a copy is a model as before."""
    tuned = answer().apply(model)
    clone = copy.deepcopy(tuned)
    assert type(clone) is Small
    assert clone is not model
    assert torch.equal(clone(X), model(X))
    file = io.BytesIO()
    torch.save(tuned, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Small


def test_inside_another_module(answer, model):
    """As a part of a larger model its parameters have the names that they had, and move with it."""
    whole = torch.nn.Sequential(answer().apply(model), torch.nn.Linear(4, 1))
    assert list(whole.state_dict())[:2] == ["0.layer.weight", "0.layer.bias"]
    whole.double()
    assert model.layer.weight.dtype is torch.float64


def test_training_through_it(answer, model):
    """Gradients reach the model's parameters; an optimizer made before or after `apply` steps them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuned = answer().apply(model.train())
    before = model.layer.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        tuned(X).sum().backward()
        optimizer.step()
    assert not torch.equal(model.layer.weight, before)
    assert torch.equal(tuned.layer.weight, model.layer.weight)


@pytest.fixture
def breaking():
    """Registers a compiler that fails, from its `after`-th graph on."""

    def register(after):
        num_graphs = 0

        def compiler(graph, inputs):
            nonlocal num_graphs
            num_graphs += 1
            if num_graphs >= after:
                raise RuntimeError("no code for this graph\nand pages more")
            return graph.forward

        torch._dynamo.register_backend(compiler, name="breaking")
        return {"execution": "compile", "backend": "breaking", "dynamic": False}

    yield register
    from torch._dynamo.backends import registry

    for table in ("_BACKENDS", "_COMPILER_FNS"):
        getattr(registry, table, {}).pop("breaking", None)


@pytest.mark.parametrize("after", [1, 2])
def test_a_compile_error(answer, model, breaking, caplog, after):
    """At the first call, or when other inputs need another graph: the call is answered, with one line."""
    tuned = answer(breaking(after)).apply(model)
    with caplog.at_level(logging.WARNING, logger="autotune"):
        for rows in (2, 2, 5, 2):
            x = torch.ones(rows, 4)
            assert torch.equal(tuned(x), model(x))
    assert autotune.stats(tuned).state == "untuned"
    said = [record.getMessage() for record in caplog.records if record.name == "autotune"]
    assert len(said) == 1
    assert said[0].startswith("autotune: the tuned model failed: ")
    assert said[0].endswith("; back to the untuned model")
    assert "\n" not in said[0]


def test_a_wrong_result_leaves_the_weights_as_they_were(answer, model, caplog):
    """Cast to bfloat16, held against float32's tolerance: given up at once, and the weights are back to the bit."""
    before = {name: each.clone() for name, each in model.state_dict().items()}
    expected = model(X)
    tuned = answer({"execution": "eager", "precision": "bf16_cast"}).apply(model, check=True)
    assert model.layer.weight.dtype is torch.bfloat16
    assert torch.equal(tuned(X), expected)
    assert torch.equal(tuned(X), expected)
    assert "the first outputs are wrong: relative error" in caplog.text
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_the_model_as_it_was_after_the_block(answer, model):
    """`applied`: threads, types and calls are the block's own."""
    num_threads, expected = torch.get_num_threads(), model(X)
    config = {"execution": "eager", "precision": "bf16_cast", "threads": num_threads + 1}
    with answer(config).applied(model) as tuned:
        tuned(X)
        assert torch.get_num_threads() == num_threads + 1
        assert model.layer.weight.dtype is torch.bfloat16
    assert torch.get_num_threads() == num_threads
    assert torch.equal(tuned(X), expected)
    assert torch.equal(model(X), expected)
