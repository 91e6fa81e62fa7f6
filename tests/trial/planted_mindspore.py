"""The model of `planted`, for MindSpore."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from tests.trial.planted import Cache, Policy, begin_floats, leave_floats

# Its queues take four times the CPU time, for so small operators.
ms.set_context(pynative_synchronize=True)


class Everything(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.Dense(16, 32)
        self.boxes, self.scores = nn.Dense(32, 4), nn.Dense(32, 12)
        self.moments = nn.Dense(32, 2)
        self.mean, self.keys, self.values = (nn.Dense(32, width) for width in (6, 8, 8))
        self.statistics = ms.Parameter(ops.zeros((32,), ms.float32), requires_grad=False)
        self.num_calls = 0
        self.last = ops.zeros((32,), ms.float32)
        self.history = []
        begin_floats(self)

    def construct(self, x, memory, step):
        h = ops.tanh(self.body(x)) * (1 + 0.1 * step)
        memory[:, 0] = h.mean((1, 2))
        self.statistics = 0.9 * self.statistics + 0.1 * h.mean((0, 1))
        self.num_calls = self.num_calls + 1
        self.last = h.mean((0, 1))
        self.history.append(float(h.mean() > 0))
        leave_floats(self, float(h.mean()))
        pooled = h.mean(1)
        moments = ops.stack([50 + 5 * self.moments(pooled)[:, 0], 1e-2 * self.moments(pooled)[:, 1].exp()], -1)
        boxes = 640 * ops.sigmoid(self.boxes(h)).swapaxes(1, 2)
        scores = 0.2 * ops.sigmoid(self.scores(h)).swapaxes(1, 2)
        return {
            "detections": ops.cat([boxes, scores], 1),
            "moments": moments,
            "policy": Policy(self.mean(pooled), 0.1 * self.mean(pooled).exp()),
            "cache": Cache(self.keys(h), self.values(h)),
            "ids": scores.argmax(1),
            "label": "ok",
        }

    def put_back(self, name, array):
        if name == "statistics":
            self.statistics.set_data(ms.Tensor(array))
        else:
            setattr(self, name, ms.Tensor(array))


def build(seed=0):
    ms.set_seed(seed)
    generator = np.random.default_rng(seed)
    model = Everything()
    model.set_train(False)
    calls = [
        (ms.Tensor(generator.normal(size=(8, 10, 16)).astype(np.float32)), ops.zeros((8, 4), ms.float32), step)
        for step in (3, 7)
    ]
    return model, calls[0], calls[1:]


class Used(nn.Cell):
    """For a longer use: see `planted_use`."""

    def __init__(self):
        super().__init__()
        self.body, self.keys = nn.Dense(16, 32), nn.Dense(32, 8)
        self.table = ms.Parameter(ms.Tensor(np.random.default_rng(1).normal(size=(10, 4)), ms.float32))

    def construct(self, x, mask, gain, power):
        h = self.body(x) * gain * mask[..., None]
        scores, order = ops.sort(x[:, :, 0], axis=1)
        return {
            "features": h * power,
            "pooled": power * h.sum(1) / mask.sum(1, keepdims=True),
            "keys": self.keys(h) * power,
            "scores": scores,
            "order": order.astype(ms.int64),
            "table": self.table + 0,
        }


def build_used(seed=0):
    ms.set_seed(seed)
    model = Used()
    model.set_train(False)
    x = np.random.default_rng(seed).normal(size=(8, 10, 16)).astype(np.float32)
    return model, (ms.Tensor(x), ops.ones((8, 10), ms.float32), ms.Tensor(np.full(32, 0.5, np.float32)), 1.5)
