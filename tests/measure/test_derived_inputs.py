"""Inputs that are made of the example's: other values, and still inputs that a model takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.derived_inputs import derived_inputs

Array = NDArray[Any]
SEEDS = range(8)


def random(*shape: int) -> Array:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def integers(high: int, *shape: int) -> Array:
    return np.random.default_rng(1).integers(0, high, size=shape)


def derived(*examples: Array, seed: int = 0) -> Any:
    found = derived_inputs(examples, seed)
    return found[0] if len(examples) == 1 else found


def covariance(size: int) -> Array:
    half = random(size, size)
    return half @ half.T + np.eye(size, dtype=np.float32)


def test_shapes_and_types_stay() -> None:
    """A number without dimensions stays one; what is no array stays None; the example is not written to."""
    examples = [
        np.array(0.7, np.float32),
        np.array(37),
        None,
        np.array(3.0),
        np.ones((0, 5)),
        random(2, 3, 4),
        random(4, 4).astype(np.complex64),
        random(3).astype(np.float16),
        integers(255, 2, 3, 8).astype(np.uint8),
        np.arange(6) > 2,
    ]
    before = [None if each is None else each.copy() for each in examples]
    for example, kept, other in zip(examples, before, derived_inputs(examples, seed=0), strict=True):
        if example is None or other is None or kept is None:
            assert example is other is kept
        else:
            assert (type(other), other.shape, other.dtype) == (np.ndarray, example.shape, example.dtype)
            assert np.array_equal(example, kept)


@pytest.mark.parametrize(
    "example",
    [
        random(8, 5),
        np.abs(random(8, 5)),
        np.abs(random(1, 3, 20, 20)),
        random(48, 3),
        random(64),
        np.array(0.7),
        np.array([0.7]),
        random(6).astype(np.float16),
        random(4, 3).astype(np.complex64),
        covariance(6),
        np.linspace(0.1, 1, 20),
        integers(1000, 4, 128),
        integers(1000, 1, 128),
        integers(1000, 600),
        integers(256, 1, 3, 32, 32).astype(np.uint8),
    ],
    ids=lambda a: f"{a.dtype} {a.shape}",
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_capture_of_the_example_cannot_pass(example: Array, seed: int) -> None:
    """The values are others, and so is what a model makes of them that does not look at the order."""
    other = derived(example, seed=seed)
    assert not np.array_equal(other, example)
    if np.issubdtype(example.dtype, np.inexact):
        assert not np.isclose(np.square(np.abs(other)).sum(), np.square(np.abs(example)).sum(), rtol=0.01)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(50, 20), (1, 1000), (1000,), (1, 3, 16, 16)])
def test_a_branch_on_the_sign_of_a_mean_is_flipped(shape: tuple[int, ...], scale: float) -> None:
    """Floats of both signs change it, so that a capture of one path gives wrong results."""
    example = ((random(*shape) + 0.3) * scale).astype(np.float32)
    assert example.mean() > 0 > derived(example).mean()


@pytest.mark.parametrize("size", [2, 3, 16])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_belong_together_stay_together(size: int, seed: int) -> None:
    """All inputs of a batch get one other order: ids, masks, lengths and pictures of a row stay with each other."""
    place = np.arange(size)
    picture = np.repeat(place[:, None] + 1.0, 5, axis=1)
    mask = place[:, None] >= np.arange(size)[::-1]
    pictures, numbers, masks = derived(picture, np.roll(place, 1), mask, seed=seed)
    order = np.rint(pictures[:, 0] / 0.75 - 1).astype(int)
    assert sorted(order) == list(place) != list(order)
    assert np.array_equal(masks, mask[order])
    assert np.array_equal(numbers, np.roll(place, 1)[order]) or size == 2  # Two are in order whatever they are.


@pytest.mark.parametrize(
    "table",
    [
        np.stack([integers(50, 2000), integers(400, 2000)]),
        np.stack([integers(400, 2000), integers(50, 2000), integers(7, 2000)]),
        integers(1_000_000, 64, 26) % (10 ** (1 + np.arange(26) % 6)),
        integers(1_000_000, 1, 26) % (10 ** (1 + np.arange(26) % 6)),
        integers(1_000_000, 4, 26) % (10 ** (1 + np.arange(26) % 6)),
        integers(30_000, 4, 128),
        integers(20, 5, 3, 4),
    ],
    ids=lambda a: str(a.shape),
)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_index_stays_one_of_its_own_table(table: Array, seed: int) -> None:
    """Users and items, the columns of a record: whichever table a place looks into, the index is one that is there."""
    other = derived(table, seed=seed)
    assert not np.array_equal(other, table)
    assert (other >= 0).all()
    assert (other <= table).all()


KEPT = {
    "offsets": np.array([0, 3, 3, 7, 12]),
    "offsets of a packed batch": np.concatenate([[0], np.cumsum(integers(20, 40) + 1)]).astype(np.int32),
    "lengths, the longest first": np.array([9, 9, 4, 2]),
    "the graph of each node": np.repeat(np.arange(5), [3, 1, 4, 2, 6]),
    "positions": np.tile(np.arange(12), (4, 1)),
    "sizes of levels": np.array([[64, 80], [32, 40], [16, 20]]),
    "height and width": np.array([480, 640]),
    "width and height": np.array([640, 480]),
    "a time step": np.array(37),
    "a few numbers that are no batch": np.array([3, 1, 2, 7]),
    "sorted edges": np.stack([np.sort(integers(9, 200)), integers(9, 200)]),
    "a causal mask": np.tril(np.ones((6, 6), bool))[None, None],
    "a mask to be added": np.triu(np.full((1, 1, 7, 7), -np.inf, np.float32), 1),
    "a mask of the smallest number": np.triu(np.full((7, 7), np.finfo(np.float32).min), 1)[None],
    "a flag": np.array(1.0),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_has_an_order_stays_as_it_is(name: str, seed: int) -> None:
    """Beside an input whose rows are no rows of it."""
    _, other = derived(random(11, 2), KEPT[name], seed=seed)
    assert np.array_equal(other, KEPT[name])


@pytest.mark.parametrize("seed", SEEDS)
def test_sums_of_lengths_stay(seed: int) -> None:
    """Lengths that are not sorted are put in the order of their rows, and add up to what they did."""
    lengths = np.array([4, 1, 7, 2, 9, 3])
    _, other = derived(random(6, 9, 2), lengths, seed=seed)
    assert sorted(other) == sorted(lengths)


def boxes(size: int) -> Array:
    corner = np.abs(random(size, 2)) * 100
    return np.concatenate([corner, corner + 5 + np.abs(random(size, 2))], axis=1)


START = integers(50, 500)
ORDERED = {
    "a box": (boxes(1), np.s_[..., :2], np.s_[..., 2:]),
    "boxes": (boxes(7), np.s_[..., :2], np.s_[..., 2:]),
    "a batch of boxes": (boxes(7)[None], np.s_[..., :2], np.s_[..., 2:]),
    "boxes in pixels": ((boxes(7) * 10).astype(np.int64), np.s_[..., :2], np.s_[..., 2:]),
    "edges that go forward": (np.stack([START, START + 1 + integers(9, 500)]), np.s_[0], np.s_[1]),
}


@pytest.mark.parametrize(("example", "low", "high"), ORDERED.values(), ids=ORDERED)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_relation_within_an_input_holds(example: Array, low: Any, high: Any, seed: int) -> None:
    """Corners of a box keep their order, and so do the rows of an index in each column."""
    other = derived(example, seed=seed)
    assert (other[low] < other[high]).all()


@pytest.mark.parametrize(
    "matrix", [covariance(6), np.stack([covariance(4), 3 * covariance(4)]), covariance(2)], ids=len
)
def test_a_covariance_stays_one(matrix: Array) -> None:
    """Symmetric and positive definite, alone and in a batch; so a factor of it keeps its diagonal above zero."""
    other = derived(matrix)
    assert np.allclose(other, np.swapaxes(other, -1, -2))
    assert (np.linalg.eigvalsh(other) > 0).all()
    factor = derived(np.linalg.cholesky(matrix))
    assert (np.diagonal(factor, axis1=-2, axis2=-1) > 0).all()


@pytest.mark.parametrize("example", [np.linspace(-1, 1, 20), np.linspace(5, 0, 7), np.cumsum(np.abs(random(3, 9)), 1)])
def test_points_in_time_keep_their_order(example: Array) -> None:
    """Also where they have both signs, and along the rows of a batch."""
    direction = np.sign(np.diff(example, axis=-1))
    assert (np.sign(np.diff(derived(example), axis=-1)) == direction[:1]).all()


@pytest.mark.parametrize("example", [np.abs(random(4, 9)), np.abs(random(1, 1, 20)), -np.abs(random(30))], ids=str)
def test_one_sign_stays_one_sign(example: Array) -> None:
    """Pixels, probabilities and times are no other sign than they were, and in the range from zero to the largest."""
    other = derived(example)
    assert (np.sign(other) == np.sign(example).flat[0]).all()
    assert np.abs(other).max() <= np.abs(example).max()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_normalised_stays_so(seed: int) -> None:
    """Rows of a distribution add up to 1, and a direction is one of length 1."""
    weights = np.abs(random(5, 4))
    shares = weights / weights.sum(-1, keepdims=True)
    directions = random(5, 3) / np.linalg.norm(random(5, 3), axis=-1, keepdims=True)
    others = derived(shares, directions, seed=seed)
    assert np.allclose(others[0].sum(-1), 1)
    assert (others[0] >= 0).all()
    assert np.allclose(np.linalg.norm(others[1], axis=-1), 1)
    assert not any(map(np.array_equal, others, (shares, directions)))


def test_the_seed_decides() -> None:
    """One seed gives one set of inputs in every process, another seed another set."""
    example = integers(1000, 100)
    one, same, other = (derived(example, seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
