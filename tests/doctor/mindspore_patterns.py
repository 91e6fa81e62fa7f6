"""Cells that break in exactly one way each, and the same Cells after the cure that is printed for it.

The line to be found ends with `# HERE`; there is none where MindSpore tells no place.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from autotune.measure.diagnosis import BreakKind


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
        logging.getLogger(__name__).warning("called")  # HERE
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


class ForeignBroken(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + copy.deepcopy(y)  # HERE


class ForeignCured(nn.Cell):
    def construct(self, x):
        y = x * 2
        return y + y


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


class SizesBroken(nn.Cell):
    def construct(self, x):
        return ops.tanh(x) * 2


class SizesCured(nn.Cell):
    def construct(self, x):
        return ops.tanh(x) * 2


PATTERNS: dict[str, BreakKind] = {
    "NumPy": BreakKind.NUMPY,
    "Logging": BreakKind.PRINT,
    "Foreign": BreakKind.FOREIGN_CALL,
    "Clock": BreakKind.CLOCK_OR_RANDOM,
    "Random": BreakKind.CLOCK_OR_RANDOM,
    "Try": BreakKind.EXCEPTION,
    "With": BreakKind.CONTEXT,
    "Set": BreakKind.CONTAINER,
    "Number": BreakKind.SCALAR,
    "Following": BreakKind.AFTER_BREAK,
    "Generator": BreakKind.GENERATOR,
    "Sizes": BreakKind.CHANGING_INPUT,
}


def pattern(name: str, cured: bool):
    """A Cell and the tensors to call it with."""
    cell = globals()[f"{name}{'Cured' if cured else 'Broken'}"]()
    first = Tensor(np.linspace(-1, 2, 24, dtype=np.float32).reshape(6, 4))
    if name != "Sizes":
        return cell, [first, -first, first]
    if cured:
        cell.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32))
    return cell, [first[:rows] for rows in (4, 5, 6)]


def broken(name: str):
    """As `--model` takes it."""
    model, (first, *more) = pattern(name, cured=False)
    return model, first, more
