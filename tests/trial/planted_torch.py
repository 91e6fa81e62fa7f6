"""The model of `planted`, for PyTorch."""

from __future__ import annotations

import torch

from tests.trial.planted import Cache, Policy, begin_floats, leave_floats


class Everything(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(16, 32)
        self.boxes, self.scores = torch.nn.Conv1d(32, 4, 1), torch.nn.Conv1d(32, 12, 1)
        self.moments = torch.nn.Linear(32, 2)
        self.mean, self.keys, self.values = (torch.nn.Linear(32, width) for width in (6, 8, 8))
        self.register_buffer("statistics", torch.zeros(32))
        self.num_calls = 0
        self.last = torch.zeros(32)
        self.history = []
        begin_floats(self)

    def forward(self, x, memory, step):
        h = torch.tanh(self.body(x)) * (1 + 0.1 * step)
        channels = h.transpose(1, 2)
        memory[:, 0] = h.mean(dim=(1, 2))
        self.statistics.mul_(0.9).add_(0.1 * h.mean(dim=(0, 1)))
        self.num_calls += 1
        self.last = h.mean(dim=(0, 1))
        self.history.append(float(h.mean() > 0))
        leave_floats(self, float(h.mean()))
        pooled = h.mean(1)
        moments = torch.stack([50 + 5 * self.moments(pooled)[:, 0], 1e-2 * self.moments(pooled)[:, 1].exp()], -1)
        boxes, scores = 640 * self.boxes(channels).sigmoid(), 0.2 * self.scores(channels).sigmoid()
        return {
            "detections": torch.cat([boxes, scores], 1),
            "moments": moments,
            "policy": Policy(self.mean(pooled), 0.1 * self.mean(pooled).exp()),
            "cache": Cache(self.keys(h), self.values(h)),
            "ids": scores.argmax(1),
            "label": "ok",
        }

    def put_back(self, name, array):
        with torch.no_grad():
            if name == "statistics":
                self.statistics.copy_(torch.from_numpy(array))
            else:
                setattr(self, name, torch.from_numpy(array))


def build(seed=0):
    torch.manual_seed(seed)
    model = Everything().eval()
    calls = [(torch.randn(8, 10, 16), torch.zeros(8, 4), step) for step in (3, 7)]
    return model, calls[0], calls[1:]


class Used(torch.nn.Module):
    """For a longer use: see `planted_use`."""

    def __init__(self):
        super().__init__()
        self.body, self.keys = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
        self.register_buffer("table", torch.randn(10, 4))

    def forward(self, x, mask, gain, power):
        h = self.body(x) * gain * mask[..., None]
        scores, order = torch.sort(x[:, :, 0], dim=1, stable=True)
        return {
            "features": h * power,
            "pooled": power * h.sum(1) / mask.sum(1, keepdim=True),
            "keys": self.keys(h) * power,
            "scores": scores,
            "order": order,
            "table": self.table + 0,
        }


def build_used(seed=0):
    torch.manual_seed(seed)
    return Used().eval(), (torch.randn(8, 10, 16), torch.ones(8, 10), torch.full((32,), 0.5), 1.5)
