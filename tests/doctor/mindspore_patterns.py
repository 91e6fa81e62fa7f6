"""Cells that break in exactly one way each, and the same Cells after the cure that is printed for it.

The line to be found ends with `# HERE`; there is none where MindSpore tells no place. A broken Cell and its mended twin
are two classes, since capture `bytecode` hangs what it knows on the code.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from autotune.measure.diagnosis import BreakKind

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


class NumberBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y * y.asnumpy().max().item()  # HERE


class NumberCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y * y.max()


class FollowingBroken(nn.Cell):
    """MindSpore's own operator is interpreted as well, for the value that it is given."""

    def construct(self, x):
        y = x * 2
        order = Tensor(np.sort(y.asnumpy(), 0))
        return ops.matmul(y, order.swapaxes(0, 1))  # HERE


class FollowingCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return ops.matmul(y, ops.sort(y, 0)[0].swapaxes(0, 1))


class FileSystemBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        os.stat(".")  # HERE
        return y + 1


class FileSystemCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + 1


class GeneratorBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        for each in self.multiples(x):  # HERE
            y = y + each
        return y

    def multiples(self, x):
        for number in range(3):
            yield x * number


class GeneratorCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        for number in range(3):
            y = y + x * number
        return y


class BatchesBroken(nn.Cell):
    def construct(self, x):  # HERE
        return ops.tanh(x).sum(0)


class BatchesCured(nn.Cell):
    """It is given padded batches: rows of zeros add nothing."""

    def construct(self, x):
        return ops.tanh(x).sum(0)


class MaskBroken(nn.Cell):
    """The place is not told: MindSpore fails in itself."""

    def construct(self, x):
        y = x * 2
        return y[y > 0].sum()


class MaskCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return ops.where(y > 0, y, 0.0).sum()


class SizesBroken(nn.Cell):
    def construct(self, x):
        return ops.tanh(x) * 2


class SizesCured(nn.Cell):
    def construct(self, x):
        return ops.tanh(x) * 2


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


PATTERNS: dict[tuple[str, str], BreakKind] = {
    ("ast", "NumPy"): BreakKind.NUMPY,
    ("ast", "Clock"): BreakKind.CLOCK_OR_RANDOM,
    ("ast", "Random"): BreakKind.CLOCK_OR_RANDOM,
    ("ast", "Try"): BreakKind.EXCEPTION,
    ("ast", "With"): BreakKind.CONTEXT,
    ("ast", "Set"): BreakKind.CONTAINER,
    ("bytecode", "Branch"): BreakKind.BRANCH,
    ("bytecode", "NumPy"): BreakKind.NUMPY,
    ("bytecode", "Logging"): BreakKind.PRINT,
    ("bytecode", "Random"): BreakKind.CLOCK_OR_RANDOM,
    ("bytecode", "With"): BreakKind.CONTEXT,
    ("bytecode", "Set"): BreakKind.CONTAINER,
    ("bytecode", "Counter"): BreakKind.CHANGING_VALUE,
    ("ast", "Number"): BreakKind.SCALAR,
    ("ast", "Following"): BreakKind.AFTER_BREAK,
    ("ast", "Generator"): BreakKind.GENERATOR,
    ("bytecode", "FileSystem"): BreakKind.FOREIGN_CALL,
    ("ast", "Sizes"): BreakKind.CHANGING_INPUT,
    ("bytecode", "Mask"): BreakKind.OPERATOR,
    ("bytecode", "Batches"): BreakKind.CHANGING_SHAPE,
}


def pattern(name: str, cured: bool):
    """A Cell and the tensors to call it with."""
    cell = globals()[f"{name}{'Cured' if cured else 'Broken'}"]()
    first = Tensor(np.linspace(-1, 2, 24, dtype=np.float32).reshape(6, 4))
    if name not in ("Batches", "Sizes"):
        return cell, [first, -first, first]
    batches = [first[:rows] for rows in (4, 5, 6)]
    if name == "Sizes" and cured:
        cell.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))
    elif cured:
        batches = [ops.concat([each, ops.zeros((6 - len(each), 4), each.dtype)]) for each in batches[:2]] + [first]
    return cell, batches


def broken(name: str):
    """As `--model` takes it."""
    model, (first, *more) = pattern(name, cured=False)
    return model, first, more
