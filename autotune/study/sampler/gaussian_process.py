"""A Gaussian process over configs: what the trials so far say about the configs that were not tried.

An `Encoding` makes points of configs, such that the squared distance of two counts the knobs in which they differ. With
a weight for each knob the kernel is `variance * exp(-sum_j weight_j [x_j != y_j])`. How much a knob matters is learned:
the weights maximise the posterior density of the values seen. Source of the formulas: Rasmussen and Williams, Gaussian
Processes for Machine Learning (2006), chapters 2 and 5. NumPy and SciPy only; trials and studies are unknown here.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.config import Config, Scalar
from autotune.space.space import Knob, SearchSpace

Array = npt.NDArray[np.float64]

_JITTER = 1e-8
_OPENBLAS = [f"{owner}openblas_{{}}_num_threads{width}" for owner in ("scipy_", "") for width in ("64_", "")]
"""Names of what reads and sets the number of threads, in the builds of OpenBLAS that NumPy and SciPy come with."""
_MAX_STEPS = 40
"""Steps of the optimiser: later ones change the weights by less than the trials know about them."""
_BOUND_SD = 4.0


class Encoding:
    """Configs of one space as points. An inactive knob is a level of its own.

    Two levels of a knob are at squared distance 1; of a knob with more than two positive numbers as values, at the
    distance of their logarithms, the smallest and the largest at 1: four threads are nearer to eight than to one.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._levels = {knob.name: _levels(knob) for knob in space.knobs}
        widths = [len(levels[_INACTIVE]) for levels in self._levels.values()]
        self.owners = np.repeat(np.arange(len(widths)), widths)
        """Feature -> the number of its knob."""
        self.num_knobs, self.num_features = len(widths), len(self.owners)

    def points(self, configs: Sequence[Config]) -> Array:
        """A row for each config, shape `(len(configs), num_features)`."""
        rows = [
            np.concatenate([levels[_level(config, name)] for name, levels in self._levels.items()])
            for config in configs
        ]
        return np.array(rows).reshape(len(configs), self.num_features)


_Level = tuple[str, Scalar]
_INACTIVE: _Level = ("", None)


def _level(config: Config, name: str) -> _Level:
    """Keeps 1 and True apart."""
    return (type(config[name]).__name__, config[name]) if name in config.root else _INACTIVE


def _levels(knob: Knob) -> dict[_Level, Array]:
    levels: list[_Level] = [(type(value).__name__, value) for value in knob.values]
    numbers = [value for value in knob.values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(levels) > 2 and len(numbers) == len(levels) and min(numbers) > 0:
        return dict(zip([*levels, _INACTIVE], _ladder(numbers), strict=True))
    return dict(zip([*levels, _INACTIVE], math.sqrt(0.5) * np.eye(len(levels) + 1), strict=True))


def _ladder(numbers: Sequence[float]) -> Array:
    """Rungs: a number has passed those below it. The last row, inactive, is at distance 1 from each number."""
    logs = np.log(np.array(numbers, dtype=float))
    rungs = np.sort(logs)
    heights = np.sqrt(np.diff(rungs) / (rungs[-1] - rungs[0]))
    passed = (logs[:, None] > rungs[None, :-1]) * heights
    active = np.column_stack([passed, np.zeros(len(numbers))])
    return np.vstack([active, [*heights / 2, math.sqrt(0.75)]])


@dataclass(frozen=True)
class KernelPrior:
    """What is thought of a kernel before anything was seen: log-normal, by median, with `log_sd` for each.

    Weights so small with a variance so large make the process almost additive, which latencies mostly are: a knob does
    what it does by itself, and interactions are corrections. Values come standardised.
    """

    weight: float = 0.03
    variance: float = 3.0
    noise: float = 0.01
    log_sd: float = 1.0

    def log_medians(self, num_knobs: int) -> Array:
        return np.asarray(np.log([*[self.weight] * num_knobs, self.variance, self.noise]))


@dataclass(frozen=True)
class Kernel:
    """`weights` of the features (those of one knob are equal), variance of the signal and of the noise."""

    weights: Array
    variance: float
    noise: float

    def between(self, first: Array, second: Array) -> Array:
        """Covariances of the noiseless values, shape `(len(first), len(second))`."""
        scale = np.sqrt(self.weights)
        return np.asarray(self.variance * np.exp(-_squared_distances(first * scale, second * scale)))


def prior_kernel(encoding: Encoding, prior: KernelPrior) -> Kernel:
    """Before anything was seen."""
    return _kernel(encoding, prior.log_medians(encoding.num_knobs))


def fit_kernel(encoding: Encoding, points: Array, values: Array, prior: KernelPrior) -> Kernel:
    """The kernel of largest posterior density (L-BFGS). `values` have mean 0 or the mean that is believed in."""
    from scipy.optimize import minimize

    num_knobs = encoding.num_knobs
    by_knob = np.stack(
        [_squared_distances(points[:, own], points[:, own]) for own in _columns(encoding.owners, num_knobs)]
    )
    medians = prior.log_medians(num_knobs)
    found = minimize(
        _loss,
        medians,
        args=(by_knob, values, medians, prior.log_sd),
        jac=True,
        method="L-BFGS-B",
        bounds=[(median - _BOUND_SD * prior.log_sd, median + _BOUND_SD * prior.log_sd) for median in medians],
        options={"maxiter": _MAX_STEPS},
    )
    return _kernel(encoding, found.x)


def _columns(owners: npt.NDArray[np.intp], num_knobs: int) -> list[npt.NDArray[np.bool_]]:
    return [owners == knob for knob in range(num_knobs)]


def _kernel(encoding: Encoding, logs: Array) -> Kernel:
    found = np.exp(logs)
    return Kernel(weights=found[:-2][encoding.owners], variance=float(found[-2]), noise=float(found[-1]))


def _loss(logs: Array, by_knob: Array, values: Array, medians: Array, log_sd: float) -> tuple[float, Array]:
    """Negative log posterior density of a kernel's logarithms, and its gradient (Rasmussen and Williams, 5.8, 5.9)."""
    from scipy.linalg import cho_solve, cholesky

    weights, variance, noise = np.exp(logs[:-2]), math.exp(logs[-2]), math.exp(logs[-1])
    signal = variance * np.exp(-np.tensordot(weights, by_knob, 1))
    identity = np.eye(len(values))
    factor = cholesky(signal + (noise + _JITTER) * identity, lower=True)
    solved = cho_solve((factor, True), values)
    slope = 0.5 * (cho_solve((factor, True), identity) - np.outer(solved, solved))
    along_signal = slope * signal
    gradient = np.array(
        [
            *(-weights * np.tensordot(by_knob, along_signal, 2)),
            along_signal.sum(),
            noise * np.trace(slope),
        ]
    )
    off = (logs - medians) / log_sd
    loss = 0.5 * values @ solved + np.log(np.diag(factor)).sum() + 0.5 * off @ off
    return float(loss), gradient + off / log_sd


def _squared_distances(first: Array, second: Array) -> Array:
    squares = (first**2).sum(1)[:, None] + (second**2).sum(1)[None, :] - 2 * first @ second.T
    return np.asarray(np.maximum(squares, 0.0))


class GaussianPosterior:
    """What is known once `values` were seen at `points`."""

    def __init__(self, kernel: Kernel, points: Array, values: Array) -> None:
        from scipy.linalg import cho_solve, cholesky

        self._kernel = kernel
        self._points = points
        self._values = values
        covariance = kernel.between(points, points) + (kernel.noise + _JITTER) * np.eye(len(values))
        self._factor = cholesky(covariance, lower=True)
        self._solved = cho_solve((self._factor, True), values)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the noiseless value at each point."""
        from scipy.linalg import solve_triangular

        cross = self._kernel.between(self._points, points)
        explained = solve_triangular(self._factor, cross, lower=True)
        variance = self._kernel.variance - (explained**2).sum(0)
        return cross.T @ self._solved, np.sqrt(np.maximum(variance, 1e-10))

    def believing(self, points: Array) -> GaussianPosterior:
        """As if each of these points had been seen at its mean: it stays where it was, but it is less uncertain."""
        if not len(points):
            return self
        values = np.concatenate([self._values, self.predict(points)[0]])
        return GaussianPosterior(self._kernel, np.vstack([self._points, points]), values)


def expected_improvement(mean: Array, sd: Array, best: float) -> Array:
    """By how much values of these normal distributions fall below `best`, on average.

    Source: Jones, Schonlau and Welch (1998), Efficient global optimization of expensive black-box functions, (15).
    """
    from scipy.special import ndtr

    z = (best - mean) / sd
    return np.asarray(sd * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within: linear algebra of this process takes one thread. Its matrices are small, and further threads wait for
    each other on the cores on which trials compile: 255 in place of 44 s of CPU time over some searches. Nothing
    changes for a BLAS other than OpenBLAS, nor outside of Linux."""
    setters = [(change, read()) for change, read in _thread_counts()]
    try:
        for change, _ in setters:
            change(1)
        yield
    finally:
        for change, before in setters:
            change(before)


@cache
def _thread_counts() -> list[tuple[Callable[[int], object], Callable[[], int]]]:
    """What sets and what reads the number of threads, for each OpenBLAS in this process."""
    import scipy.linalg  # noqa: F401  (SciPy has one of its own.)

    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "openblas" in line}
    libraries = [ctypes.CDLL(path) for path in sorted(paths)]
    names = [(name.format("set"), name.format("get")) for name in _OPENBLAS]
    return [
        (getattr(library, change), getattr(library, read))
        for library in libraries
        for change, read in names
        if hasattr(library, change) and hasattr(library, read)
    ]
