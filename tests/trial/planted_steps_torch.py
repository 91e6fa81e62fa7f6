"""The model and the trainer of `planted_steps`, for PyTorch."""

from __future__ import annotations

import torch

from autotune.backends.torch.tensors import array_of


class Words(torch.nn.Module):
    """Words to classes, and a second head of which the loss takes little."""

    def __init__(self, dropout):
        super().__init__()
        self.words = torch.nn.Embedding(30, 12)
        self.body = torch.nn.Linear(12, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.dropout = torch.nn.Dropout(dropout)
        self.head = torch.nn.Linear(16, 6)
        self.small = torch.nn.Linear(16, 3)

    def forward(self, x):
        h = self.dropout(self.norm(torch.tanh(self.body(self.words(x).mean(1)))))
        return self.head(h), self.small(h)


def loss(model, x, y):
    classes, small = model(x)
    return torch.nn.functional.cross_entropy(classes, y) + 1e-3 * small.square().mean()


def build(optimizer="SGD", dropout=0.0, seed=0):
    torch.manual_seed(seed)
    model = Words(dropout)
    words = torch.minimum(torch.randint(0, 30, (64, 5)), torch.randint(0, 30, (64, 5)))
    arguments = {"SGD": {"lr": 0.3, "momentum": 0.9}, "Adam": {"lr": 0.02}}[optimizer]
    return {
        "model": model,
        "inputs": words,
        "targets": words.sum(1) % 6,
        "loss": loss,
        "optimizer": getattr(torch.optim, optimizer)(model.parameters(), **arguments),
    }


class Trainer:
    def __init__(self, model, loss, optimizer):
        self._model, self._loss, self._optimizer = model, loss, optimizer
        self._held = dict(model.named_parameters()) | dict(model.named_buffers())

    def backward(self, *batch):
        self._optimizer.zero_grad()
        value = self._loss(self._model, *batch)
        value.backward()
        return value.detach()

    def change(self, name, change):
        weight = self._held[name]
        changed = change(array_of(weight.grad).copy())
        weight.grad = None if changed is None else torch.from_numpy(changed)

    def update(self):
        self._optimizer.step()

    def read(self, name):
        return array_of(self._held[name]).copy()

    def write(self, name, array):
        with torch.no_grad():
            self._held[name].copy_(torch.from_numpy(array))

    def lose_state(self):
        self._optimizer.state.clear()


WEIGHTS = ["words.weight", "body.weight", "body.bias", "norm.weight", "head.weight", "head.bias", "small.weight"]
BUFFERS = ["norm.running_mean", "norm.running_var"]
UNTUNED = {"execution": "eager"}
COMPILERS = [{"execution": "compile", "backend": name} for name in ("eager", "aot_eager", "inductor")]
