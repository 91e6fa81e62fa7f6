"""Seeded values of parameters and inputs, made by numpy so that every framework gets the same ones.

A parameter's values depend on its canonical name (its dotted path in the PyTorch model), its shape and the
seed, and on nothing else: not on the order in which a framework builds or lists its parameters.
"""

from __future__ import annotations

from math import prod, sqrt
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

__all__ = ["labels", "normal_input", "token_input", "value"]

_BIAS_SCALE = 0.02
_SPREAD = 0.1  # of normalisation scales and running statistics around the value at which they do nothing


def value(name: str, shape: tuple[int, ...], seed: int, *, gain: float = 1.0) -> NDArray[np.float32]:
    """The values of the parameter or buffer `name`, as float32 of the given shape.

    The role is read from the last component of the name and from the rank. Matrices, kernels and embedding
    tables have the standard deviation `gain / sqrt(fan_in)`, where the fan-in is the product of all but the
    first dimension: with a gain of 1, a linear layer keeps the variance of its input (LeCun et al., Efficient
    BackProp, 1998).
    """
    rng = _generator(name, seed)
    role = name.rpartition(".")[2]
    if role == "running_var":
        values = rng.uniform(1 - _SPREAD, 1 + _SPREAD, shape)
    elif role == "running_mean":
        values = _SPREAD * rng.standard_normal(shape)
    elif role.startswith("bias"):  # A recurrent layer has several.
        values = _BIAS_SCALE * rng.standard_normal(shape)
    elif len(shape) == 1:
        values = 1 + _SPREAD * rng.standard_normal(shape)
    else:
        values = gain / sqrt(prod(shape[1:])) * rng.standard_normal(shape)
    return np.asarray(values, dtype=np.float32)


def normal_input(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """An input of standard normal float32 values; with mean zero, its negation is as likely an input."""
    return _generator("input", seed).standard_normal(shape, dtype=np.float32)


def token_input(shape: tuple[int, ...], vocab: int, seed: int) -> NDArray[np.int64]:
    """An input of int64 token ids, uniform in [0, vocab)."""
    return _generator("input", seed).integers(0, vocab, shape, dtype=np.int64)


def labels(num_items: int, num_classes: int, seed: int) -> NDArray[np.int64]:
    """A class for each item of a batch, uniform in [0, num_classes)."""
    return _generator("labels", seed).integers(0, num_classes, num_items, dtype=np.int64)


def _generator(name: str, seed: int) -> np.random.Generator:
    """A generator of its own for every name and (non-negative) seed."""
    return np.random.default_rng((seed, crc32(name.encode())))
