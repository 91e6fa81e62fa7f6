"""MindSpore's `Model.train` under a tuned config: what it trains is what it trains without it."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

os.environ.setdefault("GLOG_v", "3")  # read when mindspore is imported

import numpy as np
import pytest

import autotune
from autotune.integrations.mindspore import tuned_callback
from tests.conformance.torch_kit import warned
from tests.stand_ins.exports import export

ms = pytest.importorskip("mindspore")
nn = ms.nn
pytestmark = pytest.mark.mindspore

JIT = {"execution": "jit", "scope": "model", "capture": "ast", "jit_level": "O0", "fullgraph": True}
BATCH = 16


class Net(nn.Cell):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.last = nn.Dense(8, 32), nn.Dense(32, 4)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(p=dropout)

    def construct(self, x):
        return self.last(self.drop(ms.ops.tanh(self.norm(self.first(x)))))


def made(dropout=0.0):
    net, generator = Net(dropout), np.random.default_rng(0)
    for weight in net.trainable_params():
        weight.set_data(ms.Tensor((generator.normal(size=weight.shape) / 4).astype(np.float32)))
    return net.set_train()


def points(num_batches):
    generator = np.random.default_rng(1)
    for _ in range(num_batches):
        x = generator.normal(size=(BATCH, 8)).astype(np.float32)
        yield x, x[:, :4].argmax(axis=1).astype(np.int32)


class Losses(ms.train.Callback):
    def __init__(self):
        super().__init__()
        self.kept, self.num_calls = [], 0

    def on_train_step_end(self, run_context):
        self.kept.append(float(run_context.original_args().net_outputs.asnumpy()))


def trained(net, callback=None, num_batches=21, seed=0):
    ms.set_seed(seed)
    optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=1e-2)
    model = ms.train.Model(net, nn.CrossEntropyLoss(), optimizer)
    losses = Losses()
    dataset = ms.dataset.GeneratorDataset(lambda: points(num_batches), ["points", "labels"], shuffle=False)
    model.train(1, dataset, callbacks=[losses, *([callback] if callback else [])], dataset_sink_mode=False)
    return losses.kept


@pytest.fixture
def best(tmp_path):
    def best(config):
        return export(tmp_path / "best.yaml", "mindspore", config, made(), [], task="train")

    return best


def test_it_trains_as_without(best, caplog):
    """Losses and weights; afterwards the Model calls the author's Cell again. After twenty steps the log says once when
    compiling is paid back: by the study's latencies a step saves nothing."""
    caplog.set_level(logging.INFO, "autotune")
    net, plain = made(), made()
    found, expected = trained(net, tuned_callback(best(JIT))), trained(plain)
    assert found == pytest.approx(expected, rel=1e-3)
    for one, other in zip(net.get_parameters(), plain.get_parameters(), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-2, atol=1e-3)
    stats = autotune.stats(net)
    assert warned(caplog) == []
    assert stats.num_compiles > 0
    (line,) = [each.getMessage() for each in caplog.records if "a step takes" in each.getMessage()]
    assert line.endswith("by the study no less than untuned: not worth it")


@pytest.mark.slow
def test_dropout(best, caplog):
    """200 steps: losses within the spread of the untuned run over seeds."""
    plain = np.array([trained(made(0.1), num_batches=200, seed=seed) for seed in range(3)])
    tuned = np.array([trained(made(0.1), tuned_callback(best(JIT)), 200)])
    for part in (slice(0, 40), slice(80, 120), slice(160, 200)):
        spread = plain[:, part].mean(axis=1)
        assert spread.min() - 3 * spread.std() < tuned[:, part].mean() < spread.max() + 3 * spread.std()
    assert warned(caplog) == []


def test_a_step_that_does_not_call_the_network(best, caplog):
    """A training step of another kind has it inside of something: one warning, and no config."""
    parameters = SimpleNamespace(original_args=lambda: SimpleNamespace(network=made(), train_network=nn.Dense(8, 4)))
    tuned_callback(best(JIT)).on_train_begin(parameters)
    (line,) = warned(caplog)
    assert "the tuned config is not used" in line
