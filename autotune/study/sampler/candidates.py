"""`Candidates`: the configs that a search chooses from. A space is listed if it can be; a larger one is drawn from."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from functools import cached_property

from autotune.config import Config, Scalar
from autotune.space.space import SearchSpace

ENUMERATION_LIMIT = 5000
"""Up to this many configs are listed."""
NUM_DRAWN = 1500
"""Configs drawn at random for one choice from a larger space."""


class Candidates:
    """Where `listed` is None, `draw` gives some for each choice."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    @cached_property
    def listed(self) -> list[Config] | None:
        """All configs of the space, the untuned and the default first; None if there are too many."""
        configs = list(itertools.islice(self._space.configs(), ENUMERATION_LIMIT + 1))
        return configs if len(configs) <= ENUMERATION_LIMIT else None

    def draw(self, seed: int, near: Sequence[Config]) -> list[Config]:
        """Random configs, and all that differ in one setting from one of `near`; each once."""
        generator = random.Random(seed)
        drawn = (self._space.walk(lambda _, values: generator.choice(values)) for _ in range(NUM_DRAWN))
        neighbours = itertools.chain.from_iterable(map(self._neighbours, near))
        return [each for each in dict.fromkeys([*neighbours, *drawn]) if self._space.forbidden(each) is None]

    def _neighbours(self, config: Config) -> Iterator[Config]:
        """Knobs that become active through the one that was changed have their defaults."""
        defaults = {knob.name: knob.default for knob in self._space.knobs}
        for knob in self._space.knobs:
            for value in knob.values if knob.name in config.root else ():
                yield self._walk({**defaults, **config.root, knob.name: value})

    def _walk(self, settings: dict[str, Scalar]) -> Config:
        return self._space.walk(lambda name, _: settings[name])
