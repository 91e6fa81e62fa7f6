"""`autotune.load(...).apply(model)` on real modules: what the job holds, and what it gets where things go wrong."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack

import pytest

import autotune
from tests.dynamo_backends import registered
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from autotune.backends.torch import counters  # noqa: E402

CAPTURED = {"execution": "compile", "backend": "eager"}
"""Captured by dynamo, and run as it is: no compiler is needed."""


X = torch.linspace(-1, 1, 8).reshape(2, 4)


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

    def answer(config=CAPTURED, inputs=(X,), **changes):
        return autotune.load(export(tmp_path / "best.yaml", "torch", config, Small(), inputs, **changes))

    return answer


@pytest.fixture(autouse=True)
def empty_books():
    counters.clear()
    yield
    counters.clear()


@pytest.fixture
def model():
    """For inference: no gradients of it are recorded."""
    torch.manual_seed(0)
    return Small().eval().requires_grad_(False)


def test_the_compiled_code_is_what_runs(answer, model):
    """The job's calls go through dynamo: one graph, however often it is called."""
    tuned = answer().apply(model)
    for _ in range(20):
        assert torch.equal(tuned.predict(X), model(X).argmax(-1))
    stats = autotune.stats(tuned)
    assert (stats.state, stats.num_compiles, stats.num_recompiles, stats.num_graph_breaks) == ("tuned", 1, 0, 0)


@pytest.fixture
def breaking():
    """Registers a compiler that fails, from its `after`-th graph on."""
    with ExitStack() as stack:

        def register(after):
            num_graphs = 0

            def compiler(graph, inputs):
                nonlocal num_graphs
                num_graphs += 1
                if num_graphs >= after:
                    raise RuntimeError("no code for this graph\nand pages more")
                return graph.forward

            stack.enter_context(registered(compiler, "breaking"))
            return {"execution": "compile", "backend": "breaking", "dynamic": False}

        yield register


@pytest.mark.parametrize("after", [1, 2])
def test_a_compile_error(answer, model, breaking, caplog, after):
    """At the first call, or when other inputs need another graph: the call is answered, with one line."""
    tuned = answer(breaking(after)).apply(model, on_mismatch="apply")
    with caplog.at_level(logging.WARNING, logger="autotune"):
        for rows in (2, 2, 5, 2):
            x = torch.ones(rows, 4)
            assert torch.equal(tuned(x), model(x))
    assert autotune.stats(tuned).state == "untuned"
    lines = [record.getMessage() for record in caplog.records if record.name == "autotune"]
    said = [line for line in lines if not line.endswith("applied anyway")]
    assert len(said) == 1
    assert said[0].startswith("autotune: the tuned model failed: ")
    assert said[0].endswith("; back to the untuned model")
    assert "\n" not in said[0]


def test_the_process_as_it_was_after_the_block(answer, model):
    """`applied`: settings of the process and calls are the block's own."""
    before, expected = torch.get_float32_matmul_precision(), model(X)
    config = {"execution": "eager", "precision": "bf16_autocast", "matmul_precision": "medium"}
    with answer(config).applied(model, process_settings=True) as tuned:
        tuned(X)
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == before
    assert torch.equal(tuned(X), expected)
    assert torch.equal(model(X), expected)


def test_another_thread_compiles_under_the_same_settings(answer, model):
    """A config that allows more compilations allows them in a thread that was not there when it was applied."""

    def call_with_ten_shapes(given):
        with torch.no_grad():
            for rows in range(2, 12):
                given(torch.ones(rows, 4))

    config = {**CAPTURED, "shapes": "static", "recompile_limit": 64}
    with answer(config).applied(model, on_mismatch="apply") as given:
        thread = threading.Thread(target=call_with_ten_shapes, args=(given,))
        thread.start()
        thread.join()
    assert counters.diagnosis().num_graphs == 10
