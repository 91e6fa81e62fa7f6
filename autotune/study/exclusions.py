"""`Exclusions`: the configs that a study does not try."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.config import Config
from autotune.study.sampler.sampler import Excluded


@dataclass(frozen=True)
class Exclusions:
    """Whether a config is not tried (any more)."""

    untuned: Config
    """Always tried, unless it was given up."""
    predicates: tuple[Excluded, ...] = ()
    given_up: frozenset[Config] = frozenset()

    def __call__(self, config: Config) -> bool:
        if self.given_up and config in self.given_up:
            return True
        return any(excludes(config) for excludes in self.predicates) and config != self.untuned
