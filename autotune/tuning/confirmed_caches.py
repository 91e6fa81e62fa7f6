"""Compile caches that a confirmation measured, kept for an export: another compile may come to other kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.study.study import Study
from autotune.tuning.blocks import Contestant
from autotune.tuning.cache_store import CacheStore


def confirmed_caches(study: Study) -> CacheStore:
    """Of the latest confirmation, by the trials' numbers."""
    return CacheStore(study.folder / "confirmed")


def keep_confirmed(study: Study, contestants: Sequence[Contestant]) -> None:
    """Keep the caches of those whose compiler picks kernels by timing them, and drop those of an earlier confirmation.

    Caches that lie on another host are not kept.
    """
    store = confirmed_caches(study)
    store.clear()
    picking = [each.request for each in contestants if each.compiles_anew]
    for request in picking:
        store.take_in(request.number, Path(request.cache))
    if picking:
        store.keep([each.number for each in picking])
