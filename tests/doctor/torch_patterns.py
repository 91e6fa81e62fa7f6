"""Models that break in exactly one way each, and the same models after the cure that is printed for it.

The line to be found ends with `# HERE`. Each function is a model for `--model`: `cured` gives the mended twin.
"""

from __future__ import annotations

import copy
import logging
import os
import random
import time

import numpy as np
import torch
from torch import nn

from autotune.measure.diagnosis import BreakKind

LOGGER = logging.getLogger(__name__)


class Model(nn.Module):
    """Something to compute before and after the break."""

    def __init__(self, cured: bool) -> None:
        super().__init__()
        self.cured = cured


def example(rows: int = 6) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, rows * 4).reshape(rows, 4)


class Branch(Model):
    def forward(self, x):
        y = x * 2
        if self.cured:
            return torch.where(y.sum() > 0, y + 1, y)
        if y.sum() > 0:  # HERE
            y = y + 1
        return y


class Item(Model):
    def forward(self, x):
        scale = x.mean() if self.cured else x.mean().item()  # HERE
        return x * scale


class ToList(Model):
    def forward(self, x):
        y = x * 2
        if self.cured:
            return y + y.sum(1)[0]
        return y + y.sum(1).tolist()[0]  # HERE


class Print(Model):
    def forward(self, x):
        y = x * 2
        if not self.cured:
            print("mean", y.shape)  # HERE # noqa: T201
        return y + 1


class Logging(Model):
    def forward(self, x):
        y = x * 2
        if not self.cured:
            LOGGER.warning("called with %s", y.shape)  # HERE
        return y + 1


class NumPy(Model):
    def forward(self, x):
        y = x * 2
        if self.cured:
            return y + torch.nanmean(y, 0)
        return y + torch.from_numpy(np.nanmean(y.numpy(), 0))  # HERE


class Clock(Model):
    def forward(self, x):
        y = x * 2
        if not self.cured:
            self.last = time.perf_counter()  # HERE
        return y + 1


class Random(Model):
    def forward(self, x):
        y = x * 2
        draw = torch.rand(()) if self.cured else random.random()  # HERE
        return y + 0 * draw


class BooleanMask(Model):
    def forward(self, x):
        y = x * 2
        if self.cured:
            return torch.where(y > 0, y, 0.0).sum()
        return y[y > 0].sum()  # HERE


class NonZero(Model):
    def forward(self, x):
        y = x * 2
        if self.cured:
            return (y != 0).sum() + y
        return torch.nonzero(y).shape[0] + y  # HERE


class Hooks(Model):
    def forward(self, x):
        if self.cured:
            return x * 2
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # HERE
            return x * 2


class FileSystem(Model):
    def forward(self, x):
        y = x * 2
        if not self.cured:
            os.stat(".")  # HERE
        return y + 1


class DeepCopy(Model):
    def forward(self, x):
        y = x * 2
        kept = y.clone() if self.cured else copy.deepcopy(y)  # HERE
        return kept + 1


@torch.compiler.disable
def _kept_out(x):
    return x * 3


class Disabled(Model):
    def forward(self, x):
        y = x * 2
        y = y * 3 if self.cured else _kept_out(y)  # HERE
        return y + 1


@torch.library.custom_op("doctor::untold", mutates_args=())
def _untold(x: torch.Tensor) -> torch.Tensor:
    return x + 3


@torch.library.custom_op("doctor::told", mutates_args=())
def _told(x: torch.Tensor) -> torch.Tensor:
    return x + 3


@_told.register_fake
def _(x):
    return torch.empty_like(x)


class CustomOp(Model):
    def forward(self, x):
        y = x * 2
        y = _told(y) if self.cured else _untold(y)  # HERE
        return y + 1


class Recurrent(Model):
    """A cell in a loop computes what the layer does: with the same weights, as the gates are in the same order."""

    def __init__(self, cured: bool) -> None:
        super().__init__(cured)
        self.gru, self.cell = nn.GRU(4, 4), nn.GRUCell(4, 4)
        with torch.no_grad():
            for number, (name, weight) in enumerate(self.cell.named_parameters()):
                weight.copy_(torch.linspace(-1, 1, weight.numel()).reshape(weight.shape) / (number + 1))
                getattr(self.gru, f"{name}_l0").copy_(weight)

    def forward(self, x):
        if not self.cured:
            return self.gru(x)[0]  # HERE
        state, out = torch.zeros(4), []
        for step in x:
            state = self.cell(step, state)
            out.append(state)
        return torch.stack(out)


def _halves():
    scale = 1.0
    while True:
        yield scale
        scale /= 2


class KeptGenerator(Model):
    def __init__(self, cured: bool) -> None:
        super().__init__(cured)
        self.scales = _halves()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        y = x * 2
        if self.cured:
            self.scale.mul_(0.5)
            return y * self.scale
        return y * next(self.scales)  # HERE


class Caught(Model):
    def forward(self, x):
        y = x * 2
        known = {"rows": 6}
        if self.cured:
            return y * known["columns"] if "columns" in known else y + 1
        try:
            y = y * known["columns"]
        except KeyError as missing:
            missing.rows = known["rows"]  # HERE
            y = y + 1
        return y


class BehindBreak(Model):
    """Each call has another number, and compiles the code behind the break again."""

    def forward(self, x):
        y = x * 2
        if self.cured:
            return y * y.abs().amax()
        number = y.abs().max().item()
        return y * number  # HERE


class BreakInLoop(Model):
    """Dynamo gives the whole function up."""

    def forward(self, x):
        for number in range(3):
            x = torch.tanh(x)
            if not self.cured:
                print(number)  # HERE # noqa: T201
        return x


class Counter(Model):
    def __init__(self, cured: bool) -> None:
        super().__init__(cured)
        self.calls = 0
        self.register_buffer("counted", torch.zeros(()))

    def forward(self, x):
        if self.cured:
            self.counted.add_(1)
            return x * 2 + 0 * self.counted
        self.calls += 1  # HERE
        return x * 2 + 0 * self.calls


class GrowingList(Model):
    def __init__(self, cured: bool) -> None:
        super().__init__(cured)
        self.seen: list[torch.Tensor] = []

    def forward(self, x):
        y = x * 2
        if self.cured:
            return y, y.mean()
        self.seen.append(y.mean())  # HERE
        return y, y.mean()


class Batches(Model):
    def forward(self, x):  # HERE
        return torch.tanh(x) * 2


class Types(Model):
    def forward(self, x):  # HERE
        return torch.tanh(x) * 2


def _inputs(name: str, cured: bool) -> list[torch.Tensor]:
    """The example first; most are called with another sign too, which takes the other branch."""
    if name == "Batches":
        batches = [example(rows) for rows in (4, 6, 8)]
        if cured:
            for each in batches:
                torch._dynamo.mark_dynamic(each, 0)
        return batches
    if name == "Types":
        wide = example().double()
        return [example(), wide.float() if cured else wide]
    if name == "BehindBreak":
        return [example(), example() * 2, example() * 3]
    return [example(), -example(), example()]


def pattern(name: str, cured: bool = False):
    """A model and its inputs, as `--model` takes them."""
    first, *more = _inputs(name, cured)
    return globals()[name](cured).eval(), first, more


PATTERNS: dict[str, BreakKind] = {
    "Branch": BreakKind.BRANCH,
    "Item": BreakKind.SCALAR,
    "ToList": BreakKind.SCALAR,
    "Print": BreakKind.PRINT,
    "Logging": BreakKind.PRINT,
    "NumPy": BreakKind.NUMPY,
    "Clock": BreakKind.CLOCK_OR_RANDOM,
    "Random": BreakKind.CLOCK_OR_RANDOM,
    "BooleanMask": BreakKind.DATA_SHAPE,
    "NonZero": BreakKind.DATA_SHAPE,
    "Hooks": BreakKind.CONTEXT,
    "FileSystem": BreakKind.FOREIGN_CALL,
    "DeepCopy": BreakKind.CONTAINER,
    "Disabled": BreakKind.DISABLED,
    "CustomOp": BreakKind.CUSTOM_OP,
    "Recurrent": BreakKind.OPERATOR,
    "KeptGenerator": BreakKind.GENERATOR,
    "Caught": BreakKind.EXCEPTION,
    "BehindBreak": BreakKind.AFTER_BREAK,
    "BreakInLoop": BreakKind.PRINT,
    "Counter": BreakKind.CHANGING_VALUE,
    "GrowingList": BreakKind.CHANGING_CONTAINER,
    "Batches": BreakKind.CHANGING_SHAPE,
    "Types": BreakKind.CHANGING_TYPE,
}
