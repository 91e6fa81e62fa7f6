"""Cells that break in exactly one way each, and the same Cells after the cure that is printed for it.

The line to be found ends with `# HERE`. A broken Cell and its mended twin are two classes, since capture `bytecode`
hangs what it knows on the code.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from autotune.ailment import Ailment

LOGGER = logging.getLogger(__name__)


class BranchBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        if y.sum() > 0:  # HERE
            y = y + 1
        return y


class BranchCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return ops.where(y.sum() > 0, y + 1, y)


class NumPyBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + Tensor(np.sort(y.asnumpy(), 0))  # HERE


class NumPyCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + ops.sort(y, 0)[0]


class LoggingBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        LOGGER.warning("called")  # HERE
        return y + 1


class LoggingCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + 1


class ClockBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + 0 * time.time()  # HERE


class ClockCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + 0.0


class RandomBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + 0 * random.random()  # HERE


class RandomCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + 0 * ops.reduce_mean(x)


class TryBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        try:  # HERE
            y = y.reshape((6, 4))
        except ValueError:
            y = x
        return y


class TryCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y.reshape((6, 4)) if y.size == 24 else x


class WithBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        with contextlib.nullcontext():  # HERE
            y = y + 1
        return y * 1


class WithCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return (y + 1) * 1


class SetBroken(nn.Cell):
    def construct(self, x):
        names = {1, 2}  # HERE
        return x * len(names)


class SetCured(nn.Cell):
    def construct(self, x):
        names = (1, 2)
        return x * len(names)


class CounterBroken(nn.Cell):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def construct(self, x):
        self.calls = self.calls + 1  # HERE
        return x * 2 + 0 * self.calls


class CounterCured(nn.Cell):
    def __init__(self):
        super().__init__()
        self.calls = Parameter(Tensor(0.0, ms.float32), requires_grad=False)

    def construct(self, x):
        self.calls += 1
        return x * 2 + 0 * self.calls


PATTERNS: dict[tuple[str, str], Ailment] = {
    ("ast", "NumPy"): Ailment.NUMPY,
    ("ast", "Clock"): Ailment.CLOCK_OR_RANDOM,
    ("ast", "Random"): Ailment.CLOCK_OR_RANDOM,
    ("ast", "Try"): Ailment.EXCEPTION,
    ("ast", "With"): Ailment.CONTEXT,
    ("ast", "Set"): Ailment.CONTAINER,
    ("bytecode", "Branch"): Ailment.BRANCH,
    ("bytecode", "NumPy"): Ailment.NUMPY,
    ("bytecode", "Logging"): Ailment.PRINT,
    ("bytecode", "Random"): Ailment.CLOCK_OR_RANDOM,
    ("bytecode", "With"): Ailment.CONTEXT,
    ("bytecode", "Set"): Ailment.CONTAINER,
    ("bytecode", "Counter"): Ailment.CHANGING_VALUE,
}


def pattern(name: str, cured: bool):
    """A Cell and the tensors to call it with."""
    first = Tensor(np.linspace(-1, 2, 24, dtype=np.float32).reshape(6, 4))
    return globals()[f"{name}{'Cured' if cured else 'Broken'}"](), [first, -first, first]


def broken(name: str):
    """As `--model` takes it."""
    model, (first, *more) = pattern(name, cured=False)
    return model, first, more
