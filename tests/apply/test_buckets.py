"""Buckets: the least padded work that so many sizes allow, by brute force; and what follows from them."""

from __future__ import annotations

import itertools
import random

import pytest

from autotune.apply.shape_strategies import best_buckets, next_bucket


def work(shares: dict[int, float], buckets: tuple[int, ...]) -> float:
    return sum(share * next_bucket(buckets, size) for size, share in shares.items())


@pytest.mark.parametrize("seed", range(60))
def test_no_other_choice_makes_less_work(seed: int) -> None:
    """Of all choices of so many sizes that hold the largest, none pads less."""
    chance = random.Random(seed)
    shares = {size: chance.random() for size in chance.sample(range(1, 60), chance.randint(1, 8))}
    num_buckets = chance.randint(1, 9)
    found = best_buckets(shares, num_buckets)
    choices = itertools.chain.from_iterable(
        itertools.combinations(sorted(shares), number) for number in range(1, min(num_buckets, len(shares)) + 1)
    )
    least = min(work(shares, choice) for choice in choices if choice[-1] == max(shares))
    assert work(shares, found) == pytest.approx(least)
    assert set(found) <= set(shares)
    assert len(found) <= num_buckets
    assert found == tuple(sorted(found))


def test_buckets_follow_the_traffic() -> None:
    """One size that most calls have is a bucket; with enough buckets nothing is padded."""
    shares = {1: 0.05, 2: 0.05, 7: 0.8, 64: 0.1}
    assert best_buckets(shares, 2) == (7, 64)
    assert best_buckets(shares, 99) == (1, 2, 7, 64)
    assert best_buckets(shares, 1) == (64,)


def test_the_next_bucket_holds_the_size() -> None:
    """The smallest that is not below it; above all buckets a size stays."""
    assert [next_bucket((4, 9), size) for size in (1, 4, 5, 9, 10)] == [4, 4, 9, 9, 10]
