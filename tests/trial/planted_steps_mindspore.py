"""The model and the trainer of `planted_steps`, for MindSpore."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from autotune.backends.mindspore.tensors import array_of

# Its queues take three times the CPU time, for so small operators.
ms.set_context(pynative_synchronize=True)


class Words(nn.Cell):
    """Words to classes, and a second head of which the loss takes little."""

    def __init__(self, dropout):
        super().__init__()
        self.words = ms.Parameter(ops.standard_normal((30, 12)))
        self.body = nn.Dense(12, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(p=dropout)
        self.head = nn.Dense(16, 6)
        self.small = nn.Dense(16, 3)

    def construct(self, x):
        h = self.dropout(self.norm(ops.tanh(self.body(self.words[x].mean(1)))))
        return self.head(h), self.small(h)


def loss(model, x, y):
    classes, small = model(x)
    return ops.cross_entropy(classes, y) + 1e-3 * ops.square(small).mean()


def build(optimizer="SGD", dropout=0.0, seed=0):
    ms.set_seed(seed)
    generator = np.random.default_rng(seed)
    model = Words(dropout)
    weights = model.trainable_params()
    words = np.minimum(generator.integers(0, 30, (64, 5)), generator.integers(0, 30, (64, 5))).astype(np.int32)
    return {
        "model": model,
        "inputs": ms.Tensor(words),
        "targets": ms.Tensor((words.sum(1) % 6).astype(np.int32)),
        "loss": loss,
        "optimizer": nn.Momentum(weights, 0.3, 0.9) if optimizer == "SGD" else nn.Adam(weights, 0.02),
    }


class Trainer:
    def __init__(self, model, loss, optimizer):
        self._model, self._optimizer = model, optimizer
        self._held = model.parameters_dict()
        self._gradients_of = ms.value_and_grad(lambda *batch: loss(model, *batch), None, optimizer.parameters)
        self._gradients = []

    def backward(self, *batch):
        value, gradients = self._gradients_of(*batch)
        self._gradients = list(gradients)
        return value

    def change(self, name, change):
        place = next(n for n, weight in enumerate(self._optimizer.parameters) if weight.name == name)
        self._gradients[place] = ms.Tensor(change(array_of(self._gradients[place]).copy()))

    def update(self):
        self._optimizer(tuple(self._gradients))

    def read(self, name):
        return array_of(self._held[name]).copy()

    def write(self, name, array):
        ops.assign(self._held[name], ms.Tensor(array))

    def lose_state(self):
        for moment in self._optimizer.moments:
            ops.assign(moment, ms.Tensor(np.zeros(moment.shape, np.float32)))


WEIGHTS = [
    "words", "body.weight", "body.bias", "norm.gamma", "head.weight", "head.bias", "small.weight",
]  # fmt: skip
BUFFERS = ["norm.moving_mean", "norm.moving_variance"]
UNTUNED = {"execution": "pynative"}
COMPILERS = [{"execution": "jit"}, {"execution": "graph"}]
