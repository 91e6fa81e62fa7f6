"""`Elsewhere`: what `--on NAME` or `--on NAME://PLACE` means, behind the door of benches (`autotune.benches`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from autotune.bench.bench import Bench
from autotune.doors import Door
from autotune.errors import InputError, marked
from autotune.schema import Record

if TYPE_CHECKING:
    from autotune.bench.workers import WorkerEvent
    from autotune.study.budget import Budget
    from autotune.study.study import Study


class MachineFinding(Record):
    """One thing looked at: there or not, what was found, what to do about it."""

    what: str
    ok: bool
    found: str
    cure: str | None = None
    is_framework: bool = False


class Elsewhere(ABC):
    """Other places for trials than this machine. `on` is what the user gave, whose beginning is the entry's name."""

    @abstractmethod
    def require(self, on: str) -> None:
        """Raises InputError, before anything is measured, for a place that cannot be meant, or a missing package."""

    @abstractmethod
    def bench(
        self, on: str, study: Study, budget: Budget, notify: Callable[[WorkerEvent], None]
    ) -> AbstractContextManager[Bench]:
        """Whoever runs the trials of a study there."""

    @abstractmethod
    def examine(self, on: str) -> list[MachineFinding]:
        """What is there for `doctor`. Raises an AutotuneError where nothing is."""


BENCHES = Door("autotune.benches", "bench", Elsewhere)


def elsewhere(on: str) -> Elsewhere:
    """The entry that a place names. Raises InputError for an unknown one, and for one that cannot be used."""
    found = BENCHES.find(on.partition("://")[0])
    if found is None:
        raise InputError(f"{marked('on', on)}: unknown", tip=BENCHES.tip())
    found.require(on)
    return found
