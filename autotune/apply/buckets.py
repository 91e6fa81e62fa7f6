"""The sizes that calls are padded to: few enough to compile one by one, and close enough to what comes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate


def best_buckets(shares: Mapping[int, float], num_buckets: int) -> tuple[int, ...]:
    """At most `num_buckets` of the sizes, ascending, the largest among them, so that padding each call up to the next
    bucket makes the least work: the sum of share x bucket.

    `shares` is a size's part of all calls. Dynamic programming over the sorted sizes: the best buckets for the smallest
    so many sizes are a last bucket, and the best ones for what is below its first size. Quadratic in their number.
    """
    sizes = sorted(shares)
    up_to = [0.0, *accumulate(shares[size] for size in sizes)]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *[(math.inf, ())] * len(sizes)]
    for _ in range(min(num_buckets, len(sizes))):
        best = [
            min(
                [best[end]]
                + [
                    (best[start][0] + sizes[end - 1] * (up_to[end] - up_to[start]), (*best[start][1], sizes[end - 1]))
                    for start in range(end)
                ]
            )
            for end in range(len(sizes) + 1)
        ]
    return best[-1][1]


def next_bucket(buckets: tuple[int, ...], size: int) -> int:
    """The smallest bucket that holds `size`; a size above all of them is its own."""
    return next((bucket for bucket in buckets if bucket >= size), size)


def size_at(shares: Mapping[int, float], share: float) -> int:
    """The smallest size such that this share of all calls is no larger: 0.5 gives the median."""
    sizes = sorted(shares)
    reached = accumulate(shares[size] for size in sizes)
    return next((size for size, part in zip(sizes, reached, strict=True) if part >= share - 1e-9), sizes[-1])
